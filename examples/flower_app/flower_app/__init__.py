"""Over-the-air FedAvg on Flower."""
