"""The planner as a live page; docs/explore.md describes it and its threat model."""

from airfed.explorer.design import Design

__all__ = ["Design"]
