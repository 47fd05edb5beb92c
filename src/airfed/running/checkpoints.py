"""The state of a training between two rounds, and its file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors


@dataclass(frozen=True, kw_only=True, eq=False)
class Checkpoint:
    """The state before round `round_index`: with it, and nothing else, training goes on.

    Args:
        round_index: the next round, 0 before the first.
        parameters: the global model, float32.
        ledger_head: hash of the ledger's last line when this was saved.
        average: sum of the models of the tail so far, where the receiver averages them; empty before.
        energy: [W] that each scheduled device has transmitted so far; empty where it is not metered device by device.
    """

    round_index: int
    parameters: NDArray[np.float32]
    ledger_head: str
    energy: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    average: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))


def encode(checkpoint: Checkpoint) -> bytes:
    """Return the file of a checkpoint."""
    metadata = {"round": str(checkpoint.round_index), "ledger_head": checkpoint.ledger_head}
    tensors: dict[str, NDArray[Any]] = {"parameters": checkpoint.parameters, "energy": checkpoint.energy}
    if checkpoint.average.size:
        tensors["average"] = checkpoint.average
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
    if set(tensors) - {"average"} != {"parameters", "energy"} or _checksum(metadata, tensors) != claimed:
        raise ValueError("its checksum does not match")
    index, wide = int(metadata["round"]), {"energy": tensors["energy"], "average": tensors.get("average", np.empty(0))}
    parameters = tensors["parameters"]
    kinds = {(array.dtype, array.ndim) for array in wide.values()}
    fits = (parameters.dtype, parameters.ndim) == (np.dtype(np.float32), 1) and kinds == {(np.dtype(np.float64), 1)}
    if index < 0 or not fits or not _all_finite(parameters, *wide.values()):
        raise ValueError("it is not what a run saves")
    if wide["average"].size not in (0, parameters.size):
        raise ValueError("it is not what a run saves")
    return Checkpoint(round_index=index, ledger_head=metadata["ledger_head"], parameters=parameters, **wide)


def _all_finite(*arrays: NDArray[np.floating]) -> bool:
    return all(bool(np.isfinite(array).all()) for array in arrays)


def _checksum(metadata: dict[str, str], tensors: Mapping[str, NDArray[np.floating]]) -> str:
    digest = hashlib.sha256(json.dumps(metadata, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tensor.shape}".encode())
        digest.update(tensor.tobytes())
    return digest.hexdigest()
