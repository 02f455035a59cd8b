"""Accumulators are set before WGMMA, read behind it, and never leave the registers.

Each cover holds a kernel in which the CUDA compiler or the assembler itself once moved what sets or
reads an accumulator, and ptxas serialised. An accumulator in local memory is slow where the product
stands in a loop, and C7514 and C7517 where it does not.
"""

import itertools
import re
from functools import cache
from typing import Any

import numpy as np
import pytest
import tvm
import tvm.script
from tvm import s_tir
from tvm.script import tirx as T

import tvm_hopper
from tvm_hopper import capture, schedule as hs
from tvm_hopper.cuda_build.compilers import compile_source

PROGRAM = """
@T.prim_func(s_tir=True)
def main(A: T.Buffer((M, K), "float16"), B: T.Buffer((N, K), "float16"),
         S: T.Buffer((M, N), "SIDE"), V: T.Buffer((N,), "float32"), D: T.Buffer((M, N), "OUT")):
    C = T.sblock_alloc_buffer((M, N), "SUM")
    for i, j, k in T.grid(M, N, K):
        with T.sblock("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = START
            C[vi, vj] = C[vi, vj] + T.Cast("SUM", A[vi, vk]) * T.Cast("SUM", B[vj, vk])
    for i, j in T.grid(M, N):
        with T.sblock("D"):
            vi, vj = T.axis.remap("SS", [i, j])
            D[vi, vj] = T.Cast("OUT", VALUE)
"""
C, S = 'T.Cast("float32", C[vi, vj])', 'T.Cast("float32", S[vi, vj])'
EVEN, RAGGED = (128, 64), (120, 56)  # of a tile of 128 x 64, two instructions
TILE = (128, 64, 64)


def built(
    shape: tuple[int, int],
    trips: int,
    value: str = C,
    *,
    side: str = "float16",
    out: str = "float32",
    summed: str = "float32",
    start: str = "",
    **config: Any,
) -> Any:
    """Compile a product of so many steps of 64, from `start`, with the store of `value` behind."""
    words = {"M": shape[0], "N": shape[1], "K": 64 * trips, "SIDE": side, "OUT": out}
    words |= {"SUM": summed, "VALUE": value, "START": start or f"T.{summed}(0)"}
    text = re.sub("|".join(rf"\b{w}\b" for w in words), lambda m: str(words[m[0]]), PROGRAM)
    sch = s_tir.Schedule(tvm.script.from_source(text, extra_vars={"T": T}))
    accumulate = None if summed == "float32" else "float32"
    given = {"tile": TILE, "stages": min(trips, 2), "consumers": 1, "accumulate": accumulate}
    hs.matmul(sch, "C", hs.MatmulConfig(**given | config))
    return tvm.compile(sch.mod, target="nvidia/nvidia-h200")


def check(ex: Any) -> None:
    """Assemble a kernel without a remark; nothing of it lies in local memory."""
    (facts,) = compile_source(capture.lookup(ex).source).kernels.values()
    assert (facts.stack_bytes, facts.spill_store_bytes) == (0, 0)


@cache
def inputs(shape: tuple[int, int], trips: int) -> dict[str, np.ndarray]:
    """Return small integers, which every type here holds."""
    rng = np.random.default_rng(0)
    (m, n), k = shape, 64 * trips
    shapes = {"A": (m, k), "B": (n, k), "S": (m, n), "V": (n,)}
    types = {"V": "float32"}
    return {x: rng.integers(-1, 2, s).astype(types.get(x, "float16")) for x, s in shapes.items()}


def simulated(ex: Any, shape: tuple[int, int], trips: int) -> np.ndarray:
    """Return the output of a kernel in which every judge finds nothing."""
    arrays = inputs(shape, trips)
    result = tvm_hopper.simulate(ex, arrays)
    result.require_clean()
    assert tvm_hopper.verify(ex, arrays).verdict == "clean"
    return result.outputs["D"].astype("float64")


def product(shape: tuple[int, int], trips: int) -> np.ndarray:
    arrays = inputs(shape, trips)
    return arrays["A"].astype("float64") @ arrays["B"].astype("float64").T


# -- epilogues: 368 bytes of local memory for 64 accumulators, where a side operand was float16

EPILOGUES = {
    "side minus sum": f"{S} - {C}",
    "sum plus side": f"{C} + {S}",
    "and a bias": f"{S} - {C} + V[vj]",
    "and relu": f"T.max({S} - {C}, T.float32(0))",
    "bias alone": f"{C} * T.float32(0.5) + V[vj]",
}
PLACES = {
    "once": (EVEN, 1, {}),
    "once, ragged": (RAGGED, 1, {}),
    "loop": (EVEN, 3, {}),
    "loop, odd columns": ((120, 57), 3, {}),
    "two consumers": ((250, 120), 2, {"tile": (256, 128, 64), "consumers": 2}),
    "wide": ((128, 256), 3, {"tile": (128, 256, 64), "consumers": 2, "persistent": 2}),
}


