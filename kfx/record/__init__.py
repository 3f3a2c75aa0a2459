"""The record of a run on disk."""
