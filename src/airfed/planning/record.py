"""A plan as plain values, and what comes back from them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, get_args

import numpy as np
from numpy.typing import NDArray

from airfed.planning.amplitudes import Amplitudes, indices
from airfed.planning.method import Method
from airfed.planning.surrogate import Prediction
from airfed.privacy.exposure import Members
from airfed.problem import InfeasibleError, Problem, Trust

if TYPE_CHECKING:
    from airfed.planning.plan import Plan

_RTOL: Final = 1e-9  # between what was written down and what follows from it, perhaps with another NumPy
_FOLLOWS: Final = (
    *("alignment", "rounds", "mu_round", "mu_total", "epsilon_round", "epsilon_total"),
    *("power_total", "num_scheduled", "alignment_coefficient", "clip_norm"),
)


def written(plan: Plan) -> dict[str, Any]:
    """Return a plan as plain values, under the names of its attributes, ready for JSON."""
    budget, link = plan.problem.budget, plan.problem.link
    return {
        "policy": plan.policy,
        "num_devices": plan.problem.fleet.num_devices,
        "dimension": plan.problem.learning.dimension,
        "num_scheduled": plan.num_scheduled,
        "scheduled": plan.scheduled.tolist(),
        "alignment": plan.alignment,
        "alignment_coefficient": plan.alignment_coefficient,
        "clip_norm": plan.clip_norm,
        "rounds": plan.rounds,
        "local_steps": list(plan.local_steps),
        "objective": plan.objective,
        "average": plan.average,
        "method": plan.method.to_dict(),
        "private": plan.private,
        "channel_uses": plan.channel_uses,
        "air_time": plan.air_time,
        "predicted_accuracy": plan.predicted_accuracy,
        "predicted_interval": None if plan.prediction is None else [plan.prediction.low, plan.prediction.high],
        "predicted_loss": None if plan.prediction is None else plan.prediction.loss,
        "predicted_basis": "" if plan.prediction is None else plan.prediction.basis,
        "bound": {"total": plan.bound.total, "terms": plan.bound.terms},
        "binding": plan.binding,
        "limits": dict(plan.limits),
        "violations": list(plan.violations),
        "power": plan.power.tolist(),
        "power_total": plan.power_total,
        "amplification": plan.amplification,
        "estimation_error": link.estimation_error,
        "estimation_failure": link.estimation_failure,
        "trust_estimates": link.trust_estimates,
        "mu_round": plan.mu_round,
        "mu_total": plan.mu_total,
        "epsilon_round": plan.epsilon_round,
        "epsilon_total": plan.epsilon_total,
        "epsilon_paper": plan.epsilon_paper,
        "epsilon_paper_validity": plan.epsilon_paper_validity,
        "delta": budget.delta,
        "scope": budget.scope,
        "relation": budget.relation,
        "unit": "device",
        "notes": list(plan.notes),
        "lower_bound": None if plan.lower_bound == -math.inf else plan.lower_bound,
        **_table(plan),
        **_antennas(plan),
    }


def _table(plan: Plan) -> dict[str, Any]:
    """The table of amplitudes: one row where it is the same in all rounds, else one for each round."""
    table = plan.amplitudes
    if table.constant:
        return {} if table.equal else {"amplitude": table.received(0).tolist()}
    rows = []
    for entry in plan.sequence:
        row = {
            "members": Members.of(entry.scheduled, table.num_devices).text,
            "num_scheduled": entry.scheduled.size,
            "alignment": entry.alignment,
            **({} if table.equal else {"amplitude": entry.amplitude.tolist()}),
            "local_steps": entry.local_steps,
            "power": entry.power_planned,
            "mu": entry.mu,
        }
        rows.append(row)
    return {"most_exposed": plan.most_exposed, "sequence": rows}


def _antennas(plan: Plan) -> dict[str, Any]:
    """What several antennas add."""
    if plan.problem.fleet.antennas == 1:
        return {}
    against: dict[str, float | None] = {}
    for trust in get_args(Trust):
        try:
            against[trust] = plan.against(trust).epsilon_total
        except InfeasibleError:  # nothing is claimed
            against[trust] = None
    return {
        "antennas": plan.problem.fleet.antennas,
        "combining": plan.problem.link.combining,
        "trust": plan.problem.link.trust,
        "combiner": np.stack((plan.combiner.real, plan.combiner.imag), axis=-1).tolist(),
        "epsilon_total_against": against,
    }


def read(problem: Problem, recorded: Mapping[str, Any], methods: Mapping[str, type[Method]]) -> dict[str, Any]:
    """Return the fields of a recorded plan; its problem has the recorded ϖ of a plan by accuracy, and beamformer."""
    clip_norm = recorded.get("clip_norm", problem.learning.clip_norm)
    if clip_norm != problem.learning.clip_norm and recorded.get("objective") == "measured":
        problem = replace(problem, learning=replace(problem.learning, clip_norm=clip_norm))
    if recorded.get("combiner") is not None:
        parts = np.array(recorded["combiner"], dtype=np.float64)
        if parts.ndim not in (2, 3) or parts.shape[-1] != 2:
            raise ValueError(f"Expected a combiner as pairs of numbers; got shape {parts.shape}.")
        problem = problem.heard_by(parts[..., 0] + 1j * parts[..., 1])
    if problem.fleet.antennas > 1:
        link = problem.link
        follows = {"antennas": problem.fleet.antennas, "trust": link.trust, "combining": link.combining}
        for name, value in follows.items():
            if recorded.get(name) != value:
                raise ValueError(f"Expected {name}={value!r}, as in the problem; got {recorded.get(name)!r}.")
    lower = recorded.get("lower_bound")
    accuracy, interval = recorded.get("predicted_accuracy"), recorded.get("predicted_interval")
    prediction = None
    if accuracy is not None and interval is not None:
        (low, high), basis = interval, recorded.get("predicted_basis", "")
        loss = recorded.get("predicted_loss")
        prediction = Prediction(accuracy=accuracy, low=low, high=high, basis=basis, loss=loss)
    return {
        "problem": problem,
        "policy": recorded["policy"],
        "amplitudes": _amplitudes(problem.fleet.num_devices, recorded),
        "method": _method(recorded.get("method"), methods),
        "notes": tuple(recorded["notes"]),
        "objective": recorded.get("objective", "bound"),
        "average": recorded.get("average", "none"),
        "prediction": prediction,
        "lower_bound": -math.inf if lower is None else float(lower),
    }


def _amplitudes(num_devices: int, recorded: Mapping[str, Any]) -> Amplitudes:
    rounds = recorded.get("sequence")
    if rounds is None:
        devices = indices(recorded["scheduled"], num_devices)
        number, level = int(recorded["rounds"]), float(recorded["alignment"])
        if "amplitude" not in recorded:
            return Amplitudes.aligned(devices, num_devices=num_devices, level=level, rounds=number)
        row = np.zeros(num_devices)
        row[devices] = recorded["amplitude"]
        return Amplitudes.of_table(row, rounds=number)
    equal = all("amplitude" not in entry for entry in rounds)
    share: NDArray[Any] = np.zeros((len(rounds), num_devices), dtype=np.bool_ if equal else np.float64)
    for row, entry in zip(share, rounds, strict=True):
        devices = Members.parse(entry["members"], num_devices).devices
        row[devices] = True if equal else np.asarray(entry["amplitude"]) / entry["alignment"]
    return Amplitudes(level=np.array([entry["alignment"] for entry in rounds]), share=share)


def _method(recorded: Any, methods: Mapping[str, type[Method]]) -> Method:
    try:
        settings = dict(recorded)
        kind = methods[settings.pop("name")]
    except (TypeError, ValueError, KeyError):
        raise ValueError(f"Expected a method of {', '.join(methods)}; got {recorded!r:.80}.") from None
    try:
        return kind(**settings)
    except TypeError:
        raise ValueError(f"Expected settings of {kind.name}; got {settings!r:.80}.") from None


def check(plan: Plan, recorded: Mapping[str, Any]) -> None:
    """Raise ValueError where a figure that was written down does not follow from the plan."""
    said = {"clip_norm": plan.clip_norm, **recorded}
    for name in _FOLLOWS:
        follows = getattr(plan, name)
        if not math.isclose(follows, said[name], rel_tol=_RTOL):
            raise ValueError(f"Expected {name}={follows!r}, which follows; got {said[name]!r}.")
