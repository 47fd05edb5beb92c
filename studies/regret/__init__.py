"""Regret of plans by expected accuracy, and the error of the prediction."""
