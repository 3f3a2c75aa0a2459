"""Batches and their samples."""
