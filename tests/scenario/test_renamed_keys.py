"""Old keys, values and policies are answered with their new names."""

import pytest

from airfed import policies, scenario
from airfed._usercode import RENAMED
from airfed.channel import MODELS
from airfed.scenario import ScenarioError
from airfed.scenario.template import sections

TABLES = {
    "fleet": {"num_devices": 2, "peak_power": 1.0},
    "channel": {"model": "rayleigh"},
    "link": {"noise_std": 1.0},
    "budget": {"epsilon": 1.0, "delta": 1e-3, "total_power": 1.0},
    "learning": {
        **{"model": "quadratic", "dimension": 5, "total_steps": 2, "learning_rate": 0.1, "clip_norm": 1.0},
        **{"smoothness": 10.0, "strong_convexity": 0.1, "initial_gap": 1.0},
    },
}
RING = {"model": "path_loss", "frequency": 2.4e9, "radius": 300.0}
OLD = {
    **{"channel.estimation_error": "csi_error", "channel.estimation_failure": "csi_failure"},
    **{"channel.trust_estimates": "assume_perfect_csi", "channel.coherence": "coherence_rounds"},
    **{"channel.shadowing_coherence": "shadowing_coherence_rounds", "channel.loss": "path_loss_model"},
    **{"link.trust": "adversary", "link.combining": "beamforming"},
    **{"budget.relation": "adjacency", "budget.account": "shared_ledger"},
    **{"policy.response": "surrogate", "run.patience": "process_timeout"},
    **{"link.adversary=radio": "all_antennas", "link.adversary=combiner": "combined"},
    **{"link.beamforming=strongest_eigenvector": "dominant_eigenvector", "link.beamforming=sum": "equal_gain"},
    **{"link.beamforming=one": "antenna_selection", "budget.adjacency=replace": "replace_one"},
    **{"policy.objective=measured": "accuracy", "policy.name=noise_free": "fedavg", "policy.name=central": "dp_fedavg"},
    **{"policy.name=truncated": "truncated_inversion", "policy.name=seif": "artificial_noise"},
}


@pytest.mark.parametrize(("old", "new"), OLD.items())
def test_a_former_name_is_answered_with_the_current_one(old, new):
    name, _, value = old.partition("=")
    table, _, key = name.partition(".")
    tables = {**TABLES, table: {**(RING if key == "loss" else TABLES.get(table, {})), key: value or 1}}
    with pytest.raises(ScenarioError) as caught:
        scenario.parse(tables)
    if value:
        assert str(caught.value) == f"The value {value!r} of {name} is now called {new!r}."
    else:
        assert str(caught.value) == f"The key {name!r} is now called '{table}.{new}'."


def test_every_old_name_is_tried_and_every_new_one_exists():
    declared = {
        f"{table}.{old}": new for table, kind in sections() for old, new in getattr(kind, "renamed", {}).items()
    }
    assert declared | {f"policy.name={old}": new for old, new in RENAMED.items()} == OLD
    assert set(RENAMED.values()) <= policies.EVERY.keys()
    keys = {
        f"{table}.{key}" for table, kind in (*sections(), ("channel", MODELS["path_loss"])) for key in kind.model_fields
    }
    assert {f"{old.partition('.')[0]}.{new}" for old, new in OLD.items() if "=" not in old} <= keys
