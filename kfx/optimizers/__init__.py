"""Optimizers: `fit(kernel, data, streams, journal) → kernel`. They move the vector `kernel.flat`."""
