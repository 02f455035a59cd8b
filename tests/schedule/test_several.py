"""`hs.matmul` of several products that share an operand: one kernel, an accumulator for each."""

import re

import numpy as np
import pytest
import tvm
from tvm import s_tir, te

from tests.schedule.refuse import refuse
from tvm_hopper import explain, ir, schedule as hs
from tvm_hopper.errors import ScheduleError
from tvm_hopper.facts.arch import SM_90A
from tvm_hopper.schedule.products.config import find_violations
from tvm_hopper.simulation import simulate, verify
from tvm_hopper.testing.gates import products_of_one_operand

H200 = "nvidia/nvidia-h200"
BOTH = ("C0", "C1")


def plain(gate, up, *more):
    """Combine products of small integers without rounding."""
    return sum(more, gate * up)


def scheduled(m, n, k, count=2, rows=None, **config):
    mod = products_of_one_operand(m, n, k, count, value=plain)
    sch = s_tir.Schedule(mod)
    hs.matmul(sch, [f"C{x}" for x in range(count)], hs.MatmulConfig(**config), rows=rows)
    return mod, sch


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(
    ("m", "n", "k", "config"),
    [
        (64, 32, 64, {}),
        (100, 72, 40, {"tile": (64, 64, 32), "consumers": 1}),  # no whole tile
        (64, 64, 128, {"tile": (64, 64, 64), "consumers": 2}),  # consumers by columns
        (128, 64, 192, {"tile": (64, 32, 64), "stages": 3, "wgmma_pending": 1, "persistent": 3}),
        (128, 64, 64, {"tile": (64, 64, 64), "schedule": "pingpong"}),
        (64, 64, 64, {"tile": (64, 64, 64)}),  # one step: nothing is filled
        (64, 16, 32, {"count": 3}),
        ("m", 64, 64, {"rows": 64}),
    ],
)
def test_values(m, n, k, config):
    _, sch = scheduled(m, n, k, **config)
    rng = np.random.default_rng(0)
    count, rows = config.get("count", 2), 70 if m == "m" else m
    a, *weights = (rng.integers(-2, 3, (x, k)).astype("float16") for x in [rows, *[n] * count])
    done = simulate(sch, {"A": a, **{f"W{x}": w for x, w in enumerate(weights)}}, target=H200)
    want = plain(*(a.astype("float64") @ w.astype("float64").T for w in weights))
    assert done.findings == ()
    np.testing.assert_array_equal(done.outputs["D"], want.astype("float16"))


def test_it_is_verified_against_its_plain_loops():
    mod, sch = scheduled(72, 40, 64, tile=(64, 32, 32), stages=2)
    verify(sch, against=mod, target=H200).require_clean()


def test_one_load_and_both_accumulators():
    """The padded operand is loaded once; both products are one group of instructions."""
    _, sch = scheduled(200, 256, 128, tile=(128, 128, 64))
    explained = explain(sch, H200)
    (kernel,) = explained.kernels
    assert [x.tensor for x in kernel.tensor_maps] == ["A", "W0", "W1"]
    assert kernel.rings[0].stage_bytes == (128 + 2 * 128) * 64 * 2
    assert [x.accumulator_registers for x in kernel.products] == [64, 64]
    assert "128 of them accumulators" in str(explained)
    assert sch.mod.script().count("tvm_hopper.early_launch") == 1


def test_the_model_takes_them_for_one_product_of_all_columns():
    mod = products_of_one_operand(8192, 14336, 4096)
    sch = s_tir.Schedule(mod)
    hs.matmul(sch, BOTH)
    (kernel,) = explain(sch, H200).kernels
    m, n, _ = kernel.products[0].tile
    assert kernel.products[0].choice.startswith(("128x128x64, 2 consumers", "256x64x64, 2 cons"))
    assert (m * n * 2, kernel.consumers) in ((64 * 256, 2), (64 * 256, 3), (128 * 128, 2))
    held = sum(x.accumulator_registers for x in kernel.products)
    assert held <= kernel.roles.registers[1] - 44


def test_a_trace_replays():
    mod, sch = scheduled(128, 64, 64)
    other = s_tir.Schedule(mod)
    sch.trace.apply_to_schedule(other, remove_postproc=False)
    tvm.ir.assert_structural_equal(other.mod, sch.mod)


