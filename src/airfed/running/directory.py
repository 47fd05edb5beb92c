"""A run on disk: what was decided, what happened, and enough to go on after any interruption.

A run directory holds `scenario.toml` (as resolved), `plan.json`, `run.json` (versions and digests), `metrics.jsonl`,
`metrics.csv`, `devices.csv`, `ledger.jsonl`, `model.safetensors` and `checkpoints/`. Every file is either appended to
line by line and flushed, or replaced whole: written beside its place, flushed to the disk and renamed. No pickle is
ever read.
"""

from __future__ import annotations

import csv
import fcntl
import hashlib
import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

_LOG = logging.getLogger(__name__)
_KEPT_CHECKPOINTS: Final = 3
FORMAT: Final = 1  # of the run directory; raised when an older airfed could misread it


class RunError(ValueError):
    """A run directory cannot be used as asked; the message is the user's."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Checkpoint:
    """The state before round `round_index`: with it, and nothing else, training goes on.

    Args:
        round_index: the next round, 0 before the first.
        parameters: the global model, float32.
        ledger_head: hash of the ledger's last line when this was saved.
        energy: [W] that each scheduled device has transmitted so far; empty where it is not metered device by device.
    """

    round_index: int
    parameters: NDArray[np.float32]
    ledger_head: str
    energy: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))


@dataclass(frozen=True)
class RunDirectory:
    """The files of one run."""

    path: Path

    def file(self, name: str) -> Path:
        """Return the path of a file in the directory."""
        return self.path / name

    @property
    def exists(self) -> bool:
        """Whether a run was begun here."""
        return self.file("run.json").is_file()

    def check(self, *, resume: bool) -> None:
        """Raise unless a run can begin here or, with `resume`, go on. Nothing is written.

        A beginning that was cut short before `run.json` counts as none: there is nothing to lose, so both may.

        Raises:
            RunError: a run is here already, there is none to resume, or the folder holds something else.
        """
        if self.path.exists() and not self.path.is_dir():
            raise RunError(f"Expected {self.path} to be a folder; it is a file.")
        if self.exists:
            if not resume:
                raise RunError(f"Expected no run in {self.path}; give another --out, or --resume to go on with it.")
            return
        if resume and not self.path.is_dir():
            raise RunError(f"Expected a run to resume in {self.path}; there is none.")
        found = sorted(item.name for item in self.path.iterdir()) if self.path.is_dir() else []
        # Without our lock even a scenario.toml is somebody else's.
        ours = _OWN_FILES | {f".{name}.part" for name in _OWN_FILES} if ".lock" in found else set()
        strangers = [name for name in found if name not in ours]
        if strangers:
            raise RunError(f"Expected {self.path} to be empty or a run; it holds {strangers[0]!r}.")

    def begin(self, *, scenario: str, plan: dict[str, Any], manifest: dict[str, Any]) -> None:
        """Create the directory with its first files; `run.json` comes last and marks the run as begun.

        Raises:
            OSError: it cannot be written.
        """
        self.file("checkpoints").mkdir(parents=True, exist_ok=True)
        for name in ("metrics.jsonl", "metrics.csv", "devices.csv", "ledger.jsonl", "model.safetensors"):
            self.file(name).unlink(missing_ok=True)  # left by a beginning that never got as far as run.json
        write_whole(self.file("scenario.toml"), scenario.encode())
        write_whole(self.file("plan.json"), json.dumps(plan).encode())
        write_whole(self.file("run.json"), json.dumps({"format": FORMAT, **manifest}, indent=1).encode())

    def manifest(self) -> dict[str, Any]:
        """Return `run.json`.

        Raises:
            RunError: it is missing, damaged, or of another format.
        """
        try:
            content = json.loads(self.file("run.json").read_bytes())
        except FileNotFoundError:
            raise RunError(f"Expected a run in {self.path}; there is none.") from None
        except (OSError, ValueError) as error:
            raise RunError(f"Cannot read {self.file('run.json')}: {error}.") from None
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise RunError(f"Expected a run of format {FORMAT} in {self.path}; this one is of another version.")
        return content

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from writing to this run; make its folder if there is none.

        Raises:
            RunError: another process is at it, or the folder cannot be written.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            stream = self.file(".lock").open("w")
        except OSError as error:
            raise RunError(f"Cannot write to {self.path}: {error.strerror}. Give another --out.") from None
        with stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RunError(f"Another process is running in {self.path}.") from None
            for left in (*self.path.glob(".*.part"), *self.path.glob("checkpoints/.*.part")):  # by a kill in mid-write
                left.unlink(missing_ok=True)
            yield

    def save(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint whole, then forget all but the last few.

        Raises:
            OSError: the disk is full or the like; the older checkpoints are untouched.
        """
        folder = self.file("checkpoints")
        write_whole(folder / f"round-{checkpoint.round_index:06d}.safetensors", _encode(checkpoint))
        for old in self._checkpoint_files()[_KEPT_CHECKPOINTS:]:
            old.unlink(missing_ok=True)

    def latest(self) -> Checkpoint | None:
        """Return the newest checkpoint that is intact, or None; damaged ones are reported and passed over."""
        for file in self._checkpoint_files():
            try:
                return _decode(file.read_bytes())
            except (OSError, ValueError, KeyError, SafetensorError) as error:
                _LOG.warning("checkpoint %s is damaged (%s); trying the one before", file.name, error)
        return None

    def _checkpoint_files(self) -> list[Path]:
        found = self.file("checkpoints").glob("round-*.safetensors")
        return sorted(found, key=lambda file: (len(file.name), file.name), reverse=True)  # newest first, past 10⁶ too

    def append_metrics(self, record: dict[str, Any]) -> None:
        """Add one round to `metrics.jsonl`; on return it is on the disk, so that no checkpoint is ahead of it.

        Raises:
            ValueError: a number is not finite.
        """
        with self.file("metrics.jsonl").open("ab") as stream:
            _write(stream, json.dumps(record, allow_nan=False).encode() + b"\n")

    def read_metrics(self) -> list[dict[str, Any]]:
        """Return the rounds recorded so far.

        Raises:
            RunError: a line is damaged (a half-written last line, which a crash leaves, is passed over).
        """
        file = self.file("metrics.jsonl")
        lines = file.read_bytes().splitlines(keepends=True) if file.is_file() else []
        records = []
        for number, line in enumerate(lines, start=1):
            if number == len(lines) and not line.endswith(b"\n"):
                break
            try:
                records.append(json.loads(line))
            except ValueError:
                raise RunError(f"{file}: line {number} is damaged.") from None
        return records

    def rewind_metrics(self, rounds: int) -> None:
        """Forget the rounds from number `rounds` on: they will be trained again.

        Raises:
            RunError: a round before that is missing.
        """
        kept = [record for record in self.read_metrics() if record["round"] < rounds]
        if [record["round"] for record in kept] != list(range(rounds)):
            raise RunError(f"Expected {self.file('metrics.jsonl')} to hold rounds 0 to {rounds - 1}; some are gone.")
        write_whole(self.file("metrics.jsonl"), "".join(json.dumps(record) + "\n" for record in kept).encode())

    def finish(
        self,
        parameters: dict[str, NDArray[np.float32]],
        metadata: dict[str, str],
        devices: Sequence[dict[str, Any]] = (),
    ) -> None:
        """Write `metrics.csv`, the trained model, and what each device transmitted (`devices.csv`, if it is known)."""
        records = self.read_metrics()
        if records:
            write_whole(self.file("metrics.csv"), _csv(records))
        if devices:
            write_whole(self.file("devices.csv"), _csv(devices))
        write_whole(self.file("model.safetensors"), _tensors(parameters, metadata))


