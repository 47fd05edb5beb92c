"""The device's side: clip, precode, and send nothing else."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

import numpy as np
from flwr.app import Context, Message, MessageType
from numpy.typing import NDArray

from airfed.aircomp import precode
from airfed.flower import messages

_LOG = logging.getLogger("flwr")
DEVICE_KEY: Final = "partition-id"


def over_the_air_mod(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
    """Return the reply of the ClientApp with the trained model replaced by what the device transmits.

    g_k = (w⁰ − w_k^E)/τ, clipped to ‖g_k‖₂ ≤ ϖ as one vector, and x_k = √(φ_k P_k)/ϖ · g_k. Everything else that the
    ClientApp replied, its metrics above all, stays on the device: no noise is ever added to it, so no ε covers it.
    Where the order names a phase, the radio turns the carrier by it; the signal in the reply is what it is before that.
    A message that no plan would send (an order out of range, a model that is none) is answered with an error.

    The device's index k is `partition-id` of the node's configuration (`flower-supernode --node-config
    "partition-id=3"`; a simulation sets it by itself). The mod must be the first of the ClientApp's mods, and so the
    last that touches the reply.

    Args:
        message: a question or a training message of `OverTheAirFedAvg`; other types of messages pass through.
        context: holds the node's configuration.
        call_next: the rest of the ClientApp. It replies with the trained model in one ArrayRecord of the same names as
            the one that it got.

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
    _LOG.error("over_the_air_mod: %s", messages.quote(error))
    return messages.refusal(message, error)


def device_index(context: Context) -> int:
    """Return k, the index of the device that a node is.

    Raises:
        ValueError: the node's configuration does not say.
    """
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