@pytest.mark.parametrize(("columns", "fits"), [(184, True), (192, False)])
def test_registers_of_two_accumulators(columns, fits):
    """Of 232 registers 188 may be accumulators of several products, 206 of one."""
    config, tile = hs.MatmulConfig(consumers=2), (128, 2 * columns, 64)
    broken = "; ".join(find_violations(tile, 1, config, "float16", SM_90A, 2))
    assert ("accumulators" not in broken) == fits
    assert "accumulators" not in "; ".join(
        find_violations((128, 408, 64), 1, config, "float16", SM_90A)
    )


def parts(columns=64, other=False):
    """Return operands and two products: the second one has so many columns, or another operand."""
    a, b = (te.placeholder((64, 64), "float16", x) for x in "AB")
    w = te.placeholder((columns, 64), "float16", "W")

    def product(left, right, name):
        axis = te.reduce_axis((0, 64), "k")

        def term(i, j):
            values = left[i, axis].astype("float32") * right[j, axis].astype("float32")
            return te.sum(values, [axis])

        return te.compute((left.shape[0], right.shape[0]), term, name)

    return a, b, w, product(a, b, "C"), product(b if other else a, w, "U")


def made(args, *outputs):
    return te.create_prim_func([*args, *outputs])


def test_refused_products():
    a, b, w, c, u = parts(other=True)
    d = te.compute(c.shape, lambda i, j: c[i, j] * u[i, j], "D")
    match = "blocks C and U: found the left operand A in C and B in U; need products of one shape"
    refuse(made([a, b, w], d), match, block=("C", "U"))
    a, b, w, c, u = parts(columns=32)
    d = te.compute(c.shape, lambda i, j: c[i, j] * u[i, j // 2], "D")
    refuse(made([a, b, w], d), "found N 64 in C and 32 in U; need products", block=("C", "U"))


def test_refused_readers():
    a, b, w, c, u = parts()
    refuse(made([a, b, w], c, u), "found C, which is needed in memory, too", block=("C", "U"))
    d = te.compute(c.shape, lambda i, j: c[i, j] * 2, "D")
    e = te.compute(c.shape, lambda i, j: u[i, j] * 2, "E")
    refuse(made([a, b, w], d, e), "found D, E after them; need one block", block=("C", "U"))


def test_refused_output_that_is_an_operand():
    mod = products_of_one_operand(64, 64, 64, value=plain)
    func = mod["main"]
    a, d = (func.params[x] for x in (0, 3))
    inside = ir.substitute(func.body, {d: a})
    changed = tvm.IRModule({"main": func.with_body(inside)})
    match = "found block D, which writes A, an operand of them; need a separate output"
    refuse(changed, match, block=BOTH)


@pytest.mark.parametrize(
    ("match", "config", "blocks"),
    [
        ("found 1 products; need two or more; give the block itself", {}, ("C0",)),
        ("found early_launch='weights'; need accumulators", {"early_launch": "weights"}, BOTH),
        ("found store='tma'; need accumulators of all products in one", {"store": "tma"}, BOTH),
        (
            "block C0 and C1, tile 128x256x64: found 256 accumulators a thread (2 products of "
            "128x256 over 2 consumers); need at most 188 of 232 registers, by a smaller tile",
            {"tile": (128, 256, 64), "consumers": 2},
            BOTH,
        ),
        (
            "found a tile of 24 columns for 2 consumers; need a multiple of 8 columns for each",
            {"tile": (64, 24, 64), "consumers": 2},
            BOTH,
        ),
        (
            "found swizzle=128 with rows of 32 elements in A's tile; need multiples of 64",
            {"tile": (64, 64, 32), "swizzle": 128},
            BOTH,
        ),
    ],
)
def test_refused_configurations(match, config, blocks):
    mod = products_of_one_operand(128, 256, 128)
    refuse(mod, re.escape(match), hs.MatmulConfig(**config), block=blocks)


def test_refused_calls():
    mod = products_of_one_operand("m", 64, 64)
    refuse(
        mod,
        "found size classes of several products; need one kernel; give rows=",
        block=BOTH,
        helper=lambda sch, block, _: hs.matmul(sch, block, classes=(16, 64)),
    )
    refuse(
        products_of_one_operand(64, 64, 64),
        "found rows=16 for M = 64; need a symbolic M",
        block=BOTH,
        helper=lambda sch, block, _: hs.matmul(sch, block, rows=16),
    )
    sch = s_tir.Schedule(mod)
    size = sch.sample_categorical([64, 128], [0.5, 0.5])
    with pytest.raises(ScheduleError, match="found a sampled tile or stages for several products"):
        hs.matmul(sch, BOTH, hs.MatmulConfig(tile=(64, size, 64)))
