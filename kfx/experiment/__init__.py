"""The typed whole of a run: its config composed, checked and identified."""
