"""Privacy of the Gaussian mechanism that the receiver's noise is."""
