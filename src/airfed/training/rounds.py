"""The rounds of a run: records in their order, and columns of them by name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from airfed.training.records import METRICS


class Rounds(Sequence[dict[str, Any]]):
    """The rounds of a run: a sequence of records, and by name a column of all of them."""

    def __init__(self, records: Sequence[dict[str, Any]] = ()) -> None:
        self._records = list(records)

    @overload
    def __getitem__(self, place: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, place: slice) -> list[dict[str, Any]]: ...
    @overload
    def __getitem__(self, place: str) -> NDArray[np.float64]: ...
    def __getitem__(self, place: int | slice | str) -> dict[str, Any] | list[dict[str, Any]] | NDArray[np.float64]:
        """Return a record, or the values of a metric in all rounds (NaN where it was not taken)."""
        if isinstance(place, str):
            if place not in METRICS:
                raise KeyError(f"Expected one of {', '.join(METRICS)}; got {place!r}.")
            column = [record[place] for record in self._records]
            return np.array([np.nan if value is None else value for value in column], dtype=np.float64)
        return self._records[place]

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self._records)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Rounds) and self._records == other._records

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{len(self)} rounds: {', '.join(METRICS)}>"

    def to_pandas(self) -> Any:
        """Return the rounds as a pandas DataFrame, one column per metric."""
        import pandas

        return pandas.DataFrame({name: self[name] for name in METRICS})
