"""Server side: a Flower strategy that executes a plan."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from numpy.typing import NDArray

from airfed.aircomp import CLIP_MARGIN, AirComp, AirCompRound, ReceivedAggregate
from airfed.flower import messages
from airfed.flower.messages import NodeRegistry, SafeGrid
from airfed.planning import Plan
from airfed.text.phrases import exposure_sentence, privacy_basis, schedule_sentence
from airfed.training.charging import LedgerRecorder
from airfed.training.loop import Diverged, Recorder, receive, transmit
from airfed.training.noise import NoiseSource, SecureNoise
from airfed.training.state import Averages

_LOG = logging.getLogger("flwr")
_GRACE: Final = 60.0  # s that a message outlives its round, to distinguish late replies from lost ones


class NoDeviceAvailable(RuntimeError):
    """No scheduled device is connected, so the round cannot start."""


@dataclass(frozen=True)
class _OpenRound:
    """The current round and its messages."""

    index: int
    arrays: ArrayRecord
    outgoing: dict[int, Message]  # by device


class OverTheAirFedAvg(Strategy):
    """Over-the-air FedAvg with a plan.

    The plan determines the scheduled devices, their amplitudes, the rounds and the local steps. Each round charges all
    scheduled devices before any message is sent; a round without connected devices is not charged. The server clips the
    received updates again, superposes them, and adds the receiver noise once. A device that fails, is late, or sends
    an invalid reply counts as zero: the divisor stays |K|, and its power is metered at the maximum. Nothing is measured
    on devices, because no ε covers that. The attribute `released` is the model after the last complete round (averaged
    if the plan averages models), also if `start` raised.

    Args:
        recorder: charges the rounds; a path creates a ledger there (`LedgerRecorder`).
        aircomp, noise: by default the channels of the plan, and the operating system's entropy.
        first_round, averages: to resume a training: its next round i and the model averages before it.
        wait_for_devices: [s] that the first round waits for scheduled devices.
        clock: the module `time` except in tests.

    Implements [Yan23, Algorithm 2], second half.
    """

    def __init__(
        self,
        plan: Plan,
        recorder: Recorder | str | Path,
        *,
        aircomp: AirComp | None = None,
        noise: NoiseSource | None = None,
        first_round: int = 0,
        averages: Averages | None = None,
        wait_for_devices: float = 120.0,
        clock: Any = time,
    ) -> None:
        signal = plan.sequence.signal(0)
        if signal.transmit_amplitude is None or signal.constant_power is not None or signal.scale_by_largest:
            raise ValueError(f"The devices must only scale their updates; policy {plan.policy!r} does more.")
        if plan.problem.learning.adaptive_clipping is not None:
            raise ValueError("Devices cannot send a clipping indicator through Flower: remove adaptive_clipping.")
        self.plan = plan
        self.aircomp = AirComp(plan=plan) if aircomp is None else aircomp
        self.noise = SecureNoise() if noise is None else noise
        if isinstance(recorder, str | Path):
            recorder = LedgerRecorder(Path(recorder), plan, privacy=self.noise.privacy)
        self.recorder: Recorder = recorder
        self.first_round = first_round
        if averages is None and first_round > 0 and plan.average != "none":
            raise ValueError(f"averages must be given with first_round={first_round}: the plan averages models.")
        if averages is not None and (averages.rounds, averages.done) != (plan.rounds, first_round):
            got = f"{averages.done} of {averages.rounds}"
            raise ValueError(f"averages must be after {first_round} of {plan.rounds} rounds, got {got}.")
        self.averages = self._averages_before = averages
        self.released: ArrayRecord | None = None
        self.registry = NodeRegistry(num_devices=plan.problem.fleet.num_devices, clock=clock)
        self._clock, self._wait = clock, wait_for_devices
        self._ttl: float | None = None
        self._sent: _OpenRound | None = None

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int | None = None,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Train, and return the model (averaged if the plan averages models) and the results of `evaluate_fn`.

        At most `num_rounds` of the remaining rounds are trained; each waits `timeout` [s] for replies. The devices get
        `train_config` under "config". `evaluate_fn` evaluates the model on the server.

        Raises BudgetExhausted or NoDeviceAvailable if a round was not sent, and Diverged if no device sent a valid
        update, or the model is not finite.
        """
        left = self.plan.rounds - self.first_round
        rounds = left if num_rounds is None else num_rounds
        if not 1 <= rounds <= left:
            raise ValueError(f"num_rounds must be between 1 and {left}, the rounds left in the plan, got {rounds}.")
        self._ttl = timeout + _GRACE
        safe = cast(Grid, SafeGrid(grid, self._clock))
        self.averages, self.released = self._averages_before, None
        evaluate = evaluate_fn and (lambda index, arrays: evaluate_fn(index, self.released or arrays))
        result = super().start(safe, initial_arrays, rounds, timeout, train_config, evaluate_config, evaluate)
        result.arrays = self.released or result.arrays
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Find the scheduled devices, charge the round last, and return the messages."""
        plan, learning = self.plan, self.plan.problem.learning
        index = self.first_round + server_round - 1
        if not index < plan.rounds:
            raise ValueError(f"The round must be less than {plan.rounds}, the rounds of the plan, got {index}.")
        model, dimension = messages.flatten(arrays), learning.dimension
        if model.size != dimension:
            raise ValueError(f"The model must have {dimension} numbers, the dimension of the plan, got {model.size}.")
        if not np.isfinite(model).all():
            raise ValueError("The model must be finite, got a NaN or an Inf.")
        planned, aircomp = plan.sequence[index], self.aircomp.at(index)
        wanted: list[int] = planned.scheduled.tolist()
        nodes = self.registry.find(grid, wanted, wait=self._wait)
        self._wait = 0.0
        if not nodes:
            raise NoDeviceAvailable(
                f"Round {index + 1}: none of the {len(wanted)} scheduled devices is connected; nothing was charged. "
                'Start their nodes, each with its index (--node-config "partition-id=0"), and resume.'
            )
        absent = sorted(set(wanted) - nodes.keys())
        if absent:
            _LOG.warning("round %d: devices %s are not connected; they count as zero", index + 1, absent)
        outgoing = {}
        for position, device in enumerate(wanted):
            if device in nodes:
                round_config = messages.RoundConfig(
                    round_index=index,
                    local_steps=planned.local_steps,
                    learning_rate=learning.learning_rate,
                    clip_norm=planned.clip_norm,
                    amplitude=float(aircomp.transmit_amplitude[position]),
                    phase=float(aircomp.transmit_phase[position]) if aircomp.antennas > 1 else None,
                )
                options: Any = {"ttl": self._ttl, "group_id": str(index)}
                outgoing[device] = messages.training(nodes[device], arrays, config, round_config, **options)
        self.recorder.charge(index)  # all scheduled devices, before any message is sent
        self._sent = _OpenRound(index=index, arrays=arrays, outgoing=outgoing)
        return list(outgoing.values())

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return the next model: superpose the signals, add the noise, recover the mean and take a step."""
        sent, self._sent = self._sent, None
        if sent is None or sent.index != self.first_round + server_round - 1:
            raise ValueError(f"The replies must be those of the current round, got round {server_round}.")
        parameters = messages.flatten(sent.arrays).astype(np.float32)
        updates = self._updates(sent, replies)
        first = next(updates, None)
        if first is None:  # no sum and no noise: the charge covers the next attempt
            raise Diverged(f"Round {sent.index + 1}: no device sent a valid signal.")
        received: Any = SimpleNamespace(updates=lambda *_, **options: chain((first,), updates))  # in an engine's role
        superposition = transmit(self.plan, self.aircomp, received, parameters=parameters, index=sent.index)
        done = receive(self.plan, superposition, self.noise, self.recorder, parameters=parameters, index=sent.index)
        planned = self.plan.sequence[sent.index]
        done = replace(done, aggregate=_metered(done.aggregate, planned.clip_norm, self.aircomp.at(sent.index), sent))
        self.recorder.settle(done)
        count = planned.scheduled.size - done.aggregate.missing.size
        _LOG.info("round %d: received %d of %d devices", done.index + 1, count, planned.scheduled.size)
        earlier = self.averages or Averages(
            rounds=self.plan.rounds, names=(self.plan.average,), latest=parameters, done=sent.index
        )
        self.averages = earlier.after(done.parameters)
        self.released = messages.unflatten(self.averages.model(self.plan.average), sent.arrays)
        return messages.unflatten(done.parameters, sent.arrays), None

    def _updates(
        self, sent: _OpenRound, replies: Iterable[Message]
    ) -> Iterator[tuple[NDArray[np.intp], NDArray[np.float64]]]:
        waiting = {messages.address(message): device for device, message in sent.outgoing.items()}
        invalid, strays, aircomp = set(sent.outgoing), 0, self.aircomp.at(sent.index)
        for reply in replies:
            sender = messages.sender(reply)
            device = None if sender is None else waiting.pop(sender, None)
            if device is None:
                strays += 1
                continue
            try:
                update = messages.received_update(reply, aircomp, device, self.plan.problem.learning.dimension)
            except ValueError as error:
                _LOG.warning("round %d: device %d counts as zero: %s", sent.index + 1, device, messages.quote(error))
                continue
            invalid.remove(device)
            yield np.array([device]), update
        if strays:
            _LOG.warning("round %d: ignored %d replies that do not belong to its messages", sent.index + 1, strays)
        if waiting:
            _LOG.warning("round %d: devices %s did not reply in time", sent.index + 1, sorted(waiting.values()))
        self.registry.deprioritise(sent.outgoing[device].metadata.dst_node_id for device in invalid)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Return no messages: no ε covers an evaluation on the devices."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Return None: there is no evaluation on the devices."""
        return None

    def summary(self) -> None:
        """Log the plan."""
        plan = self.plan
        _LOG.info("\tpolicy %s: %s", plan.policy, schedule_sentence(plan))
        _LOG.info("\trounds: %d, of which done: %d", plan.rounds, self.first_round)
        _LOG.info("\tprivacy (%s noise, added by the server), %s:", self.noise.privacy, privacy_basis(plan))
        _LOG.info("\tε = %.4g per round, %.4g in total", plan.epsilon_round, plan.epsilon_total)
        if not plan.equal_mu:
            _LOG.info("\t%s", exposure_sentence(plan))


def _metered(
    aggregate: ReceivedAggregate, clip_norm: float, aircomp: AirCompRound, sent: _OpenRound
) -> ReceivedAggregate:
    """Count updates at the clipping norm as clipped, and the largest power of contacted devices without valid reply."""
    clipped = int(np.count_nonzero(aggregate.norms > clip_norm * (1.0 - 2.0 * CLIP_MARGIN)))
    unreachable = np.isin(aircomp.scheduled, list(sent.outgoing)) & np.isin(aircomp.scheduled, aggregate.missing)
    worst = np.where(unreachable, np.square(aircomp.transmit_amplitude), 0.0)
    power = aggregate.power + float(np.sum(worst))
    return replace(aggregate, clipped=clipped, energy=aggregate.energy + worst, power=power)
