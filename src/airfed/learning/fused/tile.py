"""The register tile: a small matrix of float32 that lives in vector registers, as a value of compiled code.

A `Tile` has rows × columns vectors of `lanes` floats, all compile-time constants. Kernels load one, add products to it
in a loop and store it; plain loops over arrays reach a quarter of this speed, because LLVM does not find the register
blocking by itself. Memory is addressed as in C: `a` is a pointer, `i` counts elements, nothing is checked.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils as _cgutils
from numba.extending import intrinsic as _intrinsic
from numba.extending import models, overload, register_model

Function = TypeVar("Function", bound=Callable[..., Any])
Build = tuple[Any, Callable[..., Any]]
Count = int | np.int64
Real = float | np.float32

cgutils: Any = _cgutils  # numba types only a part of its interface

FLOAT, INT, PLACE = ir.FloatType(), ir.IntType(32), types.int64
CONTRACT = ("contract",)  # multiply-add may round once; nothing else is relaxed, so NaN and Inf stay what they are
OPTIONS: dict[str, Any] = {
    "nogil": True,
    "boundscheck": False,
    "error_model": "numpy",
    "fastmath": {"contract", "nsz"},
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
}


def kernel(function: Function) -> Function:
    """Return `function`, compiled when another kernel first needs it."""
    return cast(Function, numba.njit(**OPTIONS)(function))


def instruction(function: Callable[..., Build]) -> Callable[..., Any]:
    """Return an instruction for kernels: the function takes types and returns a signature and an emitter of LLVM code.

    The emitter takes the builder and the values of the arguments, arrays as pointers.
    """

    @functools.wraps(function)
    def build(typing: Any, *kinds: Any) -> Build:
        signature, emit = function(typing, *kinds)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            values = list(arguments)
            for k, kind in enumerate(signature.args):
                if isinstance(kind, types.Array):
                    values[k] = cgutils.create_struct_proxy(kind)(context, builder, value=values[k]).data
            result = emit(builder, *values)
            return context.get_dummy_value() if result is None else result

        return signature, generate

    return cast(Callable[..., Any], _intrinsic(prefer_literal=True)(build))


class Tile(types.Type):
    """The type of a tile of rows × columns vectors of `lanes` floats."""

    def __init__(self, rows: int, columns: int, lanes: int) -> None:
        self.rows, self.columns, self.lanes = rows, columns, lanes
        self.vector = ir.VectorType(FLOAT, lanes)
        self.array = ir.ArrayType(self.vector, rows * columns)
        super().__init__(name=f"Tile({rows}x{columns}x{lanes})")


@register_model(Tile)
class _TileModel(models.PrimitiveModel):
    def __init__(self, manager: Any, tile: Tile) -> None:
        super().__init__(manager, tile, tile.array)  # type: ignore[no-untyped-call]


@overload(operator.getitem, strict=False)
def _column(table: Any, name: Any) -> Callable[[Any, Any], Any] | None:
    """Let kernels write table[Conv.KERNEL]: numba indexes pointers by plain integers only."""
    if isinstance(table, types.CPointer) and isinstance(name, types.IntEnumMember):
        return lambda table, name: table[name.value]
    return None


def _vector_at(builder: Any, pointer: Any, index: Any, vector: Any) -> Any:
    """The address of a vector that starts at element `index`."""
    return builder.bitcast(builder.gep(pointer, [index]), vector.as_pointer())


def _element(builder: Any, tile: Tile, index: Any, stride: Any, row: int, column: int) -> Any:
    """index + row·stride + column·lanes."""
    place = builder.add(index, builder.mul(stride, ir.Constant(stride.type, row)))
    return builder.add(place, ir.Constant(index.type, column * tile.lanes))


def _splat(builder: Any, scalar: Any, lanes: int) -> Any:
    vector = ir.VectorType(scalar.type, lanes)
    one = builder.insert_element(ir.Constant(vector, ir.Undefined), scalar, ir.Constant(INT, 0))
    zeros = ir.Constant(ir.VectorType(INT, lanes), [0] * lanes)
    return builder.shuffle_vector(one, ir.Constant(vector, ir.Undefined), zeros)


def _multiply_add(builder: Any, total: Any, left: Any, right: Any) -> Any:
    return builder.fadd(total, builder.fmul(left, right, flags=CONTRACT), flags=CONTRACT)


def _pack(builder: Any, tile: Tile, vectors: list[Any]) -> Any:
    value = ir.Constant(tile.array, ir.Undefined)
    for k, vector in enumerate(vectors):
        value = builder.insert_value(value, vector, k)
    return value


def _unpack(builder: Any, tile: Tile, value: Any) -> list[Any]:
    return [builder.extract_value(value, k) for k in range(tile.rows * tile.columns)]


def _tile(*sizes: Any) -> Tile:
    return Tile(*(size.literal_value for size in sizes))


@instruction
def shift(typing: Any, a: Any, n: Any) -> Build:
    """shift(a, n): the pointer a + n, so that shift(a, n)[0] is a[n]."""
    return a(a, PLACE), lambda builder, a, n: builder.gep(a, [n])


@instruction
def load(typing: Any, rows: Any, columns: Any, lanes: Any, a: Any, i: Any, stride: Any) -> Build:
    """load(rows, columns, lanes, a, i, stride): row r is a[i + r·stride :] of columns·lanes floats."""
    tile = _tile(rows, columns, lanes)

    def emit(builder: Any, _r: Any, _c: Any, _l: Any, a: Any, i: Any, stride: Any) -> Any:
        order = [(r, c) for r in range(tile.rows) for c in range(tile.columns)]
        places = [_element(builder, tile, i, stride, r, c) for r, c in order]
        vectors = [builder.load(_vector_at(builder, a, p, tile.vector), align=4) for p in places]
        return _pack(builder, tile, vectors)

    return tile(rows, columns, lanes, a, PLACE, PLACE), emit


@instruction
def store(typing: Any, t: Any, a: Any, i: Any, stride: Any) -> Build:
    """store(t, a, i, stride): the inverse of `load`; rows are written in ascending order."""

    def emit(builder: Any, value: Any, a: Any, i: Any, stride: Any) -> None:
        for k, vector in enumerate(_unpack(builder, t, value)):
            place = _element(builder, t, i, stride, *divmod(k, t.columns))
            builder.store(vector, _vector_at(builder, a, place, t.vector), align=4)

    return types.void(t, a, PLACE, PLACE), emit


@instruction
def fill_rows(typing: Any, rows: Any, columns: Any, lanes: Any, a: Any, i: Any, stride: Any) -> Build:
    """fill_rows(rows, columns, lanes, a, i, stride): every float of row r is a[i + r·stride]."""
    tile = _tile(rows, columns, lanes)

    def emit(builder: Any, _r: Any, _c: Any, _l: Any, a: Any, i: Any, stride: Any) -> Any:
        vectors = []
        for r in range(tile.rows):
            scalar = builder.load(builder.gep(a, [_element(builder, tile, i, stride, r, 0)]))
            vectors += [_splat(builder, scalar, tile.lanes)] * tile.columns
        return _pack(builder, tile, vectors)

    return tile(rows, columns, lanes, a, PLACE, PLACE), emit


@instruction
def zeros(typing: Any, rows: Any, columns: Any, lanes: Any) -> Build:
    """zeros(rows, columns, lanes): a tile of zeros."""
    tile = _tile(rows, columns, lanes)
    return tile(rows, columns, lanes), lambda builder, *sizes: ir.Constant(tile.array, None)


@instruction
def add_outer(typing: Any, t: Any, g: Any, i: Any, stride: Any, x: Any) -> Build:
    """add_outer(t, g, i, stride, x): row r of t plus g[i + r·stride] times the one-row tile x."""

    def emit(builder: Any, value: Any, g: Any, i: Any, stride: Any, row: Any) -> Any:
        sums, right = _unpack(builder, t, value), _unpack(builder, x, row)
        for r in range(t.rows):
            place = _element(builder, t, i, stride, r, 0)
            left = _splat(builder, builder.load(builder.gep(g, [place])), t.lanes)
            for c in range(t.columns):
                k = r * t.columns + c
                sums[k] = _multiply_add(builder, sums[k], left, right[c])
        return _pack(builder, t, sums)

    return t(t, g, PLACE, PLACE, x), emit


@instruction
def add_scaled(typing: Any, t: Any, g: Any, a: Any, i: Any, stride: Any) -> Build:
    """add_scaled(t, g, a, i, stride): t plus the number g times the tile that `load` would take from a."""

    def emit(builder: Any, value: Any, g: Any, a: Any, i: Any, stride: Any) -> Any:
        left, sums = _splat(builder, g, t.lanes), _unpack(builder, t, value)
        for k in range(len(sums)):
            place = _element(builder, t, i, stride, *divmod(k, t.columns))
            right = builder.load(_vector_at(builder, a, place, t.vector), align=4)
            sums[k] = _multiply_add(builder, sums[k], left, right)
        return _pack(builder, t, sums)

    return t(t, types.float32, a, PLACE, PLACE), emit


@instruction
def add(typing: Any, t: Any, u: Any) -> Build:
    """add(t, u): t + u."""

    def emit(builder: Any, *values: Any) -> Any:
        pairs = zip(*(_unpack(builder, t, value) for value in values), strict=True)
        return _pack(builder, t, [builder.fadd(a, b) for a, b in pairs])

    return t(t, u), emit


@instruction
def total(typing: Any, t: Any) -> Build:
    """total(t): the sum of all floats of t, in a fixed order."""

    def emit(builder: Any, value: Any) -> Any:
        result = ir.Constant(FLOAT, 0.0)
        for vector in _unpack(builder, t, value):
            for lane in range(t.lanes):
                result = builder.fadd(result, builder.extract_element(vector, ir.Constant(INT, lane)))
        return result

    return types.float32(t), emit


@instruction
def keep_where(typing: Any, t: Any, a: Any) -> Build:
    """keep_where(t, a): t where a is not zero (NaN is not zero), else 0."""

    def emit(builder: Any, *values: Any) -> Any:
        zero, pairs = ir.Constant(t.vector, None), zip(*(_unpack(builder, t, value) for value in values), strict=True)
        return _pack(builder, t, [builder.select(builder.fcmp_unordered("!=", a, zero), x, zero) for x, a in pairs])

    return t(t, a), emit


@instruction
def keep_first(typing: Any, t: Any, count: Any) -> Build:
    """keep_first(t, count): the first `count` floats of the vector t, then zeros."""

    def emit(builder: Any, value: Any, count: Any) -> Any:
        (vector,) = _unpack(builder, t, value)
        lane = ir.Constant(ir.VectorType(INT, t.lanes), list(range(t.lanes)))
        inside = builder.icmp_signed("<", lane, _splat(builder, builder.trunc(count, INT), t.lanes))
        return _pack(builder, t, [builder.select(inside, vector, ir.Constant(t.vector, None))])

    return t(t, PLACE), emit


@instruction
def rectify(typing: Any, t: Any) -> Build:
    """rectify(t): 0 where t <= 0, else t, so that NaN stays NaN."""

    def emit(builder: Any, value: Any) -> Any:
        zero, vectors = ir.Constant(t.vector, None), _unpack(builder, t, value)
        return _pack(builder, t, [builder.select(builder.fcmp_ordered("<=", v, zero), zero, v) for v in vectors])

    return t(t), emit


@instruction
def transpose(typing: Any, t: Any) -> Build:
    """transpose(t): the transpose of a tile of 8 rows of 8 floats (three rounds of shuffles)."""
    if (t.rows, t.columns, t.lanes) != (8, 1, 8):
        raise TypeError(f"The tile must have 8 rows, 1 column and 8 lanes, got {t}.")

    # In each round the rows k and k + distance exchange halves of groups of 1, 2 and 4 floats.
    rounds = (
        (1, [0, 8, 1, 9, 4, 12, 5, 13], [2, 10, 3, 11, 6, 14, 7, 15]),
        (2, [0, 1, 8, 9, 4, 5, 12, 13], [2, 3, 10, 11, 6, 7, 14, 15]),
        (4, [0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15]),
    )
    order = [0, 2, 1, 3, 4, 6, 5, 7]  # where the interleaving rounds leave column 0, 1, ...

    def emit(builder: Any, value: Any) -> Any:
        rows = _unpack(builder, t, value)
        for distance, low, high in rounds:
            for k in range(8):
                if not k & distance:
                    a, b = rows[k], rows[k + distance]
                    for place, mask in ((k, low), (k + distance, high)):
                        rows[place] = builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(INT, 8), mask))
        return _pack(builder, t, [rows[k] for k in order])

    return t(t), emit


@instruction
def pool(typing: Any, z: Any, i: Any, row: Any, out: Any, where: Any, o: Any, p: Any, width: Any) -> Build:
    """pool(z, i, row, out, where, o, p, width): 2×2 max-pool and ReLU of 8 samples.

    The pixels are z[i], z[i + 8], z[i + row] and z[i + row + 8], 8 floats each. out[o:] becomes max(0, maximum),
    where[o:] the index p, p + 1, p + width or p + width + 1 of the first maximum; NaN is larger than any number.
    """

    def emit(builder: Any, z: Any, i: Any, row: Any, out: Any, where: Any, o: Any, p: Any, width: Any) -> None:
        lanes = ir.VectorType(FLOAT, 8)

        def pixel(offset: Any) -> Any:
            return builder.load(_vector_at(builder, z, builder.add(i, offset), lanes), align=4)

        def larger(left: Any, right: Any) -> Any:
            """The right one if it is larger or NaN, else the left one; with the index of either."""
            (a, m), (b, n) = left, right
            wins = builder.or_(builder.fcmp_ordered(">", b, a), builder.fcmp_unordered("uno", b, b))
            return builder.select(wins, b, a), builder.select(wins, n, m)

        one, zero = ir.Constant(i.type, 8), ir.Constant(i.type, 0)
        first, below = _splat(builder, p, 8), builder.add(p, width)
        second = _splat(builder, builder.add(p, ir.Constant(INT, 1)), 8)
        third, fourth = _splat(builder, below, 8), _splat(builder, builder.add(below, ir.Constant(INT, 1)), 8)
        top = larger((pixel(zero), first), (pixel(one), second))
        bottom = larger((pixel(row), third), (pixel(builder.add(row, one)), fourth))
        best, index = larger(top, bottom)
        dead = builder.fcmp_ordered("<=", best, ir.Constant(lanes, None))
        best = builder.select(dead, ir.Constant(lanes, None), best)
        builder.store(best, _vector_at(builder, out, o, lanes), align=4)
        builder.store(index, _vector_at(builder, where, o, index.type), align=4)

    return types.void(z, PLACE, PLACE, out, where, PLACE, types.int32, types.int32), emit


@instruction
def compress(typing: Any, t: Any, where: Any, i: Any, base: Any, g: Any, index: Any, n: Any) -> Build:
    """compress(t, where, i, base, g, index, n): append what is not zero in t (NaN is not) to a list; its length.

    They go to g[n:], and where[i + lane] + base to index[n:]; the lists need room for one vector more.
    """

    def emit(builder: Any, value: Any, where: Any, i: Any, base: Any, g: Any, index: Any, n: Any) -> Any:
        (vector,) = _unpack(builder, t, value)
        integers, bits = ir.VectorType(INT, t.lanes), ir.VectorType(ir.IntType(1), t.lanes)
        mask = builder.fcmp_unordered("!=", vector, ir.Constant(t.vector, None))
        source = builder.load(_vector_at(builder, where, i, integers), align=4)
        places = builder.add(source, _splat(builder, base, t.lanes))
        for values, kind, pointer in ((vector, "f32", g), (places, "i32", index)):
            packed = cgutils.get_or_insert_function(
                builder.module,
                ir.FunctionType(values.type, [values.type, bits, values.type]),
                f"llvm.experimental.vector.compress.v{t.lanes}{kind}",
            )
            undefined = ir.Constant(values.type, ir.Undefined)
            target = _vector_at(builder, pointer, n, values.type)
            builder.store(builder.call(packed, [values, mask, undefined]), target, align=4)
        alive = builder.ctpop(builder.bitcast(mask, ir.IntType(t.lanes)))
        return builder.add(n, builder.zext(alive, n.type))

    return PLACE(t, where, PLACE, types.int32, g, index, PLACE), emit
