"""Studies on the public records of airfed; not part of the package. `python -m studies --help`."""
