"""Products whose sum thread blocks share through global memory: values and verdicts."""

import pytest
from tvm import s_tir

from tests.sim_kernels.kernels import check as numbers, scheduled
from tvm_hopper import ir, schedule as hs
from tvm_hopper.simulation import Program, load, verify
from tvm_hopper.testing.forms import FORMS

SLOW = pytest.mark.slow
TILE = (64, 16, 16)
PAIR = {"stages": 2, "consumers": 1}


def check(problem, tile, parts, max_ctas=8, mode="workspace", **config):
    """Verify a product, and its values against the plain program."""
    mod, module = scheduled(problem, tile, split_k=hs.SplitK(parts, mode), **PAIR | config)
    report = verify(module, against=mod, max_ctas=max_ctas).require_clean()
    assert "values compared" in str(report)


@pytest.mark.parametrize(
    ("m", "n", "k", "parts"),
    [
        (72, 24, 80, 3),  # ragged, the last part ends early
        pytest.param(64, 16, 16, 2, marks=SLOW),  # a part with no step
        pytest.param(64, 16, 400, 24, marks=SLOW),  # more than a cluster has
        pytest.param(128, 48, 1040, 64, marks=SLOW),  # hundreds of blocks
    ],
)
def test_sums_of_several_blocks(m, n, k, parts):
    check({"m": m, "n": n, "k": k}, TILE, parts)


@SLOW
def test_few_rows_transposed():
    problem = {"m": 17, "n": 72, "k": 80}
    check(problem, (64, 24, 16), 3, form="transposed")


@pytest.mark.parametrize(
    ("cluster", "mode", "parts"),
    [
        ((2, 1), "workspace", 3),
        pytest.param((1, 2), "caller", 6, marks=SLOW),  # of which a cluster of 4 sums two each
        pytest.param((2, 2), "workspace", 5, marks=SLOW),  # rows and columns without a tile
    ],
)
def test_blocks_that_load_for_one_another(cluster, mode, parts):
    problem = {"m": 136, "n": 24, "k": 112}
    check(problem, TILE, parts, 128, mode, cluster=cluster)


@SLOW
@pytest.mark.parametrize("out_dtype", ["float32", "bfloat16"])
def test_types_and_epilogues(out_dtype):
    problem = {"m": 64, "n": 32, "k": 64, "out_dtype": out_dtype, "epilogue": ("bias_col", "relu")}
    check(problem, (64, 32, 16), 4)


@SLOW
def test_two_consumers_and_an_order_of_tiles():
    problem = {"m": 384, "n": 64, "k": 64}
    check(problem, (128, 16, 16), 2, consumers=2, raster=2)


@SLOW
@pytest.mark.parametrize("form", ["two_outputs", "in_place", "beta"])
def test_forms_of_products(form):
    mod = FORMS[form](64, 32, 64, "float16")
    sch = s_tir.Schedule(mod)
    hs.matmul(sch, "C", hs.MatmulConfig((64, 32, 16), split_k=hs.SplitK(2, "workspace"), **PAIR))
    verify(sch.mod, against=mod).require_clean()


@SLOW
@pytest.mark.parametrize("rows", [1, 64, 100])
def test_rows_that_are_known_at_run_time(rows):
    problem = {"m": "m", "n": 32, "k": 64}
    numbers(problem, TILE, extents={"m": rows}, split_k=hs.SplitK(2, "workspace"), **PAIR)


def test_verify_sees_a_part_that_is_left_out():
    mod, module = scheduled(
        {"m": 64, "n": 16, "k": 32}, TILE, split_k=hs.SplitK(2, "workspace"), **PAIR
    )
    program = load(module)
    name, second = next(x for x in program.kernels.items() if x[0].endswith("_1"))
    adds = ir.find_all(second.body, ir.BufferStore, lambda x: "local" in str(x.buffer.scope()))
    first = next(x for x in adds if hasattr(x.value, "b"))
    wrong = ir.BufferStore(first.buffer, first.value.a, list(first.indices))
    body = ir.replace_nodes(second.body, ir.Stmt, {first: wrong})
    changed = Program(program.host, {**program.kernels, name: second.with_body(body)})
    report = verify(changed, against=mod)
    assert {x.rule for x in report.findings} == {"WRONG_VALUE"}
