"""The instructions of the tile layer against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

numba = pytest.importorskip("numba")

from airfed.learning.fused import tile  # noqa: E402

nan = np.nan


@numba.njit
def _all(a, b, g, where, out, pooled, places, values, listed):
    """One function, so that one compilation tests every instruction."""
    zero = np.int64(0)
    t = tile.load(2, 2, 8, a, 3, 40)
    tile.store(t, out, 0, 16)
    tile.store(tile.fill_rows(2, 2, 8, g, 1, 2), out, 32, 16)
    x = tile.load(1, 2, 8, b, 0, zero)
    tile.store(tile.add_outer(t, g, 0, 1, x), out, 64, 16)
    tile.store(tile.add_scaled(t, np.float32(3), b, 1, 20), out, 96, 16)
    tile.store(tile.add(t, tile.zeros(2, 2, 8)), out, 128, 16)
    tile.store(tile.keep_where(t, tile.load(2, 2, 8, b, 5, 7)), out, 160, 16)
    tile.store(tile.rectify(t), out, 192, 16)
    tile.store(tile.transpose(tile.load(8, 1, 8, a, 0, 9)), out, 224, 8)
    tile.pool(g, 0, 20, pooled, places, 0, np.int32(5), np.int32(9))
    first = tile.keep_first(tile.load(1, 1, 8, b, 0, zero), 7)
    n = tile.compress(first, where, 2, np.int32(100), values, listed, 1)
    return tile.total(t), n


def patch(a, i, stride, rows=2, width=16):
    return np.stack([a[i + r * stride : i + r * stride + width] for r in range(rows)])


@pytest.fixture(scope="module")
def result():
    rng = np.random.default_rng(0)
    a, b, g = rng.normal(size=(3, 100)).astype(np.float32)
    b[[1, 4, 6]] = 0, nan, 0  # compress: dead, NaN, dead
    g[[0, 8, 20, 28]] = -1, -2, -3, -0.5  # lane 0: all negative, the maximum is the fourth
    g[[1, 9, 21, 29]] = 2, 2, 1, 2  # lane 1: tied, the first wins
    g[[2, 10, 22, 30]] = 1, 5, 5, 0  # lane 2: tied, the second wins over the third
    g[[3, 11, 23, 31]] = 1, nan, 7, 0  # lane 3: NaN in the second
    g[[4, 12, 24, 32]] = nan, 1, 2, 3  # lane 4: NaN in the first
    g[[5, 13, 25, 33]] = 1, 2, nan, 3  # lane 5: NaN in the third
    a[5], a[45] = nan, 0
    where = np.arange(100, dtype=np.int32) * 10
    out, pooled, values = (np.zeros(n, np.float32) for n in (300, 8, 16))
    places, listed = np.zeros(8, np.int32), np.zeros(16, np.int32)
    total, n = _all(a, b, g, where, out, pooled, places, values, listed)
    return locals()


def test_loads_stores_and_sums(result):
    a, b, g, out = (result[name] for name in ("a", "b", "g", "out"))
    t = patch(a, 3, 40)
    blocks = out[:224].reshape(7, 2, 16)
    same = np.testing.assert_array_equal
    same(blocks[0], t)
    same(blocks[1], np.repeat(g[[1, 3]], 16).reshape(2, 16))
    np.testing.assert_allclose(blocks[2], t + np.outer(g[:2], b[:16]), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(blocks[3], t + 3 * patch(b, 1, 20), rtol=1e-6, atol=1e-6)
    same(blocks[4], t)
    same(blocks[5], np.where(patch(b, 5, 7) != 0, t, 0))
    same(blocks[6], np.where(t <= 0, 0, t))
    assert np.isnan(blocks[6]).any()
    same(out[224:288].reshape(8, 8), patch(a, 0, 9, rows=8, width=8).T)
    assert np.isnan(result["total"])


def test_pooling_takes_the_first_maximum_and_keeps_nan(result):
    g = result["g"]
    pixels = np.stack([g[0:8], g[8:16], g[20:28], g[28:36]])
    np.testing.assert_array_equal(result["pooled"], np.maximum(pixels.max(0), 0))
    index = {0: 5, 1: 6, 2: 14, 3: 15}
    expected = [index[k] for k in pixels.argmax(0)]  # argmax takes the first maximum, and the first NaN
    np.testing.assert_array_equal(result["places"], expected)
    np.testing.assert_array_equal(result["places"][:6], [15, 5, 6, 6, 5, 14])


def test_compress_lists_the_nonzero_entries(result):
    b, values, listed = (result[name] for name in ("b", "values", "listed"))
    live = [0, 2, 3, 4, 5]  # 1 and 6 are zero, 7 is past the count; NaN is not zero
    assert result["n"] == 1 + len(live)
    np.testing.assert_array_equal(values[1:6], b[live])
    np.testing.assert_array_equal(listed[1:6], [100 + 10 * (2 + k) for k in live])


def test_a_tile_of_another_shape_cannot_be_transposed():
    @numba.njit
    def wrong(a):
        tile.store(tile.transpose(tile.load(4, 1, 8, a, 0, 8)), a, 0, 8)

    with pytest.raises(TypeError, match="8 rows"):
        wrong(np.zeros(64, np.float32))
