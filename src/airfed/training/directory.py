"""The run directory: the files of a run (docs/formats.md), from which it can be resumed after any interruption.

Every file is either appended to line by line and flushed, or replaced atomically. No pickle is ever read. This module
writes the files and checks each on its own; `airfed.training.run` checks them together.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import logging
import os
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError

from airfed._disk import flush, locked, sync_directory, write_atomic
from airfed.privacy.ledger import Ledger, LedgerError
from airfed.training import formats
from airfed.training.formats import FORMAT, AuditFigures, Manifest, PlanFigures
from airfed.training.state import Checkpoint, decode, encode

_LOG = logging.getLogger(__name__)
_Checked = TypeVar("_Checked")
_KEPT_CHECKPOINTS: Final = 3
_MAX_FILE_SIZE: Final = 2**28  # bytes; a plan of 10⁶ devices has 60 MB
_MAX_CHECKPOINT_SIZE: Final = 2**33  # bytes
_SECRET_SIZE: Final = 32  # bytes
_MAX_LINE_SIZE: Final = 2**16  # bytes of a round's record
_OWN_FILES: Final = {
    *("scenario.toml", "plan.json", "run.json", "metrics.jsonl", "metrics.csv", "devices.csv", "ledger.jsonl"),
    *("model.safetensors", "secret.key", ".lock"),
}
_HALF_WRITTEN: Final = re.compile(rf"\.({'|'.join(map(re.escape, sorted(_OWN_FILES)))})(\.\d+)?\.part")


class RunError(ValueError):
    """A run directory cannot be used."""


class OtherVersion(RunError):
    """Another version of airfed wrote the run."""


@dataclass(frozen=True)
class RunDirectory:
    """The files of one run. Methods raise `RunError` if a file cannot be read, `OSError` if it cannot be written."""

    path: Path

    def file(self, name: str) -> Path:
        """Return the path of a file in the directory."""
        return self.path / name

    @property
    def exists(self) -> bool:
        """Whether the directory contains a run."""
        return self.file("run.json").is_file()

    def check(self, *, resume: bool) -> None:
        """Raise RunError unless a run can start here or, with `resume`, be resumed. Nothing is written.

        A start that was interrupted before `run.json` counts as no run, unless a round may have been charged.
        """
        if self.path.exists() and not self.path.is_dir():
            raise RunError(f"{self.path} is a file, not a directory. Choose another --out.")
        if self.exists:
            if not resume:
                raise RunError(f"{self.path} already contains a run. Choose another --out, or use --resume.")
            # Before a round is charged that could not be saved.
            for item in (*map(self.file, sorted({*_OWN_FILES, "checkpoints"})), *self._checkpoint_files()):
                kind = "directory" if item.name == "checkpoints" else "file"
                if item.exists() and item.is_dir() != (kind == "directory"):
                    raise RunError(f"{item} must be a {kind}, but it is not. Move it away.")
            return
        if resume and not self.path.is_dir():
            raise RunError(f"There is no run to resume in {self.path}.")
        names = sorted(item.name for item in self.path.iterdir()) if self.path.is_dir() else []
        own = {*_OWN_FILES, "checkpoints"} if ".lock" in names else set()  # without our lock no file is ours
        for name in names:
            if name not in own and not (own and _HALF_WRITTEN.fullmatch(name)):
                raise RunError(f"{self.path} is neither empty nor a run: it contains {name!r}. Choose another --out.")
        if trace := self._trace():
            raise RunError(
                f"{self.path} contains {trace} of charged rounds but no run.json, so it cannot be resumed. "
                "Restore run.json or choose another --out."
            )

    def _trace(self) -> str:
        """Return a file that shows that rounds were charged, in a directory without run.json; "" if there is none."""
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
        """Create the first files, `run.json` last, and return the ledger, whose header has digests of the others."""
        run = json.dumps({"format": FORMAT, **manifest}, indent=1).encode()
        self.file("checkpoints").mkdir(parents=True, exist_ok=True)
        write_atomic(self.file("scenario.toml"), scenario)
        write_atomic(self.file("plan.json"), plan)
        file = self.file("ledger.jsonl")
        file.unlink(missing_ok=True)  # of an interrupted start; `check` made sure that it contains no charge
        ledger = Ledger.create(file, {**ledger_header, "run_sha256": sha256(run)})
        write_atomic(self.file("run.json"), run)
        return ledger

    def new_secret(self) -> bytes:
        """Write and return a new secret, which keys the digests of a private record; only the owner can read it."""
        self.delete_secret()  # of an interrupted start
        secret, flags = secrets.token_bytes(_SECRET_SIZE), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with os.fdopen(os.open(self.file("secret.key"), flags, 0o600), "wb") as stream:
            flush(stream, secret)
        sync_directory(self.path)
        return secret

    def secret(self) -> bytes:
        """Return the secret of a private record; empty after `delete_secret`."""
        if not self.file("secret.key").exists():
            return b""
        secret = self.read("secret.key")
        if len(secret) != _SECRET_SIZE:
            raise RunError(f"{self.file('secret.key')} is damaged.")
        return secret

    def delete_secret(self) -> None:
        """Delete the secret, if there is one."""
        self.file("secret.key").unlink(missing_ok=True)
        sync_directory(self.path)

    def manifest(self) -> Manifest:
        """Return `run.json`; raises `OtherVersion` if another version of airfed wrote the run."""
        file = self.file("run.json")
        if not file.exists():
            raise RunError(f"There is no run in {self.path}: run.json is missing.")
        content = self.read(file.name)
        try:
            form = json.loads(content).get("format")
        except (ValueError, RecursionError, AttributeError):
            raise RunError(f"{file} is damaged.") from None
        if isinstance(form, int) and form != FORMAT:
            version = "airfed 0.2.0 or older" if form < FORMAT else "a later version of airfed"
            raise OtherVersion(f"The run in {self.path} was written by {version}. Use that version to read it.")
        return self._checked(formats.MANIFEST, content, file.name)

    def plan(self) -> PlanFigures:
        """Return `plan.json`."""
        return self._checked(formats.PLAN, self.read("plan.json"), "plan.json")

    def audit(self) -> AuditFigures | None:
        """Return `audit.json`; None if there is no such file."""
        file = self.file("audit.json")
        return self._checked(formats.AUDIT, self.read(file.name), file.name) if file.exists() else None

    def devices(self) -> list[dict[str, float]]:
        """Return the rows of `devices.csv`, the power of each device; empty if there is no such file."""
        file = self.file("devices.csv")
        if not file.exists():
            return []
        try:
            lines = io.StringIO(self.read(file.name).decode())
            read = csv.DictReader(lines, restval="")  # a missing value fails the validation
            rows: list[dict[str, Any]] = [dict(formats.DEVICE.validate_strings(row)) for row in read]
        except (UnicodeDecodeError, csv.Error):
            raise RunError(f"{file} is damaged.") from None
        except ValidationError as error:
            raise RunError(f"{file} is damaged: {formats.describe(error)}.") from None
        if not rows:
            raise RunError(f"{file} is damaged: it contains no device.")
        return rows

    def read(self, name: str) -> bytes:
        """Return the content of a file."""
        file = self.file(name)
        try:
            if not file.is_file():
                raise RunError(f"{file} is {'not a file' if file.exists() else 'missing'}.")
            if file.stat().st_size > _MAX_FILE_SIZE:
                raise RunError(f"{file} must be smaller than {_MAX_FILE_SIZE >> 20} MiB.")
            return file.read_bytes()
        except OSError as error:
            raise RunError(f"Cannot read {file}: {error.strerror}.") from None

    def _checked(self, kind: TypeAdapter[_Checked], content: bytes, name: str) -> _Checked:
        try:
            return kind.validate_json(content)
        except ValidationError as error:
            raise RunError(f"{self.file(name)} is damaged: {formats.describe(error)}.") from None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock this run against other processes; create its directory, and remove it again if it stays empty."""
        new = not self.path.exists()
        with locked_folder(self.path, f"Another process is running in {self.path}."):
            for part in (*self.path.glob(".*.part"), *self.path.glob("checkpoints/.*.part")):  # of interrupted writes
                part.unlink(missing_ok=True)
            try:
                yield
            finally:
                with suppress(OSError):
                    if new and [item.name for item in self.path.iterdir()] == [".lock"]:
                        self.file(".lock").unlink()
                        self.path.rmdir()

    def save(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint atomically, then delete all but the last few."""
        folder = self.file("checkpoints")
        folder.mkdir(exist_ok=True)
        write_atomic(folder / f"round-{checkpoint.round_index:06d}.safetensors", encode(checkpoint))
        for old in self._checkpoint_files()[_KEPT_CHECKPOINTS:]:
            old.unlink(missing_ok=True)

    def latest(self) -> Checkpoint | None:
        """Return the newest intact checkpoint, or None; damaged ones are logged and skipped."""
        for file in self._checkpoint_files():
            try:
                if not file.is_file() or file.stat().st_size > _MAX_CHECKPOINT_SIZE:
                    raise ValueError("it is not a file, or far too large")
                return decode(file.read_bytes())
            except (OSError, ValueError, KeyError, SafetensorError) as error:
                _LOG.warning("checkpoint %s is damaged (%s); trying the one before", file.name, error)
        return None

    def _checkpoint_files(self) -> list[Path]:
        files = self.file("checkpoints").glob("round-*.safetensors")
        return sorted(files, key=lambda file: (len(file.name), file.name), reverse=True)  # newest first

    def append_metrics(self, record: Mapping[str, Any]) -> None:
        """Append one round to `metrics.jsonl` and flush it, so that no checkpoint is ahead of the metrics."""
        with self.file("metrics.jsonl").open("ab") as stream:
            flush(stream, json.dumps(record, allow_nan=False).encode() + b"\n")

    def read_metrics(self) -> list[dict[str, Any]]:
        """Return the recorded rounds; a half-written last line is ignored."""
        file = self.file("metrics.jsonl")
        records: list[dict[str, Any]] = []
        for number, line in enumerate(self._metric_lines(), start=1):
            try:
                record: dict[str, Any] = dict(formats.ROUND.validate_json(line))
            except ValidationError as error:
                raise RunError(f"{file}: line {number} is damaged: {formats.describe(error)}.") from None
            if record["round"] != len(records):
                raise RunError(f"{file}: line {number} contains round {record['round'] + 1} instead of {number}.")
            records.append(record)
        return records

    def rewind_metrics(self, rounds: int) -> None:
        """Remove the rounds from index `rounds` on, which will be trained again."""
        kept = self._metric_lines()[:rounds]
        if len(kept) < rounds:
            raise RunError(f"{self.file('metrics.jsonl')} must contain {rounds} rounds, but contains {len(kept)}.")
        write_atomic(self.file("metrics.jsonl"), b"".join(kept))

    def _metric_lines(self) -> list[bytes]:
        """Return the complete lines of `metrics.jsonl`."""
        content = self.read("metrics.jsonl") if self.file("metrics.jsonl").exists() else b""
        *lines, torn = content.split(b"\n")
        if len(torn) > _MAX_LINE_SIZE or b"\0" in torn:  # not left by an interrupted write
            raise RunError(f"{self.file('metrics.jsonl')}: the content after line {len(lines)} is not a record.")
        return [line + b"\n" for line in lines]

    def finish(self, model: bytes, devices: Sequence[Mapping[str, Any]] = ()) -> None:
        """Write `metrics.csv`, `devices.csv` (if the power of each device is known) and the trained model."""
        rounds = self.read_metrics()
        if rounds:
            write_atomic(self.file("metrics.csv"), csv_text([formats.flat(record) for record in rounds]).encode())
        if devices:
            write_atomic(self.file("devices.csv"), csv_text(devices).encode())
        write_atomic(self.file("model.safetensors"), model)

    def model_digest(self) -> str:
        """Return the SHA-256 of the trained model's file; "" if there is none."""
        file = self.file("model.safetensors")
        try:
            if not file.is_file():
                return ""
            with file.open("rb") as stream:
                return hashlib.file_digest(stream, "sha256").hexdigest()
        except OSError as error:
            raise RunError(f"Cannot read {file}: {error.strerror}.") from None


@contextmanager
def locked_folder(folder: Path, busy: str) -> Iterator[None]:
    """Create a folder, and hold its lock; raise RunError with the sentence `busy` if another process holds it."""
    with ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locked(folder / ".lock"))
        except BlockingIOError:
            raise RunError(busy) from None
        except OSError as error:
            raise RunError(f"Cannot write to {folder}: {error.strerror}. Choose another --out.") from None
        yield


def runs_below(folder: Path, *, depth: int = 3, most: int | None = None) -> list[Path]:
    """Return up to `most` run directories, at most `depth` levels below a folder, sorted by path.

    Hidden directories and links are not followed. A directory that cannot be listed is returned as well.
    """
    found: list[Path] = []

    def note(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):  # deleted meanwhile
            if Path(error.filename) == folder:
                raise error
            found.append(Path(error.filename))

    for path, inner, files in os.walk(folder, onerror=note):
        level = len(Path(path).relative_to(folder).parts)
        run = level > 0 and "run.json" in files
        found += [Path(path)] if run else []
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
