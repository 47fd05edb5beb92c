"""The study of candidate networks: page, records and surrogate agree; nothing is trained."""

import pandas as pd
import pytest

import airfed
from studies import networks


@pytest.fixture(scope="module")
def found():
    return pd.read_csv(networks.RECORDS)


def test_the_page_shows_the_records(found):
    assert networks.PAGE.read_text(encoding="utf-8") == networks.markdown(found)
    assert networks.markdown(found.assign(accuracy=found["accuracy"] / 2)) != networks.markdown(found)


def test_seeds_are_paired_and_complete(found):
    scenario = airfed.load(networks.SCENARIO)
    expected = {(epsilon, each.learning.model_title) for epsilon in networks.EPSILONS for each in scenario.candidates}
    for _, own in found.groupby("seed"):
        assert sorted(zip(own["epsilon"], own["network"], strict=True)) == sorted(expected)
    assert sorted(found["seed"].unique()) == list(range(found["seed"].nunique()))
    assert (found["epsilon_total"] <= found["epsilon"]).all()
    assert (found["epsilon_total"] > 0.99 * found["epsilon"]).mean() > 0.5  # others are limited by power


@pytest.mark.parametrize("epsilon", networks.EPSILONS)
def test_the_stored_surrogate_gives_the_plans_and_the_choice(found, epsilon):
    scenario = airfed.load(networks.SCENARIO).override({"budget.epsilon": epsilon})
    plan = scenario.plan()
    own = found[(found["epsilon"] == epsilon) & (found["seed"] == scenario.seed)].set_index("network")
    assert {each.name: each.dimension for each in plan.networks} == own["dimension"].to_dict()
    for each in plan.networks:
        assert each.accuracy == pytest.approx(own["expected"][each.name], abs=1e-6)
    taken = networks.chosen(found).set_index(["epsilon", "seed"]).loc[(epsilon, scenario.seed)]
    assert (taken["network"], taken["rounds"], taken["clip_norm"]) == (
        *(plan.networks[0].name, plan.rounds, plan.clip_norm),
    )
    assert plan.notes == ()  # the proxy data are not the devices' data


def test_a_seed_that_is_not_complete_does_not_count():
    names = ["a", "b"]
    rows = [{"epsilon": 1.0, "network": name, "seed": seed, "accuracy": 0.5} for seed in range(3) for name in names]
    assert set(networks.complete(pd.DataFrame(rows[:-1]), trainings=2)["seed"]) == {0, 1}
    assert networks.complete(pd.DataFrame(rows[:1]), trainings=2).empty


def test_the_page_lists_open_points(found):
    page = networks.markdown(found)
    assert (f"More than {found['seed'].nunique()} of the 10 planned seeds" in page) == (found["seed"].nunique() < 10)
    depends = networks.chosen(found)["network"].nunique() > 1
    assert ("A choice that depends on ε" in page) != depends
