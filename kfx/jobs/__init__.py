"""Many runs: plans, attempts, the pool of processes, sweeps, studies and reproductions."""
