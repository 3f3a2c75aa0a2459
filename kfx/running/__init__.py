"""One run, from its checked config to its completed record."""
