"""Gram matrices and their factors beyond memory: tiles on disk, the tasks that make them, and who runs the tasks."""
