"""What kernel-learning criteria find: laws and maps, computed by the cells of studies."""
