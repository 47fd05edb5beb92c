"""A run on disk: what was decided, what happened, and enough to resume after any interruption.

A run directory holds `scenario.toml` (as resolved), `plan.json`, `run.json` (versions and digests), `metrics.jsonl`,
`metrics.csv`, `devices.csv`, `ledger.jsonl`, `model.safetensors` and `checkpoints/`. Every file is either appended to
line by line and flushed, or replaced whole: written beside its place, flushed to the disk and renamed. No pickle is
ever read. This module writes the files and checks each on its own; `airfed.training.run` checks them together.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError

from airfed._disk import flush, locked, write_whole
from airfed.privacy.ledger import Ledger, LedgerError
from airfed.training import formats
from airfed.training.formats import FORMAT, Manifest, PlanFigures
from airfed.training.state import Checkpoint, decode, encode

_LOG = logging.getLogger(__name__)
_Checked = TypeVar("_Checked")
_KEPT_CHECKPOINTS: Final = 3
_LARGEST: Final = 2**28  # bytes of a file that is read as a whole; a plan of 10⁶ devices has 60 MB
_LARGEST_CHECKPOINT: Final = 2**33  # bytes
_LONGEST_LINE: Final = 2**16  # bytes of a round's record
_OWN_FILES: Final = {
    *("scenario.toml", "plan.json", "run.json", "metrics.jsonl", "metrics.csv", "devices.csv", "ledger.jsonl"),
    *("model.safetensors", ".lock"),
}
_HALF_WRITTEN: Final = re.compile(rf"\.({'|'.join(map(re.escape, sorted(_OWN_FILES)))})(\.\d+)?\.part")


class RunError(ValueError):
    """A run directory cannot be used as asked; the message is the user's."""


class OtherVersion(RunError):
    """Another version of airfed made the run."""


