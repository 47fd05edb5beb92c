"""Which devices transmit, how strongly, and in how many rounds."""
