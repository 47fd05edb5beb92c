"""Plans for channels that vary from round to round, and for devices with batteries; `planner` has what others call."""
