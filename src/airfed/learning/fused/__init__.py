"""A fused training engine for the built-in family of networks; see docs/fused.md.

Importing this package does not import Numba.
"""

from airfed.learning.fused.engine import FusedEngine, available, supports

__all__ = ["FusedEngine", "available", "supports"]
