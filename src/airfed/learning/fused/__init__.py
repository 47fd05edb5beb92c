"""A fused training engine for the built-in family of networks; see docs/fused.md. It is imported without Numba."""

from airfed.learning.fused.engine import FusedEngine, available

__all__ = ["FusedEngine", "available"]
