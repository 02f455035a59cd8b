"""Products whose last tile has rows that no load fills: values, verdicts, what of it is needed."""

import functools

import pytest
import tvm
from tvm import s_tir, te, tirx

import tvm_hopper
from tests.sim_kernels.each_sync import product
from tests.sim_kernels.kernels import scheduled
from tests.sim_kernels.mutate import change, with_argument
from tvm_hopper import ir, schedule as hs
from tvm_hopper.simulation import Program, load, simulate, verify
from tvm_hopper.testing import workloads

SLOW = pytest.mark.slow
SMALL = {"m": 72, "n": 16, "k": 96}
TILE = (64, 16, 16)


@pytest.mark.parametrize(
    ("problem", "tile", "config"),
    [
        ({"m": 72, "n": 16, "k": 40}, TILE, {}),  # the last tile has 8 of 64 rows
        ({"m": 3, "n": 24, "k": 40}, TILE, {}),  # of both operands some
        pytest.param({"m": 65, "n": 40, "k": 40}, TILE, {"form": "transposed"}, marks=SLOW),
        pytest.param({"m": 72, "n": 16, "k": 96}, TILE, {"split_k": 2}, marks=SLOW),
        pytest.param({"m": 100, "n": 16, "k": 40, "dtype": "bfloat16"}, TILE, {}, marks=SLOW),
    ],
)
def test_rows_beyond_the_end_are_not_loaded(problem, tile, config):
    mod, module = scheduled(problem, tile, stages=2, consumers=1, persistent=0, **config)
    assert "A_tail_map" in str(load(module).host)
    verify(module, against=mod).require_clean()


@pytest.mark.parametrize("config", [{"persistent": 2}, {"cluster": (1, 2)}])
def test_of_several_tiles_and_in_clusters_the_hardware_fills(config):
    """Few of many tiles cross an edge; what blocks load for one another falls into equal boxes."""
    _, module = scheduled({"m": 72, "n": 32, "k": 32}, TILE, stages=2, consumers=1, **config)
    assert "A_tail_map" not in str(load(module).host)


@pytest.mark.parametrize(
    ("rows", "config"),
    [(136, {}), pytest.param(200, {"form": "transposed"}, marks=SLOW)],
)
def test_of_several_tiles_of_any_rows_the_last_one_has_a_box_of_its_own(rows, config):
    """A kernel that is given any number of rows meets few tiles, too, of which one crosses."""
    problem = {"m": "m", "n": 24, "k": 48, "dtype": "float16", "out_dtype": "float16"}
    mod, module = scheduled(problem, TILE, stages=2, consumers=1, persistent=2, **config)
    assert "A_tail_map" in str(load(module).host)
    names = [p.name for p in mod["main"].params]
    values = dict(zip(names, workloads.make_inputs(mod, seed=1, m=rows), strict=False))
    verify(module, values, against=mod).require_clean()


@functools.cache
def right() -> tuple[Program, dict]:
    return product(SMALL, TILE, stages=2, consumers=1, persistent=0)


def found(program: Program) -> set[str]:
    return set(simulate(program, right()[1], "eager", seed=5).rules)


def test_the_kernel_is_clean():
    assert found(right()[0]) == set()


def test_rows_that_were_never_written_have_no_value():
    program = right()[0]
    ((name, func),) = program.kernels.items()
    (clear,) = ir.find_all(func.body, ir.BufferStore, lambda x: isinstance(x.value, tirx.Broadcast))
    body = ir.replace_nodes(func.body, ir.Stmt, {clear: ir.seq()})
    assert found(Program(program.host, {name: func.with_body(body)})) == {"UNINIT_READ"}


def test_zeros_are_ordered_before_what_reads_them():
    """By the fence between proxies, and by a barrier of the consumers behind it."""
    assert found(change(right()[0], "fence_proxy", 0)) == {"PROXY_FENCE_MISSING"}
    assert found(change(right()[0], "bar_sync_count", 0)) == {"RACE_READ_INFLIGHT"}


def test_zeros_of_a_tile_that_is_whole_would_meet_its_loads():
    """Consumers write while loads are under way: only blocks whose tile crosses the end do."""
    program = right()[0]
    ((name, func),) = program.kernels.items()

    def clears(node: ir.IfThenElse) -> bool:
        zeros = ir.find_all(node.then_case, ir.BufferStore)
        inner = ir.find_all(node.then_case, ir.IfThenElse)
        return (
            bool(inner) and all(isinstance(x.value, tirx.Broadcast) for x in zeros) and bool(zeros)
        )

    (guard,) = ir.find_all(func.body, ir.IfThenElse, clears)
    body = ir.replace_nodes(func.body, ir.Stmt, {guard: guard.then_case})
    assert found(Program(program.host, {name: func.with_body(body)})) == {"RACE_OVERWRITE_BUSY"}


@pytest.mark.parametrize("persistent", [0, 2])
def test_of_one_tile_a_block_consumers_write_zeros(persistent):
    """Of several, an earlier tile's loads may be under way by then: zeros go in front of all."""
    problem = {"m": "m", "n": 24, "k": 48, "dtype": "float16", "out_dtype": "float16"}
    _, module = scheduled(problem, TILE, stages=2, consumers=1, persistent=persistent)
    ((_, func),) = load(module).kernels.items()
    text = str(func)
    by_consumers = text.index("T.Broadcast") > text.index("mbarrier_init")
    assert by_consumers == (persistent == 0)


def test_bytes_of_the_last_tile_are_those_that_arrive():
    of_a_whole_tile = tirx.IntImm("uint32", 64 * 32 + 16 * 32)
    program = change(right()[0], "mbarrier_arrive_expect_tx", 0, with_argument(1, of_a_whole_tile))
    assert "DEADLOCK" in found(program)


@pytest.mark.parametrize("dtype", ["int8", "bool", "float16"])
def test_trips_that_a_copy_in_bulk_leaves_out_are_no_spare_rows(dtype):
    """Nobody reads them, and their slots are no panels of spare rows: nothing is cleared."""
    a = te.placeholder((2, 64), dtype, name="A")
    c = te.compute((2, 64), lambda i, j: a[i, j], name="C")
    sch = s_tir.Schedule(te.create_prim_func([a, c]))
    rows, columns = sch.get_loops("C")
    outer, trip = sch.split(rows, [None, 4])
    block, inner = sch.split(columns, [None, 32])
    sch.reorder(outer, block, trip, inner)
    sch.bind(sch.fuse(outer, block), "blockIdx.x")
    copy = sch.cache_read("C", 0, "shared.dyn")
    sch.compute_at(copy, trip)
    hs.async_copy(sch, copy, "bulk")
    hs.async_store(sch, sch.get_sblock("C"), "bulk")
    hs.pipeline(sch, trip, stages=3)
    ex = tvm.compile(sch.mod, target="nvidia/nvidia-h200")
    assert "make_int4" not in ex.mod.imports[0].inspect_source()
    assert tvm_hopper.cubin(ex)
    assert verify(ex, runs=[("eager", 0)], progress=False).verdict == "clean"