_OWN_FILES: Final = {
    "scenario.toml",
    "plan.json",
    "run.json",
    "metrics.jsonl",
    "metrics.csv",
    "devices.csv",
    "ledger.jsonl",
    "model.safetensors",
    "checkpoints",
    ".lock",
}


def write_whole(path: Path, content: bytes) -> None:
    """Replace a file by new content, whole or not at all, whatever happens meanwhile."""
    beside = path.with_name(f".{path.name}.part")
    try:
        with beside.open("wb") as stream:
            _write(stream, content)
        beside.replace(path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _write(stream: IO[bytes], content: bytes) -> None:
    stream.write(content)
    stream.flush()
    os.fsync(stream.fileno())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _encode(checkpoint: Checkpoint) -> bytes:
    metadata = {"round": str(checkpoint.round_index), "ledger_head": checkpoint.ledger_head}
    tensors: dict[str, NDArray[Any]] = {"parameters": checkpoint.parameters, "energy": checkpoint.energy}
    metadata["sha256"] = _checksum(metadata, tensors)
    return _tensors(tensors, metadata)


def _tensors(tensors: Mapping[str, NDArray[np.floating]], metadata: dict[str, str]) -> bytes:
    """The safetensors file, always with the same bytes: the library shuffles the metadata at every call."""
    content = save_tensors(dict(tensors), metadata)
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.dumps(json.loads(content[8:end]), sort_keys=True, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)  # tensors are aligned
    return len(header).to_bytes(8, "little") + header + content[end:]


def _decode(content: bytes) -> Checkpoint:
    tensors = load_tensors(content)  # checks the header: what follows is a file that safetensors could have written
    header_size = int.from_bytes(content[:8], "little")
    metadata = json.loads(content[8 : 8 + header_size]).get("__metadata__") or {}
    claimed = metadata.pop("sha256", None)
    if set(tensors) != {"parameters", "energy"} or _checksum(metadata, tensors) != claimed:
        raise ValueError("its checksum does not match")
    return Checkpoint(round_index=int(metadata["round"]), ledger_head=metadata["ledger_head"], **tensors)


def _checksum(metadata: dict[str, str], tensors: Mapping[str, NDArray[np.floating]]) -> str:
    digest = hashlib.sha256(json.dumps(metadata, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tensor.shape}".encode())
        digest.update(tensor.tobytes())
    return digest.hexdigest()


def _csv(records: Sequence[dict[str, Any]]) -> bytes:
    from io import StringIO

    text = StringIO()
    writer = csv.DictWriter(text, fieldnames=list(records[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue().encode()
