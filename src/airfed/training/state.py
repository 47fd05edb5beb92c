"""The state of a training between two rounds: averages of its models, and the checkpoint with its file.

Each average is a running sum of the models after each round, S ← βS + m, divided by the sum of its weights:

- "none": the model itself.
- "tail": the mean over the second half of the rounds, β = 1. In the first half it is the model itself.
- "exponential": all models, with weights that decay by e in I/5 rounds.

The weights depend only on I and the index of the round, never on data.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, get_args

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from airfed.planning import Average

Parameters = NDArray[np.float32]
Sums = Mapping[str, NDArray[np.float64]]

AVERAGES: Final[tuple[Average, ...]] = get_args(Average)
_MEMORY: Final = 5  # time constants of the exponential average in a training
_SUM: Final = "average."  # prefix of the sums' tensor names in a checkpoint


@dataclass(frozen=True, kw_only=True, eq=False)
class Averages:
    """The averages of a training's models so far.

    >>> some = Averages(rounds=4, names=("none", "tail"), latest=np.zeros(1, dtype=np.float32))
    >>> for value in (1.0, 2.0, 3.0, 5.0):
    ...     some = some.after(np.array([value], dtype=np.float32))
    >>> some.model("none").item(), some.model("tail").item()
    (5.0, 4.0)
    """

    rounds: int  # I
    names: tuple[Average, ...]  # the averages to compute
    latest: Parameters  # the initial model, which no average includes, before the first round
    done: int = 0  # rounds
    sums: Sums = field(default_factory=dict)  # by name, only those that have started

    def __post_init__(self) -> None:
        begun = {name for name in self.names if self._weight(name, self.done)}
        if begun != set(self.sums) or any(total.shape != self.latest.shape for total in self.sums.values()):
            raise ValueError(f"sums must be those of the averages {sorted(begun)}, got {sorted(self.sums)}.")

    def after(self, model: Parameters) -> Averages:
        """Return the averages with the model after one more round."""
        wide, sums = model.astype(np.float64), dict[str, NDArray[np.float64]]()
        for name in self.names:
            if self._weight(name, self.done + 1):
                before = self.sums.get(name)
                sums[name] = wide if before is None else wide + self._rule(name)[1] * before
        return replace(self, latest=model, done=self.done + 1, sums=sums)

    def model(self, name: Average) -> Parameters:
        """Return the averaged model; raises ValueError for an average that is not computed."""
        if name not in self.names:
            raise ValueError(f"name must be one of the averages {', '.join(self.names)}; got {name!r}.")
        total = self.sums.get(name)
        return self.latest if total is None else (total / self._weight(name, self.done)).astype(np.float32)

    def _rule(self, name: Average) -> tuple[int, float]:
        """Return the first round that counts, and β."""
        return (self.rounds // 2, 1.0) if name == "tail" else (0, math.exp(-_MEMORY / self.rounds))

    def _weight(self, name: Average, done: int) -> float:
        """Return the sum of the weights after a number of rounds; 0 before the first that counts."""
        first, decay = self._rule(name)
        models = 0 if name == "none" else max(0, done - first)
        return float(models) if decay == 1.0 else math.expm1(models * math.log(decay)) / (decay - 1.0)


@dataclass(frozen=True, kw_only=True, eq=False)
class Checkpoint:
    """The complete state of a training before round `round_index`."""

    round_index: int
    parameters: Parameters
    ledger_head: str  # hash of the ledger's last line when this was saved
    energy: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))  # [W] of each device; empty: not metered
    sums: Sums = field(default_factory=dict)  # `Averages.sums`
    clip_norm: float | None = None  # ϖ of the round, with adaptive clipping


def encode(checkpoint: Checkpoint) -> bytes:
    """Return the file of a checkpoint."""
    metadata = {"round": str(checkpoint.round_index), "ledger_head": checkpoint.ledger_head}
    if checkpoint.clip_norm is not None:
        metadata["clip_norm"] = checkpoint.clip_norm.hex()
    tensors: dict[str, NDArray[Any]] = {"parameters": checkpoint.parameters, "energy": checkpoint.energy}
    tensors |= {f"{_SUM}{name}": total for name, total in checkpoint.sums.items()}
    metadata["sha256"] = _checksum(metadata, tensors)
    return tensor_file(tensors, metadata)


def tensor_file(tensors: Mapping[str, NDArray[np.floating]], metadata: dict[str, str]) -> bytes:
    """Return the safetensors file with reproducible bytes: the library shuffles the metadata at every call."""
    content = save_tensors(dict(tensors), metadata)
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.dumps(json.loads(content[8:end]), sort_keys=True, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)  # tensors are aligned
    return len(header).to_bytes(8, "little") + header + content[end:]


def decode(content: bytes) -> Checkpoint:
    """Return the checkpoint of a file; raises ValueError, KeyError or SafetensorError if it is damaged."""
    tensors = load_tensors(content)  # validates the header
    header_size = int.from_bytes(content[:8], "little")
    metadata = json.loads(content[8 : 8 + header_size]).get("__metadata__") or {}
    claimed = metadata.pop("sha256", None)
    sums = {name.removeprefix(_SUM): tensor for name, tensor in tensors.items() if name.startswith(_SUM)}
    if len(tensors) != 2 + len(sums) or _checksum(metadata, tensors) != claimed:
        raise ValueError("its checksum does not match")
    index, parameters, energy = int(metadata["round"]), tensors["parameters"], tensors["energy"]
    kinds = {(array.dtype, array.ndim) for array in (energy, *sums.values())}
    fits = (parameters.dtype, parameters.ndim) == (np.dtype(np.float32), 1) and kinds == {(np.dtype(np.float64), 1)}
    if index < 0 or not fits or not all(np.isfinite(array).all() for array in tensors.values()):
        raise ValueError("it is not a checkpoint of a run")
    head, norm = metadata["ledger_head"], metadata.get("clip_norm")
    clip_norm = None if norm is None else float.fromhex(norm)
    return Checkpoint(
        round_index=index, ledger_head=head, parameters=parameters, energy=energy, sums=sums, clip_norm=clip_norm
    )


def _checksum(metadata: dict[str, str], tensors: Mapping[str, NDArray[np.floating]]) -> str:
    digest = hashlib.sha256(json.dumps(metadata, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tensor.shape}".encode())
        digest.update(tensor.tobytes())
    return digest.hexdigest()
