"""Gram matrices and Cholesky factors larger than memory: tiles on disk, and the tasks that compute them."""
