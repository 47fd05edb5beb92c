"""An airfed scenario as a Flower app: device k trains on share k of the scenario's data."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from numpy.typing import NDArray

from airfed import scenario as scenarios
from airfed.flower import messages
from airfed.flower.mod import device_index, over_the_air_mod
from airfed.flower.strategy import OverTheAirFedAvg
from airfed.privacy.ledger import BudgetExhausted
from airfed.problem import Problem
from airfed.training.execution import open_run
from airfed.training.loop import Diverged
from airfed.training.recorder import RunBooks
from airfed.training.setup import Task, build_task

_LOG = logging.getLogger("flwr")
_ROUNDING: Final = 1e-9


def client_app(scenario: str | Path) -> ClientApp:
    """Return the ClientApp of a scenario file: trains the node's device as `airfed run` would.

    An order that does not fit the scenario (more than the device's peak power, more steps than there are in all,
    another model) is refused, whoever gave it.

    Args:
        scenario: the file; it is read when the first message comes.
    """
    app = ClientApp(mods=[over_the_air_mod])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        task, problem = _world(Path(scenario))
        order = messages.Order.of(message)
        (arrays,) = message.content.array_records.values()  # of both the mod has made sure
        with np.errstate(over="ignore"):  # what float32 cannot hold becomes Inf, and is refused
            start = messages.flatten(arrays).astype(np.float32)
        try:
            device = device_index(context)
            _check(problem, device, order, start)
        except ValueError as error:
            _LOG.error("%s", messages.quote(error))
            return messages.refusal(message, error)
        ((_, updates),) = task.engine.updates(
            start, np.array([device]), steps=order.local_steps, round_index=order.round_index
        )
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
        out, resume = Path(str(config.get("out", "airfed-run"))), config.get("resume", False)
        if not isinstance(resume, bool):
            raise ValueError(f"Expected resume={resume!r} to be true or false in the run configuration.")
        round_timeout = _seconds(config, "round-timeout", 600.0)
        wait_for_devices = _seconds(config, "wait-for-devices", 120.0)
        with open_run(scenarios.load(scenario), out, resume=resume, remote="flower", on_round=_tell) as books:
            if books.state.round_index == books.setup.plan.rounds:
                _LOG.info("nothing to do: all rounds of the run in %s are done", out)
                return
            _train(grid, books, round_timeout=round_timeout, wait_for_devices=wait_for_devices)

    return app


def _seconds(config: Mapping[str, object], key: str, default: float) -> float:
    value = config.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value < math.inf:
        raise ValueError(f"Expected {key}={value!r} to be a number of seconds >= 0 in the run configuration.")
    return float(value)


def _train(grid: Grid, books: RunBooks, *, round_timeout: float, wait_for_devices: float) -> None:
    setup = books.setup
    strategy = OverTheAirFedAvg(
        setup.plan,
        books,
        airs=setup.airs,
        noise=setup.noise,
        first_round=books.state.round_index,
        averages=books.averages,
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
def _world(scenario: Path) -> tuple[Task, Problem]:
    loaded = scenarios.load(scenario)
    task = build_task(loaded)
    return task, loaded.problem(dimension=task.dimension)


def _check(problem: Problem, device: int, order: messages.Order, start: NDArray[np.float32]) -> None:
    """Raise where an order, a model, or the node's own index, cannot be of a plan for this problem."""
    if not 0 <= device < problem.fleet.num_devices:
        raise ValueError(f"Expected a device index from 0 to {problem.fleet.num_devices - 1}, got {device}.")
    if start.size != problem.learning.dimension:
        raise ValueError(f"Expected a model of {problem.learning.dimension} numbers, got {start.size}.")
    if not np.isfinite(start).all():
        raise ValueError("Expected a model that float32 can hold.")
    if order.local_steps > problem.learning.total_steps:
        raise ValueError(f"Expected local_steps={order.local_steps} <= {problem.learning.total_steps}, all there are.")
    peak = float(problem.fleet.peak_power[device])
    if order.amplitude**2 > peak * (1.0 + _ROUNDING):
        raise ValueError(f"Expected a power of at most {peak:g} W, this device's peak; got {order.amplitude**2:g} W.")
