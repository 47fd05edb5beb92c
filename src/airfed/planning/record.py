"""Conversion of a plan to plain values and back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Final, get_args

import numpy as np
from numpy.typing import NDArray

from airfed.planning.amplitudes import Amplitudes, indices
from airfed.planning.method import Method
from airfed.planning.surrogate import NetworkAccuracy, Prediction
from airfed.privacy.exposure import ParticipationMask
from airfed.privacy.gaussian import epsilon_range
from airfed.problem import Adversary, InfeasibleError, Problem

if TYPE_CHECKING:
    from airfed.planning.plan import Plan

_RTOL: Final = 1e-9  # between recorded and recomputed values, which may come from another version of NumPy
_DERIVED: Final = (
    *("alignment", "rounds", "mu_round", "mu_total", "epsilon_round", "epsilon_total"),
    *("power_total", "num_scheduled", "alignment_coefficient", "clip_norm"),
)


def written(plan: Plan) -> dict[str, Any]:
    """Return a plan as plain values, under the names of its attributes, ready for JSON."""
    budget, link, adaptive = plan.problem.budget, plan.problem.link, plan.problem.learning.adaptive_clipping
    found = plan.prediction

    def plain(source: object, *names: str) -> dict[str, Any]:
        values = {name: getattr(source, name) for name in names}
        return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in values.items()}

    return {
        "policy": plan.policy,
        "num_devices": plan.problem.fleet.num_devices,
        "dimension": plan.problem.learning.dimension,
        **plain(plan, "num_scheduled", "scheduled", "alignment", "alignment_coefficient", "clip_norm"),
        **({} if adaptive is None else {"adaptive_clipping": asdict(adaptive)}),
        "rounds": plan.rounds,
        "local_steps": list(plan.local_steps),
        **plain(plan, "objective", "average"),
        "method": plan.method.to_dict(),
        **plain(plan, "private", "channel_uses", "air_time", "snr_per_symbol_db", "snr_per_upload_db"),
        "predicted_accuracy": plan.predicted_accuracy,
        "predicted_interval": None if found is None else [found.low, found.high],
        "predicted_loss": None if found is None else found.loss,
        "predicted_basis": "" if found is None else found.basis,
        **plain(plan, "noise_share", "noise_floor"),
        "bound": {"total": plan.bound.total, "terms": plan.bound.terms},
        "binding": plan.binding,
        "limits": dict(plan.limits),
        "violations": list(plan.violations),
        **plain(plan, "power", "power_total", "energy", "energy_total", "amplification"),
        **(link.measured_noise if plan.method.analog else {}),
        **plain(link, "csi_error", "csi_failure", "assume_perfect_csi"),
        **plain(plan, "mu_round", "mu_total", "epsilon_round", "epsilon_total"),
        **({} if plan.equal_mu else {"epsilon_devices": epsilon_range(plan.device_mu, budget.delta)}),
        **plain(plan, "epsilon_paper", "epsilon_paper_validity"),
        **plain(budget, "delta", "scope", "adjacency"),
        "unit": "device",
        "notes": list(plan.notes),
        "lower_bound": None if plan.lower_bound == -math.inf else plan.lower_bound,
        **({"networks": [each._asdict() for each in plan.networks]} if plan.networks else {}),
        **_table(plan),
        **_antennas(plan),
    }


def _table(plan: Plan) -> dict[str, Any]:
    """Return the table of amplitudes: one row for a constant plan, else one for each round."""
    table = plan.amplitudes
    if table.constant:
        return {} if table.equal else {"amplitude": table.received(0).tolist()}
    rows = []
    for entry in plan.sequence:
        row = {
            "mask": ParticipationMask.of(entry.scheduled, table.num_devices).text,
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
    """Return the entries for a receiver with several antennas."""
    if plan.problem.fleet.antennas == 1:
        return {}
    against: dict[str, float | None] = {}
    for adversary in get_args(Adversary):
        try:
            against[adversary] = plan.against(adversary).epsilon_total
        except InfeasibleError:  # no privacy claim
            against[adversary] = None
    return {
        "antennas": plan.problem.fleet.antennas,
        **plan.problem.shared_noise,
        "beamforming": plan.problem.link.beamforming,
        "adversary": plan.problem.link.adversary,
        "beamformer": np.stack((plan.beamformer.real, plan.beamformer.imag), axis=-1).tolist(),
        "epsilon_total_against": against,
    }


def read(problem: Problem, recorded: Mapping[str, Any], methods: Mapping[str, type[Method]]) -> dict[str, Any]:
    """Return the fields of a recorded plan; its problem gets the recorded ϖ (objective "accuracy") and beamformer."""
    clip_norm = recorded.get("clip_norm", problem.learning.clip_norm)
    if clip_norm != problem.learning.clip_norm and recorded.get("objective") == "accuracy":
        problem = replace(problem, learning=replace(problem.learning, clip_norm=clip_norm))
    if recorded.get("beamformer") is not None:
        parts = np.array(recorded["beamformer"], dtype=np.float64)
        if parts.ndim not in (2, 3) or parts.shape[-1] != 2:
            raise ValueError(f"beamformer must be pairs of numbers, got shape {parts.shape}.")
        problem = problem.with_beamformer(parts[..., 0] + 1j * parts[..., 1])
    if problem.fleet.antennas > 1:
        link = problem.link
        same = {"antennas": problem.fleet.antennas, "adversary": link.adversary, "beamforming": link.beamforming}
        expected: dict[str, Any] = {**same, "noise_covariance": None, **problem.shared_noise}
        for name, value in expected.items():
            if recorded.get(name) != value:
                raise ValueError(f"{name} must be {value!r} as in the problem, got {recorded.get(name)!r}.")
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
        "networks": tuple(NetworkAccuracy(**each) for each in recorded.get("networks", ())),
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
        devices = ParticipationMask.parse(entry["mask"], num_devices).devices
        row[devices] = True if equal else np.asarray(entry["amplitude"]) / entry["alignment"]
    return Amplitudes(level=np.array([entry["alignment"] for entry in rounds]), share=share)


def _method(recorded: Any, methods: Mapping[str, type[Method]]) -> Method:
    try:
        settings = dict(recorded)
        kind = methods[settings.pop("name")]
    except (TypeError, ValueError, KeyError):
        raise ValueError(f"method must be one of {', '.join(methods)}; got {recorded!r:.80}.") from None
    try:
        return kind(**settings)
    except TypeError:
        raise ValueError(f"method must have the settings of {kind.name}, got {settings!r:.80}.") from None


def check(plan: Plan, recorded: Mapping[str, Any]) -> None:
    """Raise ValueError if a recorded value differs from the one recomputed from the plan."""
    known, adaptive = {"clip_norm": plan.clip_norm, **recorded}, plan.problem.learning.adaptive_clipping
    if known.get("adaptive_clipping") != (None if adaptive is None else asdict(adaptive)):
        raise ValueError(f"adaptive_clipping must be {adaptive}, got {known.get('adaptive_clipping')!r:.80}.")
    if not isinstance(plan.policy, str) or not plan.policy.isprintable():
        raise ValueError(f"policy must be a name, got {plan.policy!r:.80}.")
    if not plan.lower_bound <= plan.bound.total * (1 + _RTOL):
        raise ValueError(f"lower_bound must be at most bound.total, {plan.bound.total!r}; got {plan.lower_bound!r}.")
    for name in _DERIVED:
        value = getattr(plan, name)
        if not math.isclose(value, known[name], rel_tol=_RTOL):
            raise ValueError(f"{name} must be {value!r}, which the plan implies; got {known[name]!r}.")
