"""Training: the round loop, the noise, the run directory, and runs over several processes."""
