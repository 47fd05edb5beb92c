"""Federated averaging over the air in Flower: a strategy, a client mod, and an app made of them.

A Flower project adds `over_the_air_mod` to its ClientApp, which clips and precodes what a device sends, and
`OverTheAirFedAvg` to its ServerApp, which follows a plan. `client_app` and `server_app` do so for an airfed scenario.
"""

from airfed._extras import explained

with explained():
    from airfed.flower.app import client_app, over_the_air_mod, server_app
    from airfed.flower.strategy import NobodyThere, OverTheAirFedAvg
    from airfed.training.charging import LedgerBooks
    from airfed.training.loop import Books

__all__ = ["Books", "LedgerBooks", "NobodyThere", "OverTheAirFedAvg", "client_app", "over_the_air_mod", "server_app"]
