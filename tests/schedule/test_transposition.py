"""hs.pointwise: permuted dimensions go through tiles in shared memory, by vectors on both sides."""

import functools
import re
from collections import defaultdict

import numpy as np
import pytest
import tvm
from tvm import s_tir, te, tirx

from tests.schedule.programs import module
from tests.schedule.refuse import refuse
from tests.schedule.test_pointwise import TARGET, chosen
from tvm_hopper import capture, ir, schedule as hs
from tvm_hopper.facts.dtypes import dtype_bytes
from tvm_hopper.schedule.pointwise.transpose_tile import SharedTile
from tvm_hopper.simulation import verify

refuse = functools.partial(refuse, helper=hs.pointwise)


def transposed(n, m, dtype="bfloat16", more=False, batch=()):
    """Build Y[.., i, j] = X[.., j, i], or that plus Z[.., i, j]."""
    x = te.placeholder((*batch, m, n), dtype, name="X")
    z = te.placeholder((*batch, n, m), dtype, name="Z")

    def value(*index):
        *first, i, j = index
        turned = x[(*first, j, i)]
        return turned + z[(*first, i, j)] if more else turned

    y = te.compute((*batch, n, m), value, name="Y")
    tensors = [x, z, y] if more else [x, y]
    func = te.create_prim_func(tensors).with_attr("global_symbol", "main")
    return tvm.IRModule({"main": func})


def test_a_transposed_tensor_goes_through_shared_memory():
    kernel, text = chosen(transposed(128, 192))
    assert ir.static_int(kernel.extent) == 2 * 3
    assert text == "256 threads, tiles of 64 x 64 through shared memory"


def test_vectors_by_request_have_no_tile():
    _, text = chosen(transposed(128, 192), hs.PointwiseConfig(chunks=1))
    assert "shared memory" not in text


def permuted(shape, order, dtype, result, more):
    """Build Y = X with its dimensions in another order, plus Z as it is and B along columns."""
    x = te.placeholder(shape, dtype, name="X")
    wanted = tuple(shape[i] for i in order)
    z, b = te.placeholder(wanted, dtype, "Z"), te.placeholder(wanted[-1:], dtype, "B")

    def value(*i):
        one = x(*(i[order.index(axis)] for axis in range(len(shape))))
        return (one * z(*i) + b(i[-1]) if more else one).astype(result)

    y = te.compute(wanted, value, name="Y")
    return module(*([x, z, b] if more else [x]), y)


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(
    ("shape", "order", "dtype", "result", "more", "widths"),
    [
        ((2, 72, 104), (0, 2, 1), "float16", "float16", False, ("uint4", "uint4")),
        ((1, 16, 14, 6), (0, 2, 3, 1), "float32", "float32", True, ("float4", "float4")),
        ((20, 3, 9), (2, 1, 0), "int8", "int8", False, ("", "int")),
        ((36, 100), (1, 0), "float32", "float16", False, ("float4", "half4")),
        ((37, 51), (1, 0), "bfloat16", "bfloat16", False, ("", "")),
        ((1, 34, 1, 36), (0, 3, 2, 1), "float64", "float64", False, ("double2", "double2")),
        ((2, 50, 3), (0, 2, 1), "float16", "float16", True, ("", "half2")),
    ],
    ids=["ragged", "channels last", "reversed", "cast", "odd", "units", "few columns"],
)
def test_permuted_dimensions_go_through_shared_memory(shape, order, dtype, result, more, widths):
    """Each side has the widest vectors that its extent allows."""
    mod = permuted(shape, order, dtype, result, more)
    sch = s_tir.Schedule(mod)
    hs.pointwise(sch)
    assert "through shared memory" in str(sch.mod)
    assert verify(sch, against=mod, runs=(("on_wait", 0),)).verdict == "clean"
    (text,) = capture.cuda_sources(tvm.compile(sch.mod, TARGET))
    for name, width in zip(("X", "Y"), widths, strict=True):
        found = set(re.findall(rf"\*\((\w+)\*\)\({name}_ptr", text)) - {"char2"}
        assert found == ({width} if width else set())


def test_registers_of_tiles_are_those_of_a_thread():
    """A part of a tile has no fewer vectors for some threads."""
    sch = s_tir.Schedule(transposed(992, 96, "float16"))
    hs.pointwise(sch)
    assert capture.lookup(tvm.compile(sch.mod, TARGET)).compile().cubin


@pytest.mark.parametrize("shape", [("n", 40, 72), (2, 40, "n"), (2, "n", 72)], ids=str)
def test_sides_that_are_known_at_run_time_have_tiles(shape):
    n = tirx.Var("n", "int32")
    x = te.placeholder([n if i == "n" else i for i in shape], "float16", name="X")
    b, m, k = x.shape
    mod = module(x, te.compute((b, k, m), lambda h, i, j: x[h, j, i], name="Y"))
    sch = s_tir.Schedule(mod)
    hs.pointwise(sch)
    assert "through shared memory" in str(sch.mod)
    sizes = [3 if i == "n" else i for i in shape]
    given = {"X": np.random.default_rng(0).standard_normal(sizes).astype("float16")}
    verify(sch.mod, given, target=TARGET, against=mod, progress=False).require_clean()


def test_tensors_without_room_in_shared_memory_are_read_by_elements():
    xs = [te.placeholder((64, 64), "float16", name=f"X{i}") for i in range(7)]
    y = te.compute((64, 64), lambda i, j: functools.reduce(max_of, (x[j, i] for x in xs)), "Y")
    sch = s_tir.Schedule(module(*xs, y))
    hs.pointwise(sch)
    assert str(sch.mod).count('scope="shared"') == 5


def max_of(one, other):
    return te.max(one, other)


def test_threads_that_tiles_have_no_vectors_for():
    config = hs.PointwiseConfig(threads=992)
    refuse(transposed(2048, 2048, "int8"), "threads=992; need a divisor of the vectors", config)


@pytest.mark.parametrize(
    ("tile", "dtype"),
    [
        (SharedTile(64, 64, 8, 8), "float16"),
        (SharedTile(56, 64, 8, 8), "bfloat16"),
        (SharedTile(128, 128, 16, 16), "int8"),
    ],
    ids=str,
)
def test_lanes_that_read_across_rows_find_different_banks(tile, dtype):
    """Each lane of a warp reads one element of its vector along j at once."""
    place, each = tile.in_shared(dtype), tile.j // tile.j_vector
    for first in range(0, tile.i * each, 32):
        for element in range(tile.j_vector):
            words = defaultdict(set)
            for number in range(first, first + 32):
                (at,) = place(number // each, number % each * tile.j_vector + element)
                word = at * dtype_bytes(dtype) // 4
                words[word % 32].add(word)
            assert max(map(len, words.values())) == 1
