"""The server's side: a Flower strategy that follows a plan."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from numpy.typing import NDArray

from airfed.aircomp import CLIP_MARGIN, Air, Airs, Reception
from airfed.flower import messages
from airfed.flower.messages import Roster, SafeGrid
from airfed.planning import Plan
from airfed.text.phrases import ADVERSARIES
from airfed.training.charging import LedgerBooks
from airfed.training.loop import Books, Diverged, receive, transmit
from airfed.training.noise import NoiseSource, SecureNoise
from airfed.training.state import Averages

Updates = NDArray[np.float64]
_LOG = logging.getLogger("flwr")
_GRACE: Final = 60.0  # s by which a message outlives its round: who is late is then told from what was lost


class NobodyThere(RuntimeError):
    """No scheduled device is there, so that a round cannot begin."""


@dataclass(frozen=True)
class _Sent:
    """The round that is under way: what was sent, and to whom."""

    index: int
    arrays: ArrayRecord
    outgoing: dict[int, Message]  # by device


class OverTheAirFedAvg(Strategy):
    """Federated averaging over the air, as a plan has it.

    The plan decides who is sampled, how strongly each device transmits, and how many rounds and local steps there are.
    In each round everyone who is scheduled is charged before anything is sent; a round for which nobody is there is not
    charged. What comes back is clipped again, superposed, and received with noise that is drawn once, here. A device
    that fails, is late, or sends anything but a signal counts as zero; the divisor stays |K|, and its power is metered
    at its worst. No metrics of devices are collected and nothing is evaluated on them: no ε would cover that. Evaluate
    on the server (`evaluate_fn` of `start`).

    Args:
        plan: whom to sample, and all else.
        books: where rounds are charged; a path makes a ledger there (`LedgerBooks`).
        airs: how the signals of each round arrive; by default over the channels that the plan knows.
        noise: draws the receiver's noise; fresh from the operating system by default.
        first_round: i to begin with, where an earlier training is resumed.
        averages: of the models of the rounds before that, where the plan averages them (the strategy's `averages`).
        wait_for_devices: [s] for how long the first round waits for scheduled devices that are not there yet.
        clock: tells the time; the module `time` but in tests.

    Implements [Yan23, Algorithm 2], second half.
    """

    def __init__(
        self,
        plan: Plan,
        books: Books | str | Path,
        *,
        airs: Airs | None = None,
        noise: NoiseSource | None = None,
        first_round: int = 0,
        averages: Averages | None = None,
        wait_for_devices: float = 120.0,
        clock: Any = time,
    ) -> None:
        signal = plan.sequence.signal(0)
        if signal.transmit_amplitude is None or signal.constant_power is not None or signal.by_largest:
            raise ValueError(f"Expected a policy whose devices only scale their updates; {plan.policy!r} does more.")
        self.plan = plan
        self.airs = Airs(plan=plan) if airs is None else airs
        self.noise = SecureNoise() if noise is None else noise
        if isinstance(books, str | Path):
            books = LedgerBooks(Path(books), plan, privacy=self.noise.privacy)
        self.books: Books = books
        self.first_round = first_round
        if averages is None and first_round > 0 and plan.average != "none":
            raise ValueError(f"Expected averages with first_round={first_round}: the plan averages the models.")
        if averages is not None and (averages.rounds, averages.done) != (plan.rounds, first_round):
            got = f"{averages.done} of {averages.rounds}"
            raise ValueError(f"Expected averages after {first_round} of {plan.rounds} rounds; got those after {got}.")
        self.averages = self._averages_before = averages
        self._released: ArrayRecord | None = None
        self.roster = Roster(num_devices=plan.problem.fleet.num_devices, clock=clock)
        self._clock, self._wait = clock, wait_for_devices
        self._ttl: float | None = None
        self._sent: _Sent | None = None

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
        """Train, and return the model, averaged where the plan says so, and what `evaluate_fn` said of it.

        Args:
            grid: where the devices are.
            initial_arrays: m⁰; all arrays together hold d numbers.
            num_rounds: at most the rounds that the plan has left, which is the default.
            timeout: [s] how long a round waits for its devices.
            train_config, evaluate_config: handed on to the devices under "config".
            evaluate_fn: evaluates the model here, on the server.

        Raises BudgetExhausted or NobodyThere where a round was not sent, Diverged where nobody sent a usable update or
        the model is no longer finite.
        """
        left = self.plan.rounds - self.first_round
        rounds = left if num_rounds is None else num_rounds
        if not 1 <= rounds <= left:
            raise ValueError(f"Expected num_rounds={rounds} from 1 to {left}, the rounds that the plan has left.")
        self._ttl = timeout + _GRACE
        careful = cast(Grid, SafeGrid(grid, self._clock))
        self.averages, self._released = self._averages_before, None
        evaluate = evaluate_fn and (lambda index, arrays: evaluate_fn(index, self.released or arrays))
        result = super().start(careful, initial_arrays, rounds, timeout, train_config, evaluate_config, evaluate)
        result.arrays = self._released or result.arrays
        return result

    @property
    def released(self) -> ArrayRecord | None:
        """The model after the last whole round, averaged where the plan says so, also where `start` has raised."""
        return self._released

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Find the scheduled devices, charge the round after all that can fail, and return the messages."""
        plan, learning = self.plan, self.plan.problem.learning
        index = self.first_round + server_round - 1
        if not index < plan.rounds:
            raise ValueError(f"Expected a round before {plan.rounds}, the plan's last; got {index}.")
        model, dimension = messages.flatten(arrays), learning.dimension
        if model.size != dimension:
            raise ValueError(f"Expected a model of the plan's dimension {dimension}, got {model.size} numbers.")
        if not np.isfinite(model).all():
            raise ValueError("Expected a model of finite numbers, got one with a NaN or an Inf.")
        decided, air = plan.sequence[index], self.airs.at(index)
        wanted: list[int] = decided.scheduled.tolist()
        nodes = self.roster.find(grid, wanted, wait=self._wait)
        self._wait = 0.0
        if not nodes:
            raise NobodyThere(
                f"Round {index + 1}: none of the {len(wanted)} scheduled devices is there; nothing was charged. "
                'Start their nodes, each with its index (--node-config "partition-id=0"), and go on.'
            )
        absent = sorted(set(wanted) - nodes.keys())
        if absent:
            _LOG.warning("round %d: devices %s are not there; they count as zero", index + 1, absent)
        outgoing = {}
        for place, device in enumerate(wanted):
            if device in nodes:
                order = messages.Order(
                    round_index=index,
                    local_steps=decided.local_steps,
                    learning_rate=learning.learning_rate,
                    clip_norm=decided.clip_norm,
                    amplitude=float(air.transmit_amplitude[place]),
                    phase=float(air.transmit_phase[place]) if air.antennas > 1 else None,
                )
                sent = messages.training(nodes[device], arrays, config, order, ttl=self._ttl, group_id=str(index))
                outgoing[device] = sent
        self.books.charge(index)  # all scheduled devices, before anything is sent
        self._sent = _Sent(index=index, arrays=arrays, outgoing=outgoing)
        return list(outgoing.values())

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return the next model: the signals superposed, the noise added, the mean recovered and stepped along."""
        sent, self._sent = self._sent, None
        if sent is None or sent.index != self.first_round + server_round - 1:
            raise ValueError(f"Expected the replies of the round that was sent out; got those of {server_round}.")
        parameters = messages.flatten(sent.arrays).astype(np.float32)
        uploads = self._uploads(sent, replies)
        first = next(uploads, None)
        if first is None:  # nothing is added up, and no noise is drawn: the charge covers the next try
            raise Diverged(f"Round {sent.index + 1}: no device sent anything that can be used.")
        arrived = _Arrived(chain((first,), uploads))
        superposition = transmit(self.plan, self.airs, arrived, parameters=parameters, index=sent.index)
        done = receive(self.plan, superposition, self.noise, self.books, parameters=parameters, index=sent.index)
        decided = self.plan.sequence[sent.index]
        reception = _with_clipped(done.reception, decided.clip_norm)
        done = replace(done, reception=_with_unheard(reception, self.airs.at(sent.index), told=list(sent.outgoing)))
        self.books.settle(done)
        heard = decided.scheduled.size - done.reception.missing.size
        _LOG.info("round %d: heard %d of %d devices", done.index + 1, heard, decided.scheduled.size)
        earlier = self.averages or Averages(
            rounds=self.plan.rounds, names=(self.plan.average,), latest=parameters, done=sent.index
        )
        self.averages = earlier.after(done.parameters)
        self._released = messages.unflatten(self.averages.model(self.plan.average), sent.arrays)
        return messages.unflatten(done.parameters, sent.arrays), None

    def _uploads(self, sent: _Sent, replies: Iterable[Message]) -> Iterator[tuple[NDArray[np.intp], Updates]]:
        waiting = {messages.address(message): device for device, message in sent.outgoing.items()}
        useless, strays, air = set(sent.outgoing), 0, self.airs.at(sent.index)
        for reply in replies:
            sender = messages.sender(reply)
            device = None if sender is None else waiting.pop(sender, None)
            if device is None:
                strays += 1
                continue
            try:
                update = messages.received_update(reply, air, device, self.plan.problem.learning.dimension)
            except ValueError as error:
                _LOG.warning("round %d: device %d counts as zero: %s", sent.index + 1, device, messages.quote(error))
                continue
            useless.remove(device)
            yield np.array([device]), update
        if strays:
            _LOG.warning("round %d: %d replies were no first replies to its messages", sent.index + 1, strays)
        if waiting:
            _LOG.warning("round %d: devices %s did not answer in time", sent.index + 1, sorted(waiting.values()))
        self.roster.doubt(sent.outgoing[device].metadata.dst_node_id for device in useless)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Return no messages: what devices would say of the model is covered by no ε."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Return nothing: nobody was asked."""
        return None

    def summary(self) -> None:
        """Log what the plan has decided."""
        plan, problem = self.plan, self.plan.problem
        _LOG.info("\tplan (%s): %d of %d devices", plan.policy, plan.num_scheduled, problem.fleet.num_devices)
        _LOG.info("\trounds: %d, of which done: %d", plan.rounds, self.first_round)
        against = f" against {ADVERSARIES[problem.link.trust]}" if problem.fleet.antennas > 1 else ""
        _LOG.info("\tprivacy (%s noise, added by the server)%s:", self.noise.privacy, against)
        epsilons = (plan.epsilon_round, plan.epsilon_total, problem.budget.delta)
        _LOG.info("\tε = %.4g each round, %.4g all rounds, at δ = %.3g", *epsilons)


class _Arrived(NamedTuple):
    """Stands for the devices in the round loop of `airfed.training.loop`: their updates are here already."""

    uploads: Iterator[tuple[NDArray[np.intp], Updates]]

    def updates(
        self, parameters: NDArray[np.float32], devices: NDArray[np.intp], *, steps: int, round_index: int
    ) -> Iterator[tuple[NDArray[np.intp], Updates]]:
        """Yield what has arrived."""
        yield from self.uploads


def _with_unheard(reception: Reception, air: Air, *, told: list[int]) -> Reception:
    """Meter devices at their worst that were told to transmit and of which nothing usable came: nobody knows better."""
    unheard = np.isin(air.scheduled, told) & np.isin(air.scheduled, reception.missing)
    worst = np.where(unheard, np.square(air.transmit_amplitude), 0.0)
    return replace(reception, energy=reception.energy + worst, power=reception.power + float(np.sum(worst)))


def _with_clipped(reception: Reception, clip_norm: float) -> Reception:
    """Count as clipped what arrives at the very limit: devices clip themselves, and do not say what they had before."""
    limit = clip_norm * (1.0 - 2.0 * CLIP_MARGIN)
    return replace(reception, clipped=int(np.count_nonzero(reception.norms > limit)))
