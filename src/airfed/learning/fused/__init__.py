"""Fused training engine for the built-in networks; see docs/fused.md. Importing it does not import Numba."""

from airfed.learning.fused.engine import FusedEngine, available

__all__ = ["FusedEngine", "available"]
