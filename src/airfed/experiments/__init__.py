"""Sweeps and figures: declarative TOML, records, pure drawing functions."""
