"""What breaks copies elsewhere, in and out by each mechanism: an error that names it, or right.

The rows are those of matmuls (test_bad_inputs.py): pointers, strides, boxes, swizzles, ranks, empty
and ragged shapes, types, shared memory, targets. What a row lacks is right: test_copies.py. Threads
of a block, whatever copies: tests/static_check/test_room.py.
"""

import numpy as np
import pytest
import tvm
from tvm.script import tirx as T

from tests.codegen.fake_cuda import tensor
from tests.codegen.test_host_checks import needs_runtime
from tvm_hopper import pipeline
from tvm_hopper.errors import LoweringError
from tvm_hopper.simulation import load, simulate
from tvm_hopper.testing import copies, strided
from tvm_hopper.testing.copies import Route

H200, A100, NO_A = "nvidia/nvidia-h200", "nvidia/nvidia-a100", {"kind": "cuda", "arch": "sm_90"}
LOADS, STORES = ("tma", "bulk", "cp_async"), ("tma", "bulk")
ADDRESS = 1 << 20


def lower(shape, tile, way, by, dtype="float16", target=H200, **more):
    """Lower a copy whose tiles come, or leave, by a mechanism, and the other way by threads."""
    load, store = (by, None) if way == "load" else (None, by)
    options = {"steps": 2, "stages": 2 if load else None, "threads": 32, "vector": 1, **more}
    route = Route(tile, load=load, store=store, **options)
    return pipeline.lower(copies.schedule(copies.copy(*shape, dtype=dtype), route).mod, target)


def lower_steps(by, tile=(8, 64), **steps):
    mod = strided.rows(tile[0] * 8, 128, **steps)
    return pipeline.lower(strided.schedule(mod, tile, by, stages=2, swizzle=None).mod, H200)


SMALL = (64, 64), (8, 64)
NARROW, RAGGED, SYMBOLIC = ((64, 64), (8, 4)), ((64, 100), (8, 64)), ((64, "n"), (8, 64))
LONG, WIDE = ((4, 1024, 64), (2, 512, 64)), ((4096, 256), (128, 256))
PADDED = r"found stride 1 of 200 bytes; .*; pad its last dimension from 100 to 104"
STATIC = r"found a symbolic dimension n, .* need rows at multiples of 16 bytes; make every"
WHOLE = r"contiguous bytes; need a multiple of 16; pad the rows, or "
CHUNKS = r"need rows that are contiguous at both ends and start at multiples of 4 bytes"
MIDDLE = r"a tile with 512 in the middle of its dimensions; need at most 256 there, what a box"
SWIZZLED = r"rows of 32 elements with a 128 B swizzle; need rows of a multiple of 64 elements"
TYPES = r"found type int16; need one of float8_e4m3fn"
HALF_BYTES = r"found elements of int4 in .*; need elements of whole bytes, one of bool, "
ROOM = r"bytes of shared memory; need at most 232448; take 3 stages"
NOT_A = r"with target cuda sm_90; need a cuda target with arch sm_90a or sm_80; build with target="

# what is wrong, the way, the mechanism: shape and tile, what else, the message
ROWS = {
    ("row stride", "load", "tma"): (RAGGED, {}, rf"A into A_shared.dyn: {PADDED}"),
    ("row stride", "store", "tma"): (RAGGED, {}, rf"A_shared.dyn into B: {PADDED}"),
    ("row stride", "load", "bulk"): (RAGGED, {}, rf'{WHOLE}take "cp_async"'),
    ("row stride", "store", "bulk"): (RAGGED, {}, rf"{WHOLE}remove the request"),
    ("row stride", "load", "cp_async"): (((64, 101), (8, 64)), {}, CHUNKS),
    ("symbolic row stride", "load", "tma"): (SYMBOLIC, {}, rf"A into A_shared.dyn: {STATIC}"),
    ("symbolic row stride", "store", "tma"): (SYMBOLIC, {}, rf"A_shared.dyn into B: {STATIC}"),
    ("symbolic row stride", "load", "bulk"): (SYMBOLIC, {}, WHOLE),
    ("symbolic row stride", "store", "bulk"): (SYMBOLIC, {}, WHOLE),
    ("symbolic row stride", "load", "cp_async"): (SYMBOLIC, {}, CHUNKS),
    ("inner box", "load", "tma"): (NARROW, {}, r"columns of A from .* \* 4; need a start at"),
    ("inner box", "store", "tma"): (NARROW, {}, r"8 rows of 4 elements of float16; need equal"),
    ("inner box", "load", "bulk"): (NARROW, {}, rf"found 8 {WHOLE}"),
    ("inner box", "store", "bulk"): (NARROW, {}, rf"found 8 {WHOLE}"),
    ("long box", "load", "tma"): (LONG, {"steps": 1, "stages": 1}, MIDDLE),
    ("long box", "store", "tma"): (LONG, {"steps": 1}, MIDDLE),
    ("box rows", "load", "tma"): (
        ((1200, 64), (300, 64)),
        {"steps": 1, "swizzle": 128},
        r"found a tile of 300 rows, 128 bytes each; need rows that fall into equal boxes of at "
        r"most 256, each at a multiple of 1024 bytes; choose a multiple of 8 rows",
    ),
    ("swizzle", "load", "tma"): (((64, 64), (8, 32)), {"swizzle": 128}, SWIZZLED),
    ("swizzle", "load", "cp_async"): (((64, 64), (8, 32)), {"swizzle": 128}, SWIZZLED),
    ("swizzle", "load", "bulk"): (SMALL, {"swizzle": 128}, r"a copy in bulk with a 128 B swizzle"),
    ("rank", "load", "tma"): (((2,) * 5 + (64,), (1, 2, 2, 2, 2, 64)), {}, r"rank 6; need 1 to 5"),
    ("type", "load", "tma"): (SMALL, {"dtype": "int16"}, rf"A into A_shared.dyn: {TYPES}"),
    ("type", "store", "tma"): (SMALL, {"dtype": "int16"}, rf"A_shared.dyn into B: {TYPES}"),
    **{
        ("half a byte", way, by): (SMALL, {"dtype": "int4"}, HALF_BYTES)
        for way, able in (("load", LOADS), ("store", STORES))
        for by in able
    },
    ("room", "load", "tma"): (WIDE, {"stages": 5}, rf"5 x 65536 \+ barriers 80 .* {ROOM}"),
    ("room", "load", "bulk"): (WIDE, {"stages": 5}, rf"5 x 65536 \+ barriers 80 .* {ROOM}"),
    ("room", "load", "cp_async"): (WIDE, {"stages": 5}, rf"5 x 65536 = 327680 {ROOM}"),
    ("room", "store", "tma"): (WIDE, {"slots": 5}, r"store B: found A_shared.dyn 5 x 65536 ="),
    ("room", "store", "bulk"): (WIDE, {"slots": 5}, r"store B: found A_shared.dyn 5 x 65536 ="),
    **{
        ("older chip", way, by): (SMALL, {"target": A100}, rf"'{by}' on sm_80; {need}")
        for by in STORES
        for way, need in (
            ("load", "need a mechanism that it has: 'cp_async'; request that one"),
            ("store", "need a mechanism that it has: none that copies this way; let threads"),
        )
    },
    **{
        ("target without the a", way, by): (SMALL, {"target": NO_A}, NOT_A)
        for way, able in (("load", LOADS), ("store", STORES))
        for by in able
    },
}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: ", ".join(row))
def test_one_clear_error(row):
    _, way, by = row
    problem, more, match = ROWS[row]
    with pytest.raises(LoweringError, match=match):
        lower(*problem, way, by, **more)


