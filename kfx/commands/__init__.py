"""Subcommands of the `kfx` command."""
