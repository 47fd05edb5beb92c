"""The planner as a live page: move a slider, read the decision.

`design` is what the page edits, `view` and `tradeoffs` what is computed of it, `pictures*` what is drawn (pure
functions that return SVG), `shown*` both together, as a worker does it. `library` finds runs on disk.
`worker` and `workers` are the two ends of the line between the server and its workers. `page*`,
`controls` and `dialogs` lay the page out with NiceGUI; `server` serves it behind the `gate`.
"""

from airfed.explorer.design import Design

__all__ = ["Design"]
