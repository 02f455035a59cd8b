"""Tiles that leave from the slots of a ring: values, verdicts, and that each sync is needed."""

import numpy as np
import pytest
import tvm
from tvm.script import tirx as T

from tests.sim_kernels.mutate import change, with_argument
from tests.sim_kernels.pointwise_kernels import scheduled
from tests.sim_kernels.store_ring_kernels import computed_per_output_tile, loaded_per_output_tile
from tvm_hopper import schedule as hs
from tvm_hopper.simulation import load, simulate, verify
from tvm_hopper.testing import copies
from tvm_hopper.testing.pointwise import Tiling

SLOW = pytest.mark.slow
ROLES = pytest.mark.parametrize("roles", [None, hs.Roles(1)], ids=["one-role", "producer"])


def check(sch) -> None:
    """Verify a schedule, and its values against the plain program."""
    report = verify(sch).require_clean()
    assert "values compared" in str(report)


def in_a_loop(slots, steps, rows, store="tma", roles=None, stages=2):
    tiling = Tiling(
        (4, 64), steps, 128, 2, stages=stages, roles=roles, store=store, store_slots=slots
    )
    return scheduled("exp_add", (rows, 128), tiling, "float32")[1]


# slots, trips: 1, one less than slots, as many, one more, and many more; rows cut short
LOOPS = [
    (2, 1, 4), (2, 2, 7), (2, 3, 11), (3, 2, 8), (3, 3, 11), (3, 4, 16), (4, 3, 12), (4, 5, 19),
    (2, 7, 28), (1, 3, 12),
]  # fmt: skip
REST = [x for x in LOOPS if x != LOOPS[2]]


@pytest.mark.slow
@ROLES
@pytest.mark.parametrize(
    ("slots", "steps", "rows"), [LOOPS[2], *(pytest.param(*x, marks=SLOW) for x in REST)]
)
def test_slots_and_trips(slots, steps, rows, roles):
    check(in_a_loop(slots, steps, rows, roles=roles))


@ROLES
@pytest.mark.parametrize(("slots", "steps"), [(2, 2), pytest.param(3, 3, marks=SLOW)])
def test_runs_of_bytes(slots, steps, roles):
    check(in_a_loop(slots, steps, 4 * steps - 1, "bulk", roles))


@SLOW
@pytest.mark.parametrize(("slots", "rows"), [(2, 12), (3, 11)])
def test_without_a_pipeline(slots, rows):
    check(in_a_loop(slots, 3, rows, stages=None))


@pytest.mark.parametrize(
    ("slots", "persistent"),
    [(2, 1), (3, 2), *(pytest.param(*x, marks=SLOW) for x in [(2, 6), (2, 3), (3, 1), (2, -1)])],
)
def test_output_tiles_that_blocks_share(slots, persistent):
    """One output tile in a block, two, three, six."""
    check(computed_per_output_tile(23, 128, "tma", slots, persistent))


@SLOW
def test_output_tiles_that_leave_in_runs():
    check(computed_per_output_tile(24, 128, "bulk", 2, 2))


@pytest.mark.slow
@ROLES
@pytest.mark.parametrize(
    ("slots", "persistent"),
    [(2, 1), *(pytest.param(*x, marks=SLOW) for x in [(1, 1), (2, 3), (3, 1), (3, 3)])],
)
def test_output_tiles_of_a_ring_of_loads(slots, persistent, roles):
    check(loaded_per_output_tile(23, 128, slots, persistent, roles))


def test_a_symbolic_number_of_tiles():
    sch = computed_per_output_tile("n", 128, "tma", 2, 2)
    plain = computed_per_output_tile("n", 128, "tma", 1, None)
    for rows in (1, 8, 31):
        rng = np.random.default_rng(rows)
        inputs = {
            "A": rng.integers(-3, 4, (rows, 128)).astype("float32"),
            "bias": rng.integers(-3, 4, rows).astype("float32"),
        }
        got, want = (simulate(load(x.mod), inputs, "on_wait", 0) for x in (sch, plain))
        assert not got.findings, "\n".join(map(str, got.findings))
        np.testing.assert_array_equal(got.outputs["C"], want.outputs["C"])
        np.testing.assert_array_equal(got.outputs["C"], inputs["A"] + inputs["bias"][:, None])


@pytest.mark.parametrize(
    ("stages", "slots", "steps"),
    [
        (4, 2, 6),
        *(
            pytest.param(*ring, steps, marks=SLOW)
            for ring in [(2, 2), (3, 1), (3, 2), (3, 3), (4, 3), (4, 4)]
            for steps in (1, 3, 6)
        ),
    ],
)
def test_a_tile_that_is_loaded_and_stored(stages, slots, steps):
    route = copies.Route((4, 64), steps, stages=stages, slots=slots)
    check(copies.schedule(copies.copy(4 * steps + 3, 64), route))


