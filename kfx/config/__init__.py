"""Options and their registry, which know no family."""
