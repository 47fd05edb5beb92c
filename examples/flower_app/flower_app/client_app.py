"""A device: trains on its part of the data, clips, precodes and transmits."""

from pathlib import Path

from airfed.flower import client_app

app = client_app(Path(__file__).with_name("scenario.toml"))
