"""An airfed scenario as a Flower app: device k trains on share k of the scenario's data."""

from __future__ import annotations

import logging
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from airfed import scenario as scenarios
from airfed.flower import messages
from airfed.flower.mod import device_index, over_the_air_mod
from airfed.flower.strategy import OverTheAirFedAvg
from airfed.learning.task import Task, build_task
from airfed.privacy.ledger import BudgetExhausted
from airfed.running.books import RunBooks
from airfed.running.execution import open_run
from airfed.running.loop import Diverged

_LOG = logging.getLogger("flwr")


def client_app(scenario: str | Path) -> ClientApp:
    """Return the ClientApp of a scenario file: trains the node's device as `airfed run` would.

    Args:
        scenario: the file; it is read when the first message comes.
    """
    app = ClientApp(mods=[over_the_air_mod])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        task, order = _task(Path(scenario)), messages.Order.of(message)
        arrays = message.content.array_records[messages.ARRAYS]
        start = messages.flatten(arrays).astype(np.float32)
        devices = np.array([device_index(context)])
        ((_, updates),) = task.engine.updates(start, devices, steps=order.local_steps, round_index=order.round_index)
        # Flower's custom is to reply with the trained model; float64, so that the mod gets the update back unrounded.
        trained = start - order.learning_rate * updates[0].astype(np.float64)
        return Message(RecordDict({messages.ARRAYS: ArrayRecord({"model": Array(trained)})}), reply_to=message)

    return app


def server_app(scenario: str | Path) -> ServerApp:
    """Return the ServerApp of a scenario file: plans, trains, and keeps a run directory as `airfed run` does.

    The app's run configuration says how: `out` is the run directory, relative to where the SuperLink was started;
    `resume` goes on with an interrupted run; `round-timeout` [s] is how long a round waits for its devices, and
    `wait-for-devices` [s] how long the first one waits for them to come.

    Args:
        scenario: the file; it is read when the app starts.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        config = context.run_config
        out, resume = Path(str(config.get("out", "airfed-run"))), bool(config.get("resume", False))
        with open_run(scenarios.load(scenario), out, resume=resume, remote="flower", on_round=_tell) as books:
            if books.state.round_index == books.setup.plan.rounds:
                _LOG.info("nothing to do: all rounds of the run in %s are done", out)
                return
            _train(
                grid,
                books,
                round_timeout=float(config.get("round-timeout", 600.0)),
                wait_for_devices=float(config.get("wait-for-devices", 120.0)),
            )

    return app


def _train(grid: Grid, books: RunBooks, *, round_timeout: float, wait_for_devices: float) -> None:
    setup = books.setup
    strategy = OverTheAirFedAvg(
        setup.plan,
        books,
        air=setup.air,
        noise=setup.noise,
        first_round=books.state.round_index,
        wait_for_devices=wait_for_devices,
    )
    try:
        strategy.start(grid, ArrayRecord({"model": Array(books.state.parameters)}), timeout=round_timeout)
    except (BudgetExhausted, Diverged):
        books.conclude(finished=True)  # the model as far as it got, as `airfed run` does
        raise
    books.conclude(finished=True)


def _tell(record: dict[str, Any]) -> None:
    shown = {name: record[name] for name in ("loss", "accuracy", "epsilon_total") if record[name] is not None}
    _LOG.info("round %d: %s", record["round"] + 1, ", ".join(f"{name} {value:.4g}" for name, value in shown.items()))


@cache
def _task(scenario: Path) -> Task:
    return build_task(scenarios.load(scenario))
