"""Each form of a pipeline that a loop may have, by each mechanism: values and verdicts.

one load, one reader                    for k in range(5): load(a); add(a)
several asynchronous stages             a is loaded two trips before it is read, b one
copies of several buffers in a stage    load(a); load(b); add(a, b)
consumers in several stages             load(a); c = f(a); add(c)
nested                                  load(b) around load(a); add(a, b)
loops from another start than 0, of 0, 1, S - 1 and S turns, counted at run time or by a tensor
predicated copies                       zeros where the predicate leaves something out
persistent blocks                       an odd number of trips a tile, so that phases carry on
two loops, one behind the other         with one producer for both
"""

import itertools
import re

import numpy as np
import pytest

from tests.sim_kernels.kernels import RUNS
from tests.sim_kernels.ring_kernels import add, block, check, copy, counted, kernel, loop, new, ring
from tvm_hopper import pipeline
from tvm_hopper.errors import LoweringError
from tvm_hopper.simulation import load, simulate, verify

MECHANISMS = ("tma", "bulk", "cp_async")
BY = pytest.mark.parametrize("by", MECHANISMS)


def each_way(*values, name="case", quick=(("tma", True), ("bulk", False), ("cp_async", False))):
    """Cross values of a form with mechanisms and roles; all but a few of each kind are slow.

    The first value runs with each of `quick`, the others with one of them in turn.
    """
    rows = []
    for n, value in enumerate(values or (None,)):
        chosen = quick if n == 0 else quick[n % len(quick) :][:1]
        for by, roles in itertools.product(MECHANISMS, (False, True)):
            marks = () if (by, roles) in chosen else pytest.mark.slow
            who = f"{value}-{by}-{'producer' if roles else 'one-role'}"
            own = (by, roles) if not values else (value, by, roles)
            rows.append(pytest.param(*own, marks=marks, id=who.removeprefix("None-")))
    return pytest.mark.parametrize(("by", "roles") if not values else (name, "by", "roles"), rows)


SUM = add("a[r, tx]")
PRODUCT = add("a[r, tx] * b[r, tx]")


def tiles(x):
    """Return a matrix as tiles of 8 rows, in order, for each of two thread blocks."""
    return x.reshape(2, -1, 8, 128)


def annotated(stages: list[int], asynchronous: list[int], roles: bool = False, order=None) -> str:
    notes: dict[str, object] = {
        "software_pipeline_stage": stages,
        "software_pipeline_order": order or list(range(len(stages))),
        "software_pipeline_async_stages": asynchronous,
    }
    if roles:
        notes["tvm_hopper.consumers"] = 1
    return f"annotations={notes!r}"


# -- stages


@pytest.mark.sampled(every=2)
@each_way([0, 1, 2], [0, 0, 2], [1, 0, 3], name="stages")
def test_copies_in_one_stage_and_in_several(by, roles, stages):
    row = "(i * 5 + k) * 8"
    parts = copy("a", "A", row, by), copy("b", "B", row, by), PRODUCT
    head = f"for k in T.serial(5, {annotated(stages, sorted({*stages[:2]}), roles)})"
    mod = kernel(loop(head, block(new("a", "b"), *parts)), rows=(80, 80))
    check(mod, lambda a, b: (tiles(a) * tiles(b)).sum((1, 2)))


CONSUMERS = {
    "registers": (
        'c = T.sblock_alloc_buffer((8,), "float32", scope="local")\n',
        "c[r] = a[r, tx] * T.float32(2)",
        "c[r]",
    ),
    "shared memory": (
        'c = T.sblock_alloc_buffer((8, 128), "float32", scope="shared.dyn")\n',
        "c[r, 127 - tx] = a[r, tx] * T.float32(2)",
        "c[r, tx]",
    ),
}


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("through", CONSUMERS)
@each_way([0, 1, 2], [0, 2, 3], [0, 0, 1], [0, 1, 3], name="stages", quick=[("tma", False)])
def test_consumers_in_several_stages(by, roles, through, stages):
    """What one computes the other adds, through registers or through shared memory."""
    alloc, compute, value = CONSUMERS[through]
    parts = (
        copy("a", "A", "(i * 5 + k) * 8", by),
        f"for r in range(8):\n    {compute}\n",
        add(value),
    )
    head = f"for k in T.serial(5, {annotated(stages, [0], roles)})"
    mod = kernel(loop(head, block(new("a"), alloc, *parts)), rows=(80, 8))
    flip = through == "shared memory"
    check(mod, lambda a, _: 2 * (tiles(a)[..., ::-1] if flip else tiles(a)).sum((1, 2)))


@each_way()
def test_a_ring_in_a_ring(by, roles):
    inner = loop(
        f"for k in T.serial(3, {ring(2, roles=roles)})",
        block(new("a"), copy("a", "A", "((i * 3 + n) * 3 + k) * 8", by), PRODUCT),
    )
    outer = f"for n in T.serial(3, {ring(2)})"
    mod = kernel(
        loop(outer, block(new("b"), copy("b", "B", "(i * 3 + n) * 8", by), inner)), rows=(144, 48)
    )
    check(mod, lambda a, b: (a.reshape(2, 3, 3, 8, 128) * tiles(b)[:, :, None]).sum((1, 2, 3)))


# -- how many turns, and which


