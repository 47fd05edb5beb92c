"""What a policy decides, and what else a plan may say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from numpy.typing import ArrayLike

from airfed.planning.uplink import ALIGNED, Uplink

Average = Literal["none", "tail", "exponential"]
"""Averages of the models that the receiver may take; `airfed.running.averages` says what they are."""
_LONGEST_NOTE: Final = 1000  # characters


@dataclass(frozen=True, kw_only=True, eq=False)
class Decision:
    """What a policy decides. Whatever it leaves open airfed chooses: the largest feasible θ, the best I and ϖ.

    Args:
        scheduled: K, device indices in any order, or one truth value per device.
        alignment: θ, where the policy wants another than the largest that every limit allows.
        rounds: I, where the policy wants another than the best one.
        notes: remarks that a reader of the plan must know.
        uplink: how the updates reach the receiver, where that is not aligned over the air (`airfed.planning.uplink`).

    >>> def strongest_three(problem):
    ...     return Decision(scheduled=problem.fleet.gain.argsort()[-3:], rounds=10)
    >>> from airfed import load, plan
    >>> plan(load("examples/paper.toml").problem(), policy=strongest_three).num_scheduled
    3
    """

    scheduled: ArrayLike
    alignment: float | None = None
    rounds: int | None = None
    notes: tuple[str, ...] = ()
    uplink: Uplink = ALIGNED

    def __post_init__(self) -> None:
        # What a record cannot hold must be told now: later a training would be charged that nobody can read.
        if not isinstance(self.notes, tuple | list) or not all(map(_is_note, self.notes)):
            raise ValueError(
                f"Expected notes to be texts of at most {_LONGEST_NOTE} characters, got {self.notes!r:.80}."
            )
        object.__setattr__(self, "notes", tuple(self.notes))
        if not isinstance(self.uplink, Uplink):
            raise ValueError(f"Expected uplink to be an Uplink, got {self.uplink!r:.80}.")


def _is_note(note: Any) -> bool:
    """Whether a remark is a text that can be written down and read again."""
    return isinstance(note, str) and len(note) <= _LONGEST_NOTE and note.isprintable()
