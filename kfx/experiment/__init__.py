"""The config of a whole run: composed, checked and identified."""
