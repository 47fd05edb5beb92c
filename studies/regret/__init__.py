"""Regret of plans by accuracy, and how well it was predicted."""
