"""`python -m airfed` is `airfed`."""

import sys

from airfed.cli import main

if __name__ == "__main__":
    sys.exit(main())
