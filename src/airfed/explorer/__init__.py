"""The planner as a live page: move a slider, read the plan. Its threat model is in docs/explore.md."""

from airfed.explorer.design import Design

__all__ = ["Design"]
