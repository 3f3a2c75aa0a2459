"""Options and their registry, independent of the families of options."""