@pytest.mark.parametrize("slots", [None, pytest.param(3, marks=SLOW)])
def test_copies_of_threads_that_are_stored(slots):
    route = copies.Route((2, 64), 6, "cp_async", "bulk", 4, slots=slots)
    check(copies.schedule(copies.copy(24, 64), route))


@pytest.mark.parametrize(
    ("columns", "mechanism"), [(71, "auto"), pytest.param(64, "none", marks=SLOW)]
)
def test_slots_of_a_store_that_threads_make_after_all(columns, mechanism):
    stages = 2 if mechanism == "auto" else None
    route = copies.Route((2, columns), 3, mechanism, mechanism, stages, slots=2)
    check(copies.schedule(copies.copy(12, columns), route))


@pytest.mark.parametrize("slots", [3, pytest.param(2, marks=SLOW)])
def test_vectors_of_threads_that_are_stored(slots):
    route = copies.Route((2, 64), 5, None, "bulk", stages=None, threads=32, vector=4, slots=slots)
    check(copies.schedule(copies.copy(20, 64), route))


# -- what else touches a tile

TOUCHED = """
@T.prim_func(s_tir=True)
def main(TENSORS):
    for bx in T.thread_binding(2, thread="blockIdx.x"):
        for tx in T.thread_binding(128, thread="threadIdx.x"):
            for k in T.serial(6, annotations=NOTES):
                with T.sblock(""):
                    T.reads()
                    T.writes()
                    tile = T.sblock_alloc_buffer((8, 64), "float32", scope="shared.dyn")
FILL
STORES
"""
LOAD = """
for i, j in T.grid(8, 64):
    with T.sblock("load"):
        T.reads(A[(bx * 6 + k) * 8 + i, j])
        T.writes(tile[i, j])
        T.sblock_attr({"tvm_hopper.async_copy": "tma"})
        tile[i, j] = A[(bx * 6 + k) * 8 + i, j]
"""
WRITE = """
for i in range(4):
    with T.sblock("write"):
        T.reads()
        T.writes()
        tile[i * 2 + tx // 64, tx % 64] = A[(bx * 6 + k) * 8 + i * 2 + tx // 64, tx % 64] + T.float32(1)
"""  # noqa: E501
READ = """
for i in range(4):
    with T.sblock("read"):
        T.reads()
        T.writes()
        D[(bx * 6 + k) * 8 + i * 2 + tx // 64, tx % 64] = tile[7 - i * 2 - tx // 64, 63 - tx % 64]
"""
SOME = """
if k % 3 != 1:
    for i in range(4):
        with T.sblock("again"):
            T.reads()
            T.writes()
            if tx < 64:
                tile[i * 2, tx] = tile[i * 2, tx] * T.float32(2)
"""


def store(tensor: str, slots: int) -> str:
    """Return the lines that store the tile into a tensor."""
    return f"""
for i_{tensor}, j_{tensor} in T.grid(8, 64):
    with T.sblock("store_{tensor}"):
        T.reads(tile[i_{tensor}, j_{tensor}])
        T.writes({tensor}[(bx * 6 + k) * 8 + i_{tensor}, j_{tensor}])
        T.sblock_attr({{"tvm_hopper.async_copy": "tma", "tvm_hopper.store_slots": {slots}}})
        {tensor}[(bx * 6 + k) * 8 + i_{tensor}, j_{tensor}] = tile[i_{tensor}, j_{tensor}]
"""


def under(condition: str, lines: str) -> str:
    return f"if {condition}:\n" + "".join("    " + x + "\n" for x in lines.strip().splitlines())


def touched(fill: str, *parts: str, stages: int = 1, roles: bool = False) -> tvm.IRModule:
    """Return a kernel that fills a tile in each of six trips, and touches it in some ways."""
    number = 1 + len(parts)
    notes = {"tvm_hopper.consumers": 1} if roles else {}
    if fill is LOAD:
        notes |= {
            "software_pipeline_stage": [0] + [stages - 1] * (number - 1),
            "software_pipeline_order": list(range(number)),
            "software_pipeline_async_stages": [0],
        }

    def indented(lines: str) -> str:
        return "".join(" " * 20 + x + "\n" for x in lines.strip().splitlines())

    used = [x for x in "ABCD" if any(f"{x}[" in part for part in (fill, *parts))]
    tensors = ", ".join(f'{x}: T.Buffer((96, 64), "float32")' for x in used)
    text = TOUCHED.replace("TENSORS", tensors).replace("NOTES", repr(notes))
    text = text.replace("FILL\n", indented(fill))
    text = text.replace("STORES\n", "".join(map(indented, parts)))
    return tvm.IRModule({"main": tvm.script.from_source(text, extra_vars={"T": T})})


