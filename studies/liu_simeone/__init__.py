"""Adaptive power control of Liu and Simeone against static power."""
