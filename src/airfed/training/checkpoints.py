"""The state of a training between two rounds, and its file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

_SUM: Final = "average."  # and its name


@dataclass(frozen=True, kw_only=True, eq=False)
class Checkpoint:
    """The state before round `round_index`: with it, and nothing else, training goes on.

    Args:
        round_index: the next round, 0 before the first.
        parameters: the global model, float32.
        ledger_head: hash of the ledger's last line when this was saved.
        sums: of the models so far, by the name of the average (`Averages.sums`).
        energy: [W] that each scheduled device has transmitted so far; empty where it is not metered device by device.
    """

    round_index: int
    parameters: NDArray[np.float32]
    ledger_head: str
    energy: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    sums: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)


def encode(checkpoint: Checkpoint) -> bytes:
    """Return the file of a checkpoint."""
    metadata = {"round": str(checkpoint.round_index), "ledger_head": checkpoint.ledger_head}
    tensors: dict[str, NDArray[Any]] = {"parameters": checkpoint.parameters, "energy": checkpoint.energy}
    tensors |= {f"{_SUM}{name}": total for name, total in checkpoint.sums.items()}
    metadata["sha256"] = _checksum(metadata, tensors)
    return tensor_file(tensors, metadata)


def tensor_file(tensors: Mapping[str, NDArray[np.floating]], metadata: dict[str, str]) -> bytes:
    """Return the safetensors file, always with the same bytes: the library shuffles the metadata at every call."""
    content = save_tensors(dict(tensors), metadata)
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.dumps(json.loads(content[8:end]), sort_keys=True, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)  # tensors are aligned
    return len(header).to_bytes(8, "little") + header + content[end:]


def decode(content: bytes) -> Checkpoint:
    """Return the checkpoint of a file.

    Raises:
        ValueError, KeyError, SafetensorError: it is damaged, or not what a run saves.
    """
    tensors = load_tensors(content)  # checks the header: what follows is a file that safetensors could have written
    header_size = int.from_bytes(content[:8], "little")
    metadata = json.loads(content[8 : 8 + header_size]).get("__metadata__") or {}
    claimed = metadata.pop("sha256", None)
    sums = {name.removeprefix(_SUM): tensor for name, tensor in tensors.items() if name.startswith(_SUM)}
    if len(tensors) != 2 + len(sums) or _checksum(metadata, tensors) != claimed:
        raise ValueError("its checksum does not match")
    index, parameters, energy = int(metadata["round"]), tensors["parameters"], tensors["energy"]
    kinds = {(array.dtype, array.ndim) for array in (energy, *sums.values())}
    fits = (parameters.dtype, parameters.ndim) == (np.dtype(np.float32), 1) and kinds == {(np.dtype(np.float64), 1)}
    if index < 0 or not fits or not _all_finite(parameters, energy, *sums.values()):
        raise ValueError("it is not what a run saves")
    head = metadata["ledger_head"]
    return Checkpoint(round_index=index, ledger_head=head, parameters=parameters, energy=energy, sums=sums)


def _all_finite(*arrays: NDArray[np.floating]) -> bool:
    return all(bool(np.isfinite(array).all()) for array in arrays)


def _checksum(metadata: dict[str, str], tensors: Mapping[str, NDArray[np.floating]]) -> str:
    digest = hashlib.sha256(json.dumps(metadata, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tensor.shape}".encode())
        digest.update(tensor.tobytes())
    return digest.hexdigest()
