"""The server: plans the scenario, trains over Flower, and writes a run directory."""

from pathlib import Path

from airfed.flower import server_app

app = server_app(Path(__file__).with_name("scenario.toml"))
