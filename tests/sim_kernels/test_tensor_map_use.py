"""Tensor maps that copies share and that are fetched ahead, and what loads tell L2."""

import re

import pytest
import tvm
from tvm import s_tir, te

import tvm_hopper
from tvm_hopper import pipeline, schedule as hs
from tvm_hopper.errors import LoweringError
from tvm_hopper.simulation import verify
from tvm_hopper.testing import copies
from tvm_hopper.testing.copies import Route

TARGET = "nvidia/nvidia-h200"


def text_of(sch) -> str:
    return pipeline.lower(sch.mod, TARGET).script()


def two_slices(apart: int):
    """B = A above + A below: two copies of one tensor, of one shape."""
    a = te.placeholder((64 + apart, 64), "float16", name="A")

    def part(first: int):
        return te.compute((64, 64), lambda i, j: a[i + first, j], name=f"X{first}")

    parts = [part(0), part(apart)]
    b = te.compute((64, 64), lambda i, j: parts[0][i, j] + parts[1][i, j], name="B")
    mod = tvm.IRModule({"main": te.create_prim_func([a, b]).with_attr("global_symbol", "main")})
    sch = s_tir.Schedule(mod)
    i, j = sch.get_loops("B")
    i0, k0, i1 = sch.split(i, [None, 4, 8])
    sch.bind(i0, "blockIdx.x")
    for n in (0, apart):
        sch.set_scope(f"X{n}", 0, "shared.dyn")
        sch.compute_at(f"X{n}", k0)
        hs.async_copy(sch, sch.get_sblock(f"X{n}"), "tma")
    _, thread = sch.split(sch.fuse(i1, j), [None, 32])
    sch.bind(thread, "threadIdx.x")
    hs.pipeline(sch, k0, stages=2)
    return mod, sch


def test_copies_of_one_tensor_by_one_box_share_a_map():
    mod, sch = two_slices(16)
    text = text_of(sch)
    assert text.count("cuTensorMapEncodeTiled") == 1
    assert len(re.findall(r"tensor map A +box 64 x 8 .*, shared by 2 copies", explained(sch))) == 1
    verify(sch, against=mod).require_clean()


def explained(sch) -> str:
    return str(tvm_hopper.explain(sch, target=TARGET))


def test_boxes_of_two_sizes_have_a_map_each():
    sch = copies.schedule(copies.copy(40, 64), Route((8, 64), threads=32))
    assert text_of(sch).count("cuTensorMapEncodeTiled") == 2  # of A, and of B
    assert "shared by" not in explained(sch)


def test_maps_are_fetched_before_the_barriers_are_initialised():
    sch = copies.schedule(copies.copy(40, 64), Route((8, 64), threads=32))
    text = text_of(sch)
    fetched = [m.start() for m in re.finditer(r"T\.ptx\.prefetch\(.*(A|B)_map", text)]
    assert len(fetched) == 2
    (guard,) = re.findall(r"if (threadIdx_x == 0|tx == 0):\n\s+T\.ptx\.prefetch", text)
    assert guard
    assert max(fetched) < text.index('"init"')


@pytest.mark.parametrize("load", ["bulk", "cp_async"])
def test_a_map_of_stores_alone_is_fetched_too(load):
    sch = copies.schedule(copies.copy(40, 64), Route((8, 64), load=load, threads=32))
    assert len(re.findall(r"T\.ptx\.prefetch\(.*B_map", text_of(sch))) == 1


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("hint", ["evict_first", "evict_last"])
@pytest.mark.parametrize("load", ["tma", "bulk"])
def test_loads_tell_l2_what_to_do(load, hint):
    mod = copies.copy(37, 64)
    sch = copies.schedule(mod, Route((8, 64), load=load, stages=3, threads=32))
    sch.annotate(sch.get_sblock("A_shared.dyn"), "tvm_hopper.cache_hint", hint)
    text = text_of(sch)
    policies = re.findall(r"T\.ptx\.createpolicy\((\w+)\[0\], \"fractional\", \"L2::(\w+)\"", text)
    assert policies == [(hint, hint)]
    assert text.count("L2::cache_hint") == text.count(f"{hint}[0], ") - 1
    assert f"copy of A into A_shared.dyn: L2 policy {hint}" in explained(sch)
    verify(sch, against=mod).require_clean()


@pytest.mark.parametrize("load", ["tma", "bulk"])
def test_the_last_thread_blocks_tell_l2_the_reverse(load):
    mod = copies.copy(40, 64)
    sch = copies.schedule(mod, Route((8, 64), load=load, stages=3, threads=32))
    block = sch.get_sblock("A_shared.dyn")
    sch.annotate(block, "tvm_hopper.cache_hint", "evict_last")
    sch.annotate(sch.get_loops(block)[0], "tvm_hopper.kept_end", 1)
    text = text_of(sch)
    chosen = re.findall(r"if_then_else\((.*), \w+_evict_(\w+)\[0\], \w+_evict_(\w+)\[0\]", text)
    assert chosen == [("blockIdx_x == 1", "first", "last")]
    verify(sch, against=mod).require_clean()


def test_two_hints_in_one_kernel():
    mod, sch = two_slices(16)
    for n, hint in ((0, "evict_first"), (16, "evict_last")):
        sch.annotate(sch.get_sblock(f"X{n}"), "tvm_hopper.cache_hint", hint)
    text = text_of(sch)
    assert [text.count(f'"L2::{x}"') for x in ("evict_first", "evict_last")] == [1, 1]
    verify(sch, against=mod).require_clean()


def test_a_hint_that_threads_cannot_give_is_left_out():
    sch = copies.schedule(copies.copy(40, 64), Route((8, 64), 4, "none", None, None, threads=32))
    sch.annotate(sch.get_sblock("A_shared.dyn"), "tvm_hopper.cache_hint", "evict_first")
    assert "tvm_hopper.cache_hint is ignored; threads load as usual" in explained(sch)
    assert "L2::" not in text_of(sch)


def test_cp_async_tells_l2_nothing():
    """By "auto" the hint is left out, and told of; asked for by name it is refused."""
    route = Route((8, 50), 4, "auto", None, 2, threads=32, vector=1)
    sch = copies.schedule(copies.copy(40, 100), route)
    sch.annotate(sch.get_sblock("A_shared.dyn"), "tvm_hopper.cache_hint", "evict_first")
    text = " ".join(explained(sch).split())
    assert "by cp_async" in text
    assert "tvm_hopper.cache_hint is ignored; threads load as usual" in text
    by_name = copies.schedule(copies.copy(40, 64), Route((8, 64), 4, "cp_async", "tma", 2))
    by_name.annotate(by_name.get_sblock("A_shared.dyn"), "tvm_hopper.cache_hint", "evict_last")
    with pytest.raises(
        LoweringError, match=r"'evict_last' on cp_async; need a load by 'tma' or 'b"
    ):
        text_of(by_name)