@pytest.mark.parametrize(
    ("by", "match"),
    [
        ("tma", "columns at each 2 elements of A; need columns one next to the other"),
        ("bulk", "need elements that are contiguous at both ends"),
        ("cp_async", "need rows that are contiguous at both ends"),
    ],
)
def test_columns_that_lie_apart(by, match):
    with pytest.raises(LoweringError, match=match):
        lower_steps(by, columns=2)


def test_rows_that_fall_into_no_equal_boxes():
    """Boxes of 16 bytes a row begin at multiples of 128 bytes: every eighth row."""
    match = r"a tile of 300 rows, 16 bytes each, at each 2 of the tensor's; need .* at most 128,"
    with pytest.raises(LoweringError, match=match):
        lower_steps("tma", (300, 8), step=2)


@pytest.mark.parametrize("rows", [512, 300])
@pytest.mark.parametrize(("way", "by"), [("load", "tma"), ("store", "tma")])
def test_a_long_tile_is_split_into_boxes(way, by, rows):
    assert "cuTensorMapEncodeTiled" in lower((1200, 64), (rows, 64), way, by, steps=1).script()
    assert "cuTensorMapEncodeTiled" in lower((64, 1024), (8, 512), way, by).script()


# -- what only a call can tell


@pytest.mark.parametrize("way", ["load", "store"])
def test_a_stride_that_is_not_aligned(way):
    """A stride that the program declares as a variable is checked at each call, by name."""
    func = declared(way)
    route = Route((8, 64), 2, *(("tma", None) if way == "load" else (None, "tma")),
                  2 if way == "load" else None, threads=32, vector=1)  # fmt: skip
    program = load(copies.schedule(tvm.IRModule({"main": func}), route).mod)
    name = "A" if way == "load" else "B"
    wide = np.zeros((64, 68), "float16")
    args = {x: wide[:, :64] if x == name else np.zeros((64, 64), "float16") for x in "AB"}
    with pytest.raises(Exception, match=rf"{name}: found stride s of dimension 0 of no multiple"):
        simulate(program, args)
    args[name] = np.zeros((64, 72), "float16")[::-1, :64]
    with pytest.raises(ValueError, match=rf"{name}: found stride s of dimension 0 out of range; n"):
        simulate(program, args)


def declared(way):
    """Build B = A with rows of one of them a variable apart."""
    text = """
@T.prim_func(s_tir=True)
def main(a: T.handle, b: T.handle):
    T.func_attr({"global_symbol": "main"})
    s = T.int32()
    A = T.match_buffer(a, (64, 64), "float16", LOAD)
    B = T.match_buffer(b, (64, 64), "float16", STORE)
    for i, j in T.grid(64, 64):
        with T.sblock("B"):
            v, w = T.axis.remap("SS", [i, j])
            B[v, w] = A[v, w]
"""
    own = "strides=(s, 1)"
    text = text.replace(", LOAD", f", {own}" if way == "load" else "")
    text = text.replace(", STORE", f", {own}" if way == "store" else "")
    return tvm.script.from_source(text, extra_vars={"T": T})


@pytest.mark.parametrize(("load", "store"), [("tma", "tma"), ("bulk", "bulk"), ("cp_async", None)])
def test_no_rows_launch_nothing(load, store):
    route = Route((8, 64), 2, load, store, 2, threads=32, vector=1)
    run = tvm.compile(copies.schedule(copies.copy("n", 64), route).mod, target=H200)["main"]
    needs_runtime(lambda: run(*(tensor((0, 64), address=0) for _ in "AB")))
