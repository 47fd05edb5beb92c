"""Over-the-air federated averaging on Flower."""
