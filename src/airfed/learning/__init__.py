"""Data, models and local training."""
