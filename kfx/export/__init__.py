"""Finished records in the stores of other tools; nothing here is part of a run."""
