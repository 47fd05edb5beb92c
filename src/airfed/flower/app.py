"""The client mod, and an airfed scenario as a Flower app: device k trains on share k of the scenario's data."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from numpy.typing import NDArray

from airfed import scenario as scenarios
from airfed.aircomp import precode
from airfed.flower import messages
from airfed.flower.strategy import OverTheAirFedAvg
from airfed.privacy.ledger import BudgetExhausted
from airfed.problem import Problem
from airfed.training.execution import open_run
from airfed.training.loop import Diverged
from airfed.training.setup import Task, build_task

_LOG = logging.getLogger("flwr")
_ROUNDING: Final = 1e-9
DEVICE_KEY: Final = "partition-id"


def over_the_air_mod(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
    """Return the reply of the ClientApp with the trained model replaced by what the device transmits.

    g_k = (w⁰ − w_k^E)/τ, clipped to ‖g_k‖₂ ≤ ϖ as one vector, and x_k = √(φ_k P_k)/ϖ · g_k. Everything else that the
    ClientApp replied, its metrics above all, stays on the device: no ε would cover it. Where the order names a phase,
    the radio turns the carrier by it. A message that no plan would send is answered with an error.

    The device's index k is `partition-id` of the node's configuration (`--node-config "partition-id=3"`; a simulation
    sets it by itself). The mod must be the first of the ClientApp's mods, and so the last that touches the reply.

    Args:
        message: a question or a training message of `OverTheAirFedAvg`; other types of messages pass through.
        context: holds the node's configuration.
        call_next: the rest of the ClientApp; replies with the trained model in one ArrayRecord like the one it got.

    Implements [Yan23, (5)], [Yan23, (6)].
    Deviations: the sign of (5); clipping, which DP needs and Assumption 1 only assumes.
    """
    if message.metadata.message_type.partition(".")[0] != MessageType.TRAIN:
        return call_next(message, context)
    try:
        if messages.is_question(message):
            return messages.answer(message, device_index(context))
        order = messages.Order.of(message)
        names, start = _model(message)
        if not np.isfinite(start).all():
            raise ValueError("Expected a model of finite numbers, got one with a NaN or an Inf.")
    except ValueError as error:
        return _refusal(message, error)
    reply = call_next(message, context)
    if reply.has_error():
        return reply
    try:
        names_after, end = _model(reply)
        if names_after != names or end.size != start.size:
            raise ValueError(
                "Expected the arrays of the ClientApp's reply to have the names and sizes of those it got."
            )
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows is not transmitted
            update = (start - end) / order.learning_rate  # [Yan23, (5)]
        signals, norms = precode(update, clip_norm=order.clip_norm, amplitude=order.amplitude)  # [Yan23, (6)]
        if np.isnan(norms[0]):
            raise ValueError("The update holds a NaN or an Inf and is not transmitted.")
    except ValueError as error:
        return _refusal(message, error)
    return messages.transmission(message, signals[0])


def _refusal(message: Message, error: ValueError) -> Message:
    _LOG.error("%s", messages.quote(error))
    return messages.refusal(message, error)


def device_index(context: Context) -> int:
    """Return k, the index of the device that a node is; raises ValueError where its configuration does not say."""
    device = context.node_config.get(DEVICE_KEY)
    if isinstance(device, bool) or not isinstance(device, int):
        raise ValueError(
            f"Expected the device's index as {DEVICE_KEY} in the node's configuration, got {device!r}: start the node "
            f'with --node-config "{DEVICE_KEY}=0".'
        )
    return device


def _model(message: Message) -> tuple[list[str], NDArray[np.float64]]:
    """The names of the arrays in a message's one ArrayRecord, and their values one after the other."""
    records = list(message.content.array_records.values())
    if len(records) != 1:
        raise ValueError(f"Expected one ArrayRecord, the model; got {len(records)}.")
    return list(records[0]), messages.flatten(records[0])


def client_app(scenario: str | Path) -> ClientApp:
    """Return the ClientApp of a scenario file: trains the node's device as `airfed run` would.

    An order that does not fit the scenario (more than the device's peak power, more steps than there are in all,
    another model) is refused.
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
            return _refusal(message, error)
        ((_, updates),) = task.engine.updates(
            start, np.array([device]), steps=order.local_steps, round_index=order.round_index
        )
        # Flower's custom is to reply with the trained model; float64, so that the mod gets the update back unrounded.
        trained = start - order.learning_rate * updates[0].astype(np.float64)
        return Message(RecordDict({messages.ARRAYS: ArrayRecord({"model": Array(trained)})}), reply_to=message)

    return app


def server_app(scenario: str | Path) -> ServerApp:
    """Return the ServerApp of a scenario file: plans, trains, and keeps a run directory as `airfed run` does.

    Its run configuration: `out` is the run directory, relative to where the SuperLink was started; `resume` goes on
    with an interrupted run; `round-timeout` [s] is how long a round waits for its devices, and `wait-for-devices` [s]
    how long the first one waits for them to come.
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

    return app


def _seconds(config: Mapping[str, object], key: str, default: float) -> float:
    value = config.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value < math.inf:
        raise ValueError(f"Expected {key}={value!r} to be a number of seconds >= 0 in the run configuration.")
    return float(value)


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