@dataclass(frozen=True)
class RunDirectory:
    """The files of one run. What cannot be read raises `RunError`, what cannot be written `OSError`."""

    path: Path

    def file(self, name: str) -> Path:
        """Return the path of a file in the directory."""
        return self.path / name

    @property
    def exists(self) -> bool:
        """Whether a run was begun here."""
        return self.file("run.json").is_file()

    def check(self, *, resume: bool) -> None:
        """Raise RunError unless a run can begin here or, with `resume`, go on. Nothing is written.

        A beginning that was cut short before `run.json` counts as none, unless anything in it speaks of a round.
        """
        if self.path.exists() and not self.path.is_dir():
            raise RunError(f"Expected {self.path} to be a folder; it is a file.")
        if self.exists:
            if not resume:
                raise RunError(f"Expected no run in {self.path}; give another --out, or --resume to go on with it.")
            # Before a round is charged that could not be saved.
            for item in (*map(self.file, sorted({*_OWN_FILES, "checkpoints"})), *self._checkpoint_files()):
                kind = "folder" if item.name == "checkpoints" else "file"
                if item.exists() and item.is_dir() != (kind == "folder"):
                    raise RunError(f"Expected {item} to be a {kind}; it is none. Move it away.")
            return
        if resume and not self.path.is_dir():
            raise RunError(f"Expected a run to resume in {self.path}; there is none.")
        found = sorted(item.name for item in self.path.iterdir()) if self.path.is_dir() else []
        own = {*_OWN_FILES, "checkpoints"} if ".lock" in found else set()  # without our lock all are somebody else's
        for name in found:
            if name not in own and not (own and _HALF_WRITTEN.fullmatch(name)):
                raise RunError(f"Expected {self.path} to be empty or a run; it holds {name!r}.")
        if trace := self._trace():
            raise RunError(
                f"Expected run.json beside {trace} in {self.path}: what was spent there cannot be gone on with, and "
                "must not be forgotten. Bring run.json back, or give another --out."
            )

    def _trace(self) -> str:
        """What a run has left that got further than its beginning, in a directory without run.json; "" for nothing."""
        for name in ("model.safetensors", "metrics.jsonl", "metrics.csv", "devices.csv"):
            if self.file(name).exists() or self.file(name).is_symlink():
                return name
        if self._checkpoint_files():
            return "checkpoints"
        ledger = self.file("ledger.jsonl")
        try:
            used = (ledger.exists() or ledger.is_symlink()) and bool(Ledger.load(ledger).charges)
        except LedgerError:
            used = True
        return ledger.name if used else ""

    def begin(
        self, *, scenario: bytes, plan: bytes, manifest: Mapping[str, Any], ledger_header: Mapping[str, Any]
    ) -> Ledger:
        """Create the first files, and return the ledger, whose first line holds the digests of the others.

        `run.json` comes last: then the run has begun.
        """
        run = json.dumps({"format": FORMAT, **manifest}, indent=1).encode()
        self.file("checkpoints").mkdir(parents=True, exist_ok=True)
        write_whole(self.file("scenario.toml"), scenario)
        write_whole(self.file("plan.json"), plan)
        file = self.file("ledger.jsonl")
        file.unlink(missing_ok=True)  # of a beginning cut short; `check` has seen that nothing is charged in it
        ledger = Ledger.create(file, {**ledger_header, "run_sha256": sha256(run)})
        write_whole(self.file("run.json"), run)
        return ledger

    def manifest(self) -> Manifest:
        """Return `run.json`; raises `OtherVersion` where another version of airfed made the run."""
        file = self.file("run.json")
        if not file.exists():
            raise RunError(f"Expected a run in {self.path}; there is none.")
        content = self.read(file.name)
        try:
            form = json.loads(content).get("format")
        except (ValueError, RecursionError, AttributeError):
            raise RunError(f"Cannot read {file}: it is damaged.") from None
        if isinstance(form, int) and form != FORMAT:
            version = "airfed 0.2.0 or older" if form < FORMAT else "a later version of airfed"
            raise OtherVersion(f"The run in {self.path} was made by {version}, and can be read by that version.")
        return self._checked(formats.MANIFEST, content, file.name)

    def plan(self) -> PlanFigures:
        """Return `plan.json`."""
        return self._checked(formats.PLAN, self.read("plan.json"), "plan.json")

    def devices(self) -> list[dict[str, float]]:
        """Return what each device has transmitted, as `devices.csv` says; empty where there is none."""
        file = self.file("devices.csv")
        if not file.exists():
            return []
        try:
            lines = io.StringIO(self.read(file.name).decode())
            read = csv.DictReader(lines, restval="")  # a cell that is missing is no number, and is named
            rows: list[dict[str, Any]] = [dict(formats.DEVICE.validate_strings(row)) for row in read]
        except (UnicodeDecodeError, csv.Error):
            raise RunError(f"{file} is damaged.") from None
        except ValidationError as error:
            raise RunError(f"{file} is damaged: {formats.complaint(error)}.") from None
        if not rows:
            raise RunError(f"{file} is damaged: it names no device.")
        return rows

    def read(self, name: str) -> bytes:
        """Return the content of a file."""
        file = self.file(name)
        try:
            if not file.is_file():
                raise RunError(f"Expected a file at {file}; {'this is none' if file.exists() else 'it is missing'}.")
            if file.stat().st_size > _LARGEST:
                raise RunError(f"Expected {file} to be smaller than {_LARGEST >> 20} MiB.")
            return file.read_bytes()
        except OSError as error:
            raise RunError(f"Cannot read {file}: {error.strerror}.") from None

    def _checked(self, kind: TypeAdapter[_Checked], content: bytes, name: str) -> _Checked:
        try:
            return kind.validate_json(content)
        except ValidationError as error:
            raise RunError(f"{self.file(name)} is damaged: {formats.complaint(error)}.") from None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from writing to this run; make its folder, and remove it again if nothing is written."""
        with ExitStack() as stack:
            new = not self.path.exists()
            try:
                self.path.mkdir(parents=True, exist_ok=True)
                stack.enter_context(locked(self.file(".lock")))
            except BlockingIOError:
                raise RunError(f"Another process is running in {self.path}.") from None
            except OSError as error:
                raise RunError(f"Cannot write to {self.path}: {error.strerror}. Give another --out.") from None
            for left in (*self.path.glob(".*.part"), *self.path.glob("checkpoints/.*.part")):  # by a kill in mid-write
                left.unlink(missing_ok=True)
            try:
                yield
            finally:
                with suppress(OSError):
                    if new and [item.name for item in self.path.iterdir()] == [".lock"]:
                        self.file(".lock").unlink()
                        self.path.rmdir()

    def save(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint whole, then forget all but the last few."""
        folder = self.file("checkpoints")
        folder.mkdir(exist_ok=True)
        write_whole(folder / f"round-{checkpoint.round_index:06d}.safetensors", encode(checkpoint))
        for old in self._checkpoint_files()[_KEPT_CHECKPOINTS:]:
            old.unlink(missing_ok=True)

    def latest(self) -> Checkpoint | None:
        """Return the newest checkpoint that is intact, or None; damaged ones are reported and passed over."""
        for file in self._checkpoint_files():
            try:
                if not file.is_file() or file.stat().st_size > _LARGEST_CHECKPOINT:
                    raise ValueError("it is no file, or far too large")
                return decode(file.read_bytes())
            except (OSError, ValueError, KeyError, SafetensorError) as error:
                _LOG.warning("checkpoint %s is damaged (%s); trying the one before", file.name, error)
        return None

    def _checkpoint_files(self) -> list[Path]:
        found = self.file("checkpoints").glob("round-*.safetensors")
        return sorted(found, key=lambda file: (len(file.name), file.name), reverse=True)  # newest first, past 10⁶ too

    def append_metrics(self, record: Mapping[str, Any]) -> None:
        """Add one round to `metrics.jsonl`; on return it is on the disk, so that no checkpoint is ahead of it."""
        with self.file("metrics.jsonl").open("ab") as stream:
            flush(stream, json.dumps(record, allow_nan=False).encode() + b"\n")

    def read_metrics(self) -> list[dict[str, Any]]:
        """Return the rounds recorded so far; a half-written last line, which a crash leaves, is passed over."""
        file = self.file("metrics.jsonl")
        found: list[dict[str, Any]] = []
        for number, line in enumerate(self._metric_lines(), start=1):
            try:
                record: dict[str, Any] = dict(formats.ROUND.validate_json(line))
            except ValidationError as error:
                raise RunError(f"{file}: line {number} is damaged: {formats.complaint(error)}.") from None
            if record["round"] != len(found):
                raise RunError(f"{file}: line {number} is of round {record['round'] + 1}, not of round {number}.")
            found.append(record)
        return found

    def rewind_metrics(self, rounds: int) -> None:
        """Forget the rounds from number `rounds` on: they will be trained again."""
        kept = self._metric_lines()[:rounds]
        if len(kept) < rounds:
            raise RunError(f"Expected {rounds} rounds in {self.file('metrics.jsonl')}; it holds {len(kept)}.")
        write_whole(self.file("metrics.jsonl"), b"".join(kept))

    def _metric_lines(self) -> list[bytes]:
        """The complete lines of `metrics.jsonl`."""
        content = self.read("metrics.jsonl") if self.file("metrics.jsonl").exists() else b""
        *lines, torn = content.split(b"\n")
        if len(torn) > _LONGEST_LINE or b"\0" in torn:  # no crash of ours leaves that
            raise RunError(f"{self.file('metrics.jsonl')}: what follows line {len(lines)} is no record.")
        return [line + b"\n" for line in lines]

    def finish(self, model: bytes, devices: Sequence[Mapping[str, Any]] = ()) -> None:
        """Write `metrics.csv`, what each device transmitted (`devices.csv`, if it is known), and the trained model."""
        rounds = self.read_metrics()
        if rounds:
            write_whole(self.file("metrics.csv"), csv_text([formats.flat(record) for record in rounds]).encode())
        if devices:
            write_whole(self.file("devices.csv"), csv_text(devices).encode())
        write_whole(self.file("model.safetensors"), model)

    def model_digest(self) -> str:
        """Return the SHA-256 of the trained model's file; "" where there is none."""
        file = self.file("model.safetensors")
        try:
            if not file.is_file():
                return ""
            with file.open("rb") as stream:
                return hashlib.file_digest(stream, "sha256").hexdigest()
        except OSError as error:
            raise RunError(f"Cannot read {file}: {error.strerror}.") from None


def runs_below(folder: Path, *, depth: int = 3, most: int | None = None) -> list[Path]:
    """Return the run directories up to `depth` levels below a folder, by their paths; `most` ends the search.

    Hidden folders and links are not followed. A folder below that cannot be listed is returned as well: there may be a
    run in it. Where the folder itself cannot be listed, OSError is raised.
    """
    found: list[Path] = []

    def note(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):  # gone since it was found
            if Path(error.filename) == folder:
                raise error
            found.append(Path(error.filename))

    for place, inner, files in os.walk(folder, onerror=note):
        level = len(Path(place).relative_to(folder).parts)
        run = level > 0 and "run.json" in files
        found += [Path(place)] if run else []
        inner[:] = [] if run or level == depth else [name for name in inner if not name.startswith(".")]
        if most is not None and len(found) >= most:
            break
    return sorted(found)


def sha256(content: bytes) -> str:
    """Return the digest of a file's content."""
    return hashlib.sha256(content).hexdigest()


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows of plain values as CSV, the columns in the order in which they first appear."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=dict.fromkeys(name for row in rows for name in row), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
