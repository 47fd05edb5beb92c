"""What the page computes for anyone who opens a link to it.

Built-in models, data sets and policies, and those of the scenario that the page was started with; no file of gains,
and a size that can be planned while somebody waits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from airfed.policies import POLICIES
from airfed.scenario import DATASET_SHAPES, Scenario, ScenarioError
from airfed.scenario.networks import NetworkSection
from airfed.scenario.usercode import MODELS, NETWORK

BUILT_IN: Final = tuple(name for name in MODELS if name != NETWORK)
DATASETS: Final = tuple(DATASET_SHAPES)
MOST_DEVICES: Final = 100_000
MOST_STEPS: Final = 20_000
MOST_GAINS: Final = 2_000_000  # of all rounds, where rounds differ: some seconds
MOST_HEARD: Final = 20_000  # devices times antennas, where a combiner is looked for
MOST_BATTERIES: Final = 40_000  # the same with batteries or several antennas, whose plans take far longer


@dataclass(frozen=True, kw_only=True)
class Own:
    """What the user's own command line may name and a link may not bring in: code to import, files to read.

    Args:
        model, dataset, policy, account, response: of the scenario that the page was started with, None where built in.
        network: its [learning.network], if it has one; its model then reads "network".
        dimension: d of that model on that data set.
    """

    model: str | None = None
    network: NetworkSection | None = None
    dataset: str | None = None
    policy: str | None = None
    account: str | None = None
    response: str | None = None
    dimension: int | None = None


NOTHING_OWN: Final = Own()


def admit(world: Scenario, own: Own = NOTHING_OWN) -> Scenario:
    """Return the scenario if the explorer may compute it for anyone who opens a link to it.

    Raises:
        ScenarioError: it would import code, read a file, or is too large to plan and draw.
    """
    learning = world.learning
    for key, value, known, mine in (
        ("learning.model", learning.model, BUILT_IN, own.model),
        ("learning.network", learning.network, (), own.network),
        ("learning.dataset", learning.dataset, DATASETS, own.dataset),
        ("policy.name", world.policy.name, tuple(POLICIES), own.policy),
        ("policy.response", world.policy.response, (), own.response),
        ("budget.account", world.budget.account, (), own.account),
    ):
        if value is not None and value not in known and value != mine:
            expected = f"Expected {key} to be one of {', '.join(known)}" if known else f"Expected no {key}"
            raise ScenarioError(
                f"{expected} in the explorer; got {value!r} (for one of your own start it with that scenario: "
                "airfed explore SCENARIO.toml)."
            )
    if world.channel.file_keys():
        raise ScenarioError(
            f'Expected no channel.model="{world.channel.model}" here: the explorer reads no files on request.'
        )
    if world.num_devices > MOST_DEVICES:
        raise ScenarioError(f"Expected fleet.num_devices={world.num_devices} <= {MOST_DEVICES} in the explorer.")
    if (antennas := world.link.antennas) > 1 and world.num_devices * antennas > MOST_HEARD:
        raise ScenarioError(
            f"Expected at most {MOST_HEARD:,} devices times link.antennas in the explorer, got {world.num_devices:,} "
            f"times {antennas:,}."
        )
    if learning.total_steps > MOST_STEPS:
        raise ScenarioError(f"Expected learning.total_steps={learning.total_steps} <= {MOST_STEPS} in the explorer.")
    if world.channel.num_gains not in (None, world.num_devices):
        raise ScenarioError(
            f"Expected {world.num_devices} channel.gains (fleet.num_devices), got {world.channel.num_gains}."
        )
    if world.channel.changes or world.budget.device_power is not None:
        _admit_rounds(world)
    return world


def _admit_rounds(world: Scenario) -> None:
    """Refuse what has too many devices times rounds, and times antennas, to be decided round by round.

    Raises:
        ScenarioError: with what to change.
    """
    batteries, antennas = world.budget.device_power is not None, world.link.antennas
    most = MOST_BATTERIES if batteries or antennas > 1 else MOST_GAINS
    rounds = world.policy.rounds or world.learning.total_steps
    if world.num_devices * rounds * antennas > most:
        several = antennas > 1
        raise ScenarioError(
            f"Expected at most {most:,} devices times rounds{' times antennas' if several else ''} in the explorer "
            f"where {'devices have batteries' if batteries else 'gains change'}, got {world.num_devices:,} times "
            f"{rounds:,}{f' times {antennas:,}' if several else ''}; set policy.rounds, or fewer devices"
            f"{', antennas' if several else ''} or learning.total_steps."
        )


def find_own(world: Scenario) -> Own:
    """Return what of the user's own scenario is not built in; its size is found here, once.

    Raises:
        ScenarioError, DataError: the model or the data that would tell is wrong.
    """
    learning = world.learning
    model = None if learning.model in BUILT_IN else learning.model
    dataset = None if learning.dataset in DATASETS else learning.dataset
    policy = None if world.policy.name in POLICIES else world.policy.name
    dimension = None if model is None and dataset is None else world.dimension
    return Own(
        model=model,
        network=learning.network,
        dataset=dataset,
        policy=policy,
        account=world.budget.account,
        response=world.policy.response,
        dimension=dimension,
    )
