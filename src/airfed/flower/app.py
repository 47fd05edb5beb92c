"""Client mod, and a scenario as a Flower app in which device k trains on part k of the data."""

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
    """Return the reply of the ClientApp with the trained model replaced by the transmitted signal.

    The update g_k = (w⁰ − w_k^E)/τ is clipped to ‖g_k‖₂ ≤ ϖ as one vector, and the signal is x_k = √(φ_k P_k)/ϖ · g_k.
    The rest of the reply, such as metrics, stays on the device, because no ε covers it. If the configuration has a
    phase, the radio rotates the carrier by it. An invalid message is answered with an error.

    The device index k is `partition-id` in the node configuration (`--node-config "partition-id=3"`; a simulation sets
    it). The mod must be the first of the ClientApp's mods. The ClientApp (`call_next`) replies with the trained model
    in one ArrayRecord like the received one.

    Implements [Yan23, (5)], [Yan23, (6)].
    Deviations: the sign of (5); clipping, which DP needs, instead of Assumption 1.
    """
    if message.metadata.message_type.partition(".")[0] != MessageType.TRAIN:
        return call_next(message, context)
    try:
        if "ask" in message.content.config_records.get(messages.RECORD, ()):  # for the device index
            return messages.answer(message, device_index(context))
        config = messages.RoundConfig.of(message)
        names, start = _model(message)
        if not np.isfinite(start).all():
            raise ValueError("The model must be finite, got a NaN or an Inf.")
    except ValueError as error:
        return _refusal(message, error)
    reply = call_next(message, context)
    if reply.has_error():
        return reply
    try:
        names_after, end = _model(reply)
        if names_after != names or end.size != start.size:
            raise ValueError("The arrays of the ClientApp's reply must have the names and sizes of the received ones.")
        with np.errstate(over="ignore", invalid="ignore"):  # an overflow is not transmitted
            update = (start - end) / config.learning_rate  # [Yan23, (5)]
        signals, norms = precode(update, clip_norm=config.clip_norm, amplitude=config.amplitude)  # [Yan23, (6)]
        if np.isnan(norms[0]):
            raise ValueError("The update has a NaN or an Inf and is not transmitted.")
    except ValueError as error:
        return _refusal(message, error)
    return messages.transmission(message, signals[0])


def _refusal(message: Message, error: ValueError) -> Message:
    _LOG.error("%s", messages.quote(error))
    return messages.refusal(message, error)


def device_index(context: Context) -> int:
    """Return the device index k of a node; raise ValueError if its configuration has none."""
    device = context.node_config.get(DEVICE_KEY)
    if isinstance(device, bool) or not isinstance(device, int):
        raise ValueError(
            f"{DEVICE_KEY} in the node configuration must be the device index, got {device!r}. Start the node with "
            f'--node-config "{DEVICE_KEY}=0".'
        )
    return device


def _model(message: Message) -> tuple[list[str], NDArray[np.float64]]:
    """Return the names of the arrays in the ArrayRecord of a message, and their concatenated values."""
    records = list(message.content.array_records.values())
    if len(records) != 1:
        raise ValueError(f"The message must have one ArrayRecord, the model, got {len(records)}.")
    return list(records[0]), messages.flatten(records[0])


def client_app(scenario: str | Path) -> ClientApp:
    """Return the ClientApp of a scenario file, which trains the node's device as `airfed run` does.

    It refuses a configuration that does not fit the scenario.
    """
    app = ClientApp(mods=[over_the_air_mod])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        task, problem = _scenario(Path(scenario))
        config = messages.RoundConfig.of(message)
        (arrays,) = message.content.array_records.values()  # the mod has checked both
        with np.errstate(over="ignore"):  # an overflow becomes Inf and is refused
            start = messages.flatten(arrays).astype(np.float32)
        try:
            device = device_index(context)
            _check(problem, device, config, start)
        except ValueError as error:
            return _refusal(message, error)
        ((_, updates),) = task.engine.updates(
            start, np.array([device]), steps=config.local_steps, round_index=config.round_index
        )
        # Flower apps reply with the trained model; float64 lets the mod recover the update without rounding.
        trained = start - config.learning_rate * updates[0].astype(np.float64)
        return Message(RecordDict({messages.ARRAYS: ArrayRecord({"model": Array(trained)})}), reply_to=message)

    return app


def server_app(scenario: str | Path) -> ServerApp:
    """Return the ServerApp of a scenario file, which plans, trains, and writes a run directory as `airfed run` does.

    Its run configuration: `out` is the run directory, `resume` resumes an interrupted run, `round-timeout` [s] limits
    the wait for replies in a round, and `wait-for-devices` [s] the wait for devices before the first round.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        config = context.run_config
        out, resume = Path(str(config.get("out", "airfed-run"))), config.get("resume", False)
        if not isinstance(resume, bool):
            raise ValueError(f"resume in the run configuration must be true or false, got {resume!r}.")
        round_timeout = _seconds(config, "round-timeout", 600.0)
        wait_for_devices = _seconds(config, "wait-for-devices", 120.0)
        with open_run(scenarios.load(scenario), out, resume=resume, remote="flower", on_round=_tell) as recorder:
            if recorder.state.round_index == recorder.setup.plan.rounds:
                _LOG.info("all rounds of the run in %s are already done", out)
                return
            setup = recorder.setup
            strategy = OverTheAirFedAvg(
                setup.plan,
                recorder,
                aircomp=setup.aircomp,
                noise=setup.noise,
                first_round=recorder.state.round_index,
                averages=recorder.averages,
                wait_for_devices=wait_for_devices,
            )
            try:
                strategy.start(grid, ArrayRecord({"model": Array(recorder.state.parameters)}), timeout=round_timeout)
            except (BudgetExhausted, Diverged):
                recorder.conclude(finished=True)  # keep the model of the last round, as `airfed run` does
                raise
            recorder.conclude(finished=True)

    return app


def _seconds(config: Mapping[str, object], key: str, default: float) -> float:
    value = config.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value < math.inf:
        raise ValueError(f"{key} in the run configuration must be a number of seconds >= 0, got {value!r}.")
    return float(value)


def _tell(record: dict[str, Any]) -> None:
    shown = {name: record[name] for name in ("loss", "accuracy", "epsilon_total") if record[name] is not None}
    _LOG.info("round %d: %s", record["round"] + 1, ", ".join(f"{name} {value:.4g}" for name, value in shown.items()))


@cache
def _scenario(scenario: Path) -> tuple[Task, Problem]:
    loaded = scenarios.load(scenario)
    task = build_task(loaded)
    return task, loaded.problem(dimension=task.dimension)


def _check(problem: Problem, device: int, config: messages.RoundConfig, start: NDArray[np.float32]) -> None:
    """Raise ValueError if a configuration, a model or the device index does not fit the problem."""
    if not 0 <= device < problem.fleet.num_devices:
        raise ValueError(f"The device index must be between 0 and {problem.fleet.num_devices - 1}, got {device}.")
    if start.size != problem.learning.dimension:
        raise ValueError(f"The model must have {problem.learning.dimension} numbers, got {start.size}.")
    if not np.isfinite(start).all():
        raise ValueError("The model must be finite in float32.")
    if config.local_steps > (total := problem.learning.total_steps):
        raise ValueError(f"local_steps must be at most {total}, the total steps, got {config.local_steps}.")
    peak = float(problem.fleet.peak_power[device])
    if config.amplitude**2 > peak * (1.0 + _ROUNDING):
        raise ValueError(f"The power must be at most {peak:g} W, the peak power, got {config.amplitude**2:g} W.")
