"""Runs, jobs and sweeps."""
