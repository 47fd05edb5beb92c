"""Plans for time-varying channels and for devices with batteries; see `planner`."""
