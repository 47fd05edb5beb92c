"""The planner as a live page: move a slider, read the decision.

`design` is what the page edits, `view` what it computes, `pictures*` what it draws (pure functions that return SVG);
`page*` lays it out with NiceGUI and `server` serves it. Only the last two import NiceGUI.
"""

from airfed.explorer.design import Design

__all__ = ["Design"]