ALL = list(itertools.product(EPILOGUES, PLACES))
FEW = [pair for pair in ALL if "side minus sum" in pair or "once, ragged" in pair]


@pytest.mark.sampled(every=5)
@pytest.mark.parametrize(
    ("epilogue", "place"),
    [pytest.param(*x, marks=() if x in FEW else pytest.mark.slow) for x in ALL],
)
def test_no_accumulator_goes_to_local_memory(epilogue: str, place: str) -> None:
    shape, trips, config = PLACES[place]
    types = {"side": "bfloat16"} if place == "loop" else {}
    check(built(shape, trips, EPILOGUES[epilogue], **types, **config))


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("side", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("out", ["float16", "bfloat16", "float32"])
def test_nor_does_it_for_any_types(side: str, out: str) -> None:
    check(built(RAGGED, 1, EPILOGUES["side minus sum"], side=side, out=out))


@pytest.mark.parametrize("shape", [(256, 512), (250, 1000)])
def test_functions_of_float16_do_not_spill(shape: tuple[int, int]) -> None:
    """The assembler computed those of the whole tile at once: 1694 bytes of spills."""
    value = 'T.exp(T.max(T.Cast("float16", C[vi, vj]), T.float16(0)))'
    wide = {"tile": (128, 256, 64), "consumers": 2, "out": "float16"}
    check(built(shape, 4, value, **wide))


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("trips", [1, 2])
def test_a_pair_s_two_statements_are_right(trips: int) -> None:
    for shape in (EVEN, (120, 57)):
        got = simulated(built(shape, trips, EPILOGUES["side minus sum"]), shape, trips)
        np.testing.assert_array_equal(got, inputs(shape, trips)["S"] - product(shape, trips))


# -- fills: C7519 where the CUDA compiler moved one out of the loop over tiles, and its copy in

FILLS = {
    "columns": "V[vj]",
    "elements": 'T.Cast("float32", S[vi, vj])',
    "both": 'T.Cast("float32", S[vi, vj]) + V[vj]',
    "a constant": "T.float32(1)",
}


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize("persistent", [0, 2])
@pytest.mark.parametrize("trips", [1, 2])
def test_a_fill_stays_in_front_of_the_fence(fill: str, persistent: int, trips: int) -> None:
    check(built((136, 64), trips, start=FILLS[fill], persistent=persistent, tile=(64, 64, 64)))


@pytest.mark.slow
@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize("trips", [1, 2])
def test_a_ragged_fill_of_two_instructions_does_too(fill: str, trips: int) -> None:
    for persistent in (0, 2):
        check(built((300, 56), trips, start=FILLS[fill], persistent=persistent))


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("fill", FILLS)
def test_a_fill_that_is_held_is_right(fill: str) -> None:
    shape = (136, 64)
    got = simulated(built(shape, 1, start=FILLS[fill], persistent=2, tile=(64, 64, 64)), shape, 1)
    arrays = inputs(shape, 1)
    values = {"columns": arrays["V"][None, :], "elements": arrays["S"], "a constant": 1}
    start = values.get(fill, arrays["S"] + arrays["V"][None, :])
    np.testing.assert_array_equal(got, product(shape, 1) + start)


# -- groups in flight: C7514 where ptxas moved a conversion in front of the last wait


TYPES = [(s, o) for s in ("float16", "float32") for o in ("float16", "bfloat16", "float32")]


@pytest.mark.sampled(every=5)
@pytest.mark.parametrize("trips", [1, 2, 3, 8])
@pytest.mark.parametrize("out", ["float16", "bfloat16", "float32"])
def test_conversions_stay_behind_the_last_wait(trips: int, out: str) -> None:
    check(built(RAGGED, trips, out=out, summed="float16", wgmma_pending=int(trips > 1)))


@pytest.mark.slow
@pytest.mark.parametrize("trips", [1, 2, 3, 8])
@pytest.mark.parametrize(("summed", "out"), TYPES)
def test_so_they_do_in_each_epilogue(trips: int, summed: str, out: str) -> None:
    pending = int(trips > 1)
    for value in (f"T.max({C}, T.float32(0))", f"{C} + {S}"):
        check(built(RAGGED, trips, value, out=out, summed=summed, wgmma_pending=pending))
    narrow = {"tile": (64, 64, 64), "wgmma_pending": pending}
    check(built((64, 64), trips, out=out, summed=summed, **narrow))
    check(built((200, 64), trips, out=out, summed=summed, persistent=2, **narrow))


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("persistent", [0, 2])
def test_a_product_behind_the_last_wait_is_right(persistent: int) -> None:
    shape = (200, 64)
    config = {"tile": (64, 64, 64), "wgmma_pending": 1, "persistent": persistent}
    ex = built(shape, 3, out="float16", summed="float16", **config)
    np.testing.assert_array_equal(simulated(ex, shape, 3), product(shape, 3))
