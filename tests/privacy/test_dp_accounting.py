"""ε against Google's dp-accounting, which discretises the privacy loss and rounds it up."""

import math

import pytest

pld = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")

from airfed.privacy import compose, gaussian_epsilon  # noqa: E402 - after the check that there is something to compare to
from airfed.privacy.ledger import Ledger  # noqa: E402

INTERVAL = 1e-3


def oracle(mu, rounds, delta):
    single = pld.from_gaussian_mechanism(
        1.0 / mu, sensitivity=1.0, value_discretization_interval=INTERVAL, use_connect_dots=True
    )
    return single.self_compose(rounds).get_epsilon_for_delta(delta)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-8])
@pytest.mark.parametrize(("mu", "rounds"), [(0.05, 1), (0.5, 1), (2.0, 1), (0.1, 100), (0.3, 25), (0.5, 16)])
def test_epsilon_agrees_with_the_privacy_loss_distribution(mu, rounds, delta):
    ours = gaussian_epsilon(compose(mu, rounds), delta)
    theirs = oracle(mu, rounds, delta)
    assert ours <= theirs * (1 + 1e-9) + 1e-9  # they round up
    assert theirs == pytest.approx(ours, rel=2e-3, abs=INTERVAL)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_ledger_of_unequal_rounds_agrees_too(tmp_path):
    mus = [0.1, 0.4, 0.25, 0.25, 0.6]
    ledger = Ledger.create(tmp_path / "ledger.jsonl", {"delta": 1e-5})
    total = None
    for index, mu in enumerate(mus):
        ledger.charge(index, devices=1, alignment=mu, mu=mu, power=1.0)
        single = pld.from_gaussian_mechanism(1.0 / mu, value_discretization_interval=INTERVAL)
        total = single if total is None else total.compose(single)
    theirs = total.get_epsilon_for_delta(1e-5)
    assert ledger.mu_total == pytest.approx(math.sqrt(sum(mu * mu for mu in mus)), rel=1e-14)
    assert ledger.epsilon_total == pytest.approx(theirs, rel=2e-3)
    assert ledger.epsilon_total <= theirs * (1 + 1e-9)
