"""LowerWgmma: vectors by columns of an epilogue are loaded in front of the sum."""

from __future__ import annotations

import re
from typing import Any

import pytest
import tvm
from tvm import s_tir, te

import tvm_hopper
from tvm_hopper import cuda_build, pipeline, schedule as hs
from tvm_hopper.simulation import verify

H200 = "nvidia/nvidia-h200"
SMALL = {"tile": (64, 64, 64), "stages": 2, "consumers": 1, "persistent": 0}


def f32(value: Any) -> Any:
    """Convert, as programs do."""
    return value.astype("float32")


def scheduled(
    vectors: int = 1,
    *,
    sides: tuple[int, int, int] = (64, 128, 256),
    dtype: str = "float16",
    along: str = "column",
    **config: Any,
) -> tuple[Any, s_tir.Schedule]:
    """Return a product with vectors added behind it, and its schedule."""
    m, n, k = sides
    a, b = te.placeholder((m, k), "float16", "A"), te.placeholder((n, k), "float16", "B")
    added = [
        te.placeholder((n if along == "column" else m,), dtype, f"v{i}") for i in range(vectors)
    ]
    r = te.reduce_axis((0, k), "r")
    c = te.compute((m, n), lambda i, j: te.sum(f32(a[i, r]) * f32(b[j, r]), axis=r), name="C")

    def value(i: Any, j: Any) -> Any:
        total = c[i, j]
        for x in added:
            total = total + f32(x[j if along == "column" else i])
        return total.astype("float16")

    plain = te.create_prim_func([a, b, *added, te.compute((m, n), value, name="D")])
    sch = s_tir.Schedule(plain)
    hs.matmul(sch, "C", hs.MatmulConfig(**{**SMALL, **config}))
    return plain, sch


def text(sch: s_tir.Schedule) -> str:
    """Return the CUDA text of a schedule."""
    built = tvm.compile(sch.mod, H200)
    tvm_hopper.cubin(built)
    return cuda_build.records.lookup(built).source


@pytest.mark.parametrize("config", [{}, {"store": "tma"}], ids=["direct", "tma"])
def test_vectors_are_loaded_in_front_of_the_sum(config):
    source = text(scheduled(2, **config)[1])
    kernel = source[source.rindex('extern "C"') :]
    for name in ("v0", "v1"):
        load = kernel.index(f"*(half2*)({name}_ahead_ptr + (")
        assert f"*(half2*)({name}_ptr + (" in kernel[load : kernel.index("\n", load)]
        fences = [x.start() for x in re.finditer("wgmma_fence", kernel)]
        assert load < fences[-2]  # the last turn but one: see beside_products.py
        hold = kernel.index(f"hold_uint32(((uint*){name}_ahead_ptr)")
        wait = kernel.rindex("wgmma_wait_group")
        assert kernel.rindex("wgmma_commit_group") < hold < wait
        assert hold < kernel.index(f"(float){name}_ahead_ptr") < wait
        assert f"{name}_ptr[" not in kernel


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(
    ("sides", "config"),
    [
        ((64, 128, 256), {}),
        ((64, 128, 256), {"store": "tma"}),
        ((60, 98, 192), {}),
        ((120, 90, 200), {"tile": (128, 48, 64), "consumers": 2}),
        ((192, 136, 256), {"persistent": 2, "store": "tma"}),
        ((256, 64, 256), {"persistent": 2, "tile": (64, 64, 64), "schedule": "pingpong"}),
    ],
    ids=["even", "tma", "ragged", "two consumers", "persistent", "turns"],
)
def test_values_are_right(sides, config):
    if config.get("schedule"):
        config = {**config, "consumers": 2}
    plain, sch = scheduled(2, sides=sides, **config)
    assert "v1_ahead_ptr" in text(sch)
    verify(sch, against=plain).require_clean()


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(
    "case",
    [
        {"dtype": "float32"},
        {"along": "row"},
        {"sides": (64, 99, 256)},
        {"sides": (64, 128, 64)},
        {"tile": (128, 208, 64), "sides": (128, 208, 256)},
        {"tile": (64, 256, 64), "sides": (64, 256, 256), "vectors": 4},
        {"vectors": 0},
    ],
    ids=["float32", "rows", "odd", "one step", "accumulator", "many", "none"],
)
def test_what_stays_behind_the_sum(case):
    assert "_ahead_ptr" not in text(scheduled(**case)[1])


@pytest.mark.parametrize("columns", [200, 99], ids=["half of the columns", "all but one"])
def test_what_the_program_loads_by_choice_stays_behind_its_condition(columns):
    a, b = te.placeholder((64, 64), "float16", "A"), te.placeholder((200, 64), "float16", "B")
    some = te.placeholder((columns // 2,), "float16", "v0")
    r = te.reduce_axis((0, 64), "r")
    c = te.compute((64, 200), lambda i, j: te.sum(f32(a[i, r]) * f32(b[j, r]), axis=r), name="C")
    inside = lambda j: te.if_then_else(j < columns // 2, f32(some[j]), 0.0)  # noqa: E731
    d = te.compute((64, 200), lambda i, j: c[i, j] + inside(j), name="D")
    plain = te.create_prim_func([a, b, some, d])
    sch = s_tir.Schedule(plain)
    hs.matmul(sch, "C", hs.MatmulConfig(tile=(64, 64, 32), stages=2))
    assert "_ahead_ptr" not in text(sch)
    assert verify(sch, against=plain, runs=(("on_wait", 0),)).verdict == "clean"


def test_a_vector_that_begins_between_two_pairs_is_named():
    _, sch = scheduled()
    (host,) = pipeline.lower_final(sch.mod, H200).host.functions.values()
    assert "v0: found a start address that is no multiple of 4" in str(host)
