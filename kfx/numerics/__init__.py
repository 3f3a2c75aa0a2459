"""Linear algebra, threads, precision and random streams, independent of kernels and objectives."""
