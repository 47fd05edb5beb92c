"""The command line: parse, call, print."""

from airfed.cli.app import main

__all__ = ["main"]
