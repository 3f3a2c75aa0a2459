"""Pages: printed numbers beside measured ones, and runs."""
