"""Optimizers: `fit(kernel, data, streams, record) → kernel`. They know vectors, not kernels."""