def run_touched(mod: tvm.IRModule, want: dict) -> None:
    """Check some tensors, and that every schedule of the roles is clean."""
    program = load(mod)
    a = np.random.default_rng(1).integers(-3, 4, (96, 64)).astype("float32")
    result = simulate(program, {"A": a}, "on_wait", 0)
    assert not result.findings, "\n".join(map(str, result.findings))
    for tensor, value in want.items():
        np.testing.assert_array_equal(result.outputs[tensor], value(a))
    verify(program, {"A": a}, max_ctas=2).require_clean()


SOME_ROWS = np.arange(96) // 8 % 6 % 3 != 1  # rows of the trips of `SOME`


def flipped(a):
    return a.reshape(-1, 8, 64)[:, ::-1, ::-1].reshape(a.shape)


@pytest.mark.parametrize("slots", [2, *(pytest.param(n, marks=SLOW) for n in (1, 3))])
def test_threads_read_what_is_stored(slots):
    want = {"B": lambda a: a + 1, "D": lambda a: flipped(a) + 1}
    run_touched(touched(WRITE, store("B", slots), READ), want)


@pytest.mark.parametrize("slots", [3, *(pytest.param(n, marks=SLOW) for n in (1, 2))])
def test_two_stores_from_one_tile(slots):
    """Each trip commits a group: both stores stand side by side."""
    both = {"B": lambda a: a + 1, "C": lambda a: a + 1}
    run_touched(touched(WRITE, store("B", slots), store("C", slots)), both)


def test_stores_with_reads_in_between():
    want = {"B": lambda a: a + 1, "C": lambda a: a + 1, "D": lambda a: flipped(a) + 1}
    run_touched(touched(WRITE, store("B", 3), READ, store("C", 3)), want)


def test_stores_that_some_trips_leave_out():
    """The count of groups in flight is the least on any path, the slot that of the trip."""
    program = load(touched(WRITE, under("k % 3 != 1", store("B", 2)), READ))
    a = np.random.default_rng(1).integers(-3, 4, (96, 64)).astype("float32")
    report = verify(program, {"A": a}, max_ctas=2)
    assert {finding.rule for finding in report.findings} == {"OUTPUT_COVERAGE"}, str(report)
    got = simulate(program, {"A": a}, "on_wait", 0).outputs
    np.testing.assert_array_equal(got["B"][SOME_ROWS], a[SOME_ROWS] + 1)
    np.testing.assert_array_equal(got["D"], flipped(a) + 1)


def test_elements_that_some_threads_write_again():
    run_touched(
        touched(WRITE, SOME, store("B", 2)),
        {"B": lambda a: (a + 1) * np.where((np.arange(96) % 2 == 0) & SOME_ROWS, 2, 1)[:, None]},
    )


@pytest.mark.slow
@ROLES
@pytest.mark.parametrize(
    ("stages", "slots"),
    [(4, 2), *(pytest.param(*x, marks=SLOW) for x in [(1, 1), (2, 1), (2, 2), (4, 1), (4, 4)])],
)
def test_threads_read_a_loaded_tile_that_is_stored(stages, slots, roles):
    mod = touched(LOAD, store("B", slots), READ, stages=stages, roles=roles is not None)
    run_touched(mod, {"B": lambda a: a, "D": flipped})


# -- each sync is needed

REMOVED = {
    ("fence_proxy", 0): {"PROXY_FENCE_MISSING"},
    ("cp_async_bulk_commit_group", 0): {"BULK_GROUP_MISUSE"},
    ("cp_async_bulk_wait_group", 0): {"RACE_OVERWRITE_BUSY"},
    ("cp_async_bulk_wait_group", 1): {"EXIT_PENDING_ASYNC"},
    ("tvm_storage_sync", 1): {"RACE_OVERWRITE_BUSY"},
    ("tvm_storage_sync", 2): {"RACE_READ_INFLIGHT"},
}


@pytest.mark.parametrize(("instruction", "which"), REMOVED)
def test_without_one(instruction, which):
    program = load(in_a_loop(2, 5, 20, stages=None).mod)
    report = verify(change(program, instruction, which))
    assert REMOVED[instruction, which] <= {finding.rule for finding in report.findings}


@pytest.mark.parametrize(
    "sch",
    [
        pytest.param(lambda: in_a_loop(2, 5, 20, stages=None), id="loop"),
        pytest.param(lambda: computed_per_output_tile(24, 128, "tma", 2, 1), id="persistent"),
        pytest.param(
            lambda: copies.schedule(copies.copy(24, 64), copies.Route((4, 64), 6, stages=4)),
            id="copy",
        ),
    ],
)
def test_one_more_pending_is_too_many(sch):
    program = load(sch().mod)
    weaker = with_argument(0, lambda n: n + 1)
    report = verify(change(program, "cp_async_bulk_wait_group", 0, weaker))
    assert "RACE_OVERWRITE_BUSY" in {finding.rule for finding in report.findings}