@each_way(0, 1, 2, 3, 4, name="trips")
def test_turns_around_the_number_of_slots(by, roles, trips):
    """None, one, one less than slots, as many, one more."""
    head = f"for k in T.serial({trips}, {ring(3, roles=roles)})"
    body = block(new("a"), copy("a", "A", "(i * 4 + k) * 8", by), SUM)
    mod = kernel(loop(head, body), rows=(64, 8))
    check(mod, lambda a, _: tiles(a)[:, :trips].sum((1, 2)))


@each_way(3, 1, name="start")
def test_a_loop_from_another_start(by, roles, start):
    head = f"for k in T.serial({start}, 6, {ring(3, roles=roles)})"
    body = block(new("a"), copy("a", "A", "(i * 6 + k) * 8", by), add("a[r, tx] * T.float32(k)"))
    mod = kernel(loop(head, body), rows=(96, 8))
    weights = np.where(np.arange(6) >= start, np.arange(6), 0)[None, :, None, None]
    check(mod, lambda a, _: (tiles(a) * weights).sum((1, 2)))


@each_way("symbol", "tensor", name="kind", quick=[("tma", True), ("cp_async", False)])
def test_turns_that_run_time_counts(by, roles, kind):
    extent = "n" if kind == "symbol" else "L[i]"
    body = block(new("a"), copy("a", "A", "(i * 5 + k) * 8", by), SUM)
    program = load(counted(loop(f"for k in T.serial({extent}, {ring(3, roles=roles)})", body)))
    a = np.random.default_rng(2).integers(-3, 4, (80, 128)).astype("float32")
    for turns in ((0, 0), (1, 1), (2, 2), (3, 3), (5, 5), *([(0, 5), (4, 1)] * (kind == "tensor"))):
        values = {"A": a, "L": np.array(turns, "int32"), "n": turns[0]}
        values["C"] = np.full((2, 128), 99, "float32")
        want = np.stack([tiles(a)[i, : turns[i]].sum((0, 1)) for i in range(2)])
        result = simulate(program, values)
        assert not result.findings, f"{turns}: {result.findings[0]}"
        np.testing.assert_array_equal(result.outputs["C"], want)
        report = verify(program, values, RUNS)
        assert report.verdict == "clean", f"{turns}: {report}"
        assert ("by the contents of L in this call" in str(report)) == (kind == "tensor")


# -- copies that a predicate cuts


@each_way()
def test_predicated_copies(by, roles):
    """The last two rows of the last tile lie behind the tensor; nobody reads them."""
    row = "(i * 3 + k) * 8"
    bound = f"T.where({row} + r_a < 46)\n"
    text = copy("a", "A", row, by)
    where = '    with T.sblock("load_a"):\n'
    assert where in text
    text = text.replace(where, f"{where}        {bound}")
    reads = f"for r in range(8):\n    if {row} + r < 46:\n        acc[0] = acc[0] + a[r, tx]\n"
    body = block(new("a"), text, reads)
    mod = kernel(loop(f"for k in T.serial(3, {ring(2, roles=roles)})", body), rows=(46, 8))
    check(mod, lambda a, _: tiles(np.pad(a, ((0, 2), (0, 0)))).sum((1, 2)))


@BY
def test_a_predicate_that_fills_with_zeros(by):
    row = "(i * 3 + k) * 8"
    text = copy("a", "A", row, by).replace(
        f"= A[{row} + r_a, c_a]",
        f"= T.if_then_else({row} + r_a < 46, A[{row} + r_a, c_a], T.float32(0))",
    )
    mod = kernel(loop(f"for k in T.serial(3, {ring(2)})", block(new("a"), text, SUM)), rows=(46, 8))
    if by == "bulk":  # it moves bytes, and fills nothing
        with pytest.raises(LoweringError, match=r"copy of A into a: found .*a fill"):
            load(mod)
        return
    check(mod, lambda a, _: tiles(np.pad(a, ((0, 2), (0, 0)))).sum((1, 2)))


# -- more than one tile, more than one loop


@each_way()
def test_persistent_blocks_carry_phases_on(by, roles):
    """Three trips a tile over two slots: the second tile begins with the other slot and phase."""
    head = f"for k in T.serial(3, {ring(2, roles=roles)})"
    body = block(new("a"), copy("a", "A", "(i * 3 + k) * 8", by), SUM)
    mod = kernel(loop(head, body), rows=(48, 8), persistent=1)
    check(mod, lambda a, _: tiles(a).sum((1, 2)))


@each_way(0, 1, name="persistent")
def test_two_loops_one_behind_the_other(by, roles, persistent):
    loops = [
        loop(
            f"for {k} in T.serial({trips}, {ring(2, roles=roles)})",
            block(new(x), copy(x, x.upper(), f"(i * {trips} + {k}) * 8", by), add(f"{x}[r, tx]")),
        )
        for k, x, trips in (("k", "a", 3), ("k2", "b", 5))
    ]
    mod = kernel(*loops, rows=(48, 80), persistent=persistent)
    if roles:  # one role loads for both
        text = pipeline.lower(
            mod, "nvidia/nvidia-h200", until="tvm_hopper.SpecializeWarps"
        ).script()
        assert len(re.findall(r"if threadIdx_x < 32:", text)) == 1
    check(mod, lambda a, b: tiles(a).sum((1, 2)) + tiles(b).sum((1, 2)))
