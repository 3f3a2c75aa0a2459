"""Copy finished records into the stores of other tools; no run needs this."""
