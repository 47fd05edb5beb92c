"""Studies on airfed's public API; not part of the package. `python -m studies --help`."""
