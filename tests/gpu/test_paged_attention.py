"""Kernels of paged caches on a GPU against float64 and TVM's: random ragged and paged problems."""

from __future__ import annotations

import functools
import random
import threading

import numpy as np
import pytest
import tvm

from tests.schedule.attention.caches import (
    PAGE,
    TARGET,
    Cache,
    our_kernel,
    paged_arguments,
    ragged_arguments,
    reference,
    tvm_kernel,
)

pytestmark = pytest.mark.gpu

TOLERANCES = {"float16": 4e-3, "bfloat16": 2e-2}
POISON = 777
WINDOW = 320  # keys that TVM's kernel lets see, at least
KINDS = ("ragged", "prefill", "decode", "window", "window prefill")
PROBLEMS = 25  # of each kernel
# heads of queries and of keys, columns, type: a kernel each
SHAPES = (
    (1, 1, 32, "bfloat16"), (8, 2, 64, "float16"), (16, 2, 128, "bfloat16"), (4, 4, 256, "float16")
)  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _gpu():
    if not tvm.cuda(0).exist or tvm.cuda(0).compute_version != "9.0":
        pytest.skip("no GPU of compute capability 9.0")


def draw(kind: str, shape: tuple, seed: int) -> Cache:
    """Draw sequences: some empty, one long among short ones, shared pages, windows with sinks."""
    choose = random.Random(f"paged {kind} {shape} {seed}")
    count = choose.choice((1, 2, 5, 17, 40))
    longest = choose.choice((3, 40, 300))
    keys = [choose.choice((0, 1, PAGE, choose.randint(1, longest))) for _ in range(count)]
    keys[choose.randrange(count)] = choose.randint(1, 900)
    fields = dict(zip(("heads", "kv_heads", "d", "dtype"), shape, strict=True), seed=seed)
    starts = [choose.randint(0, max(n - 1, 0)) for n in keys]
    windows = tuple((x, choose.randint(0, x)) for x in starts)
    if kind == "window prefill":
        queries = tuple(choose.randint(0, longest) for _ in keys)
        fields |= {"windows": windows, "window_size": WINDOW}
        return Cache(tuple(keys), queries, causal=choose.choice((0, 1, 1)), **fields)
    if kind in ("ragged", "prefill"):
        # TVM's kernel gives masked keys a weight where a row sees none of its sequence's
        queries = tuple(choose.randint(0, max(n, 0 if n else 3)) for n in keys)
        return Cache(tuple(keys), queries, causal=choose.choice((0, 1)), **fields)
    if kind == "window":
        return Cache(tuple(keys), windows=windows, **fields)
    shared = count > 1 and keys[1] > 0 and choose.random() < 0.5
    return Cache(tuple(keys), shared=shared, **fields)


@functools.cache
def build(kind, shape):
    """Compile our function and the one that it calls."""
    case, ragged = draw(kind, shape, 0), kind == "ragged"
    ours = our_kernel(case, ragged).with_attr("global_symbol", "ours")
    theirs = tvm_kernel(case, ragged).with_attr("global_symbol", "tvm_s")
    return tvm.compile(tvm.IRModule({"ours": ours, "tvm_s": theirs}), target=TARGET)


def compute(run, func, given):
    """Run a function of tensors on the GPU, with poisoned outputs."""
    values, outputs = [], {}
    for name in (str(x.name) for x in func.params):
        value = given[name]
        if isinstance(value, np.ndarray):
            if name in ("output", "lse"):
                value = np.full_like(value, POISON)
            value = tvm.runtime.tensor(value, device=tvm.cuda(0))
            outputs[name] = value
        values.append(value)
    run(*values)
    tvm.cuda(0).sync()
    return [outputs[x].numpy().astype("float64") for x in ("output", "lse")]


def check(case, found, parts):
    size = max((abs(v.astype("float64")).max() for _, _, v in parts if v.size), default=1)
    tolerance = TOLERANCES[case.dtype] * max(1, size / 4)
    for got, want in zip(found, reference(case, parts), strict=True):
        np.testing.assert_allclose(got, want, atol=tolerance, rtol=tolerance)


def problem(kind, shape, seed):
    case = draw(kind, shape, seed)
    return case, *(ragged_arguments if kind == "ragged" else paged_arguments)(case)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_random_problems(kind, shape):
    run = build(kind, shape)["ours"]
    for seed in range(PROBLEMS):
        case, given, parts = problem(kind, shape, seed)
        func = tvm_kernel(case, kind == "ragged")
        once = compute(run, func, given)
        check(case, once, parts)
        for one, other in zip(once, compute(run, func, given), strict=True):
            np.testing.assert_array_equal(one, other)  # the same bits again


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rotary_mode", [0, 1])
def test_tvm_s_kernel(kind, rotary_mode):
    """With rotary_mode 1 ours calls it: the results have the same bits."""
    for seed in range(3):
        case, given, _ = problem(kind, SHAPES[1], 1000 + seed)
        given = {**given, "rotary_mode": rotary_mode}
        built = build(kind, SHAPES[1])
        func = tvm_kernel(case, kind == "ragged")
        ours, theirs = (compute(built[x], func, given) for x in ("ours", "tvm_s"))
        if rotary_mode:
            for one, other in zip(ours, theirs, strict=True):
                np.testing.assert_array_equal(one, other)
            continue
        tolerance = TOLERANCES[case.dtype]
        np.testing.assert_allclose(ours[0], theirs[0], atol=tolerance, rtol=tolerance)
        # TVM's denominators begin at 1 in each warp: log2 of that where there is no key
        np.testing.assert_allclose(ours[1], theirs[1], atol=2e-3, rtol=2e-4)


def test_two_threads_on_one_executable():
    case, given, parts = problem("decode", SHAPES[1], 5)
    run, func, found = build("decode", SHAPES[1])["ours"], tvm_kernel(case), []

    def work():
        for _ in range(10):
            found.append(compute(run, func, given))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for x in threads:
        x.start()
    for x in threads:
        x.join()
    assert len(found) == 20
    for each in found:
        check(case, each, parts)
