"""Pages of runs, and what they name and measure."""
