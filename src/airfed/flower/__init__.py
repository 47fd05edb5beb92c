"""Over-the-air FedAvg in Flower: a strategy, a client mod, and an app of both.

A Flower project adds `over_the_air_mod` to its ClientApp, which clips and precodes the update of a device, and
`OverTheAirFedAvg` to its ServerApp, which executes a plan. `client_app` and `server_app` do so for an airfed scenario.
"""

from airfed._extras import explained

with explained():
    from airfed.flower.app import client_app, over_the_air_mod, server_app
    from airfed.flower.strategy import NoDeviceAvailable, OverTheAirFedAvg
    from airfed.training.charging import LedgerRecorder
    from airfed.training.loop import Recorder

__all__ = [
    "LedgerRecorder",
    "NoDeviceAvailable",
    "OverTheAirFedAvg",
    "Recorder",
    "client_app",
    "over_the_air_mod",
    "server_app",
]
