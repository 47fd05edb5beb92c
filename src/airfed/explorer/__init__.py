"""The planner as a live page; docs/explore.md describes it and its threat model."""
