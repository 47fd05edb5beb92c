"""Choice of the network: of several candidates, the one whose plan has the highest expected accuracy.

The plan of each candidate is made within the same limits. The noise per coordinate of the mean does not depend on the
dimension d, but its norm grows with √d, and an upload has d or d/2 symbols. The surrogate of each network contains what
this does to its accuracy, so networks without one cannot be compared: nothing is guessed. Nor can networks whose
surrogates are of different data sets, one of which may be easier.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from airfed.keys import ScenarioError
from airfed.planning import Plan
from airfed.planning.surrogate import NetworkAccuracy
from airfed.problem import InfeasibleError, Problem

if TYPE_CHECKING:
    from airfed.scenario.scenario import Scenario


def choose(
    scenario: Scenario, problem: Problem | None = None, *, spent: float | None = None, **arguments: Any
) -> tuple[Scenario, Plan]:
    """Return the scenario with the chosen network, and its plan, which lists all candidates.

    Args:
        scenario: a scenario with candidates.
        problem: a realisation that is already drawn; only candidates of its d are planned.
        spent: μ that the shared ledger has spent; None reads the ledger.
        arguments: of `Scenario.plan`.

    Raises:
        ScenarioError: a candidate has no surrogate or one of other data, or no plan has an expected accuracy.
        InfeasibleError: no candidate has a plan.
    """
    found: list[tuple[float, Scenario, Plan]] = []
    networks: list[NetworkAccuracy] = []
    failures: list[InfeasibleError] = []
    measured: dict[str, str] = {}  # data set of the pilot runs: the first candidate with it
    for each in scenario.candidates:
        title, dimension, accuracy = each.learning.model_title, each.dimension, None
        if problem is not None and problem.learning.dimension != dimension:
            continue
        if each.surrogate is None:
            raise ScenarioError(
                f"No accuracy surrogate fits the candidate {title!r}, so no network can be chosen. "
                f"{scenario.pilot_hint()}"
            )
        measured.setdefault(str(each.surrogate.about.get("dataset")), title)
        if len(measured) > 1:
            (data, name), (other, _) = measured.items()
            raise ScenarioError(
                f"The surrogate of {name!r} is of {data}, that of {title!r} of {other}: accuracies on different data "
                f"cannot be compared, so no network can be chosen. {scenario.pilot_hint()}"
            )
        try:
            plan = each.plan(each.problem(spent=spent) if spent is not None else problem, **arguments)
            if (accuracy := plan.predicted_accuracy) is not None:
                found.append((accuracy, each, plan))
        except InfeasibleError as error:
            failures.append(error)
        networks.append(NetworkAccuracy(title, dimension, accuracy))
    if not networks and problem is not None:
        raise ScenarioError(f"No candidate network has d = {problem.learning.dimension}, as the problem has.")
    if failures and not found:
        raise failures[0]
    if not found:
        raise ScenarioError(
            "No candidate network has an expected accuracy: the policy is not private, or its plans are outside the "
            f"range of the surrogate. Set learning.model to one network. {scenario.pilot_hint()}"
        )
    _, best, plan = max(found, key=lambda entry: entry[0])
    networks.sort(key=lambda network: -1.0 if network.accuracy is None else network.accuracy, reverse=True)
    return best, dataclasses.replace(plan, networks=tuple(networks))
