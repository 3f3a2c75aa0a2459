"""From words and files to a typed, checked config."""
