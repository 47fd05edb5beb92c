"""A training: the round loop, the noise, what is kept on disk, and several processes."""
