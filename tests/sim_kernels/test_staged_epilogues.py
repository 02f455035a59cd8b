"""Products whose output goes through shared memory: values, verdicts, and each sync of the way."""

import functools

import pytest
from tvm import s_tir, te

from tests.sim_kernels.mutate import change
from tvm_hopper import pipeline, schedule as hs
from tvm_hopper.errors import ScheduleError
from tvm_hopper.requests.keys import CONSUMERS, PIPELINE_KEYS, STAGE
from tvm_hopper.simulation import load, verify
from tvm_hopper.testing import workloads
from tvm_hopper.testing.tiling import module_of, product_of

H200 = "nvidia/nvidia-h200"
SMALL = {"tile": (64, 64, 16), "stages": 2, "consumers": 1, "persistent": 0}
PAIR = {"tile": (128, 32, 16), "stages": 2, "consumers": 2, "persistent": 0}


def scheduled(problem, **config):
    """Schedule a matmul whose stores go by TMA."""
    sch = s_tir.Schedule(workloads.matmul(**{"out_dtype": "float16", **problem}))
    hs.matmul(sch, "C", hs.MatmulConfig(**{"store": "tma", **config}))
    return sch


def check(sch) -> None:
    """Verify a schedule, and its values against the plain program."""
    report = verify(sch).require_clean()
    assert "values compared" in str(report)


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize(
    ("problem", "config"),
    [
        ({"m": 64, "n": 64, "k": 32}, SMALL),
        ({"m": 40, "n": 72, "k": 24}, SMALL),
        ({"m": 72, "n": 136, "k": 32}, {**SMALL, "persistent": 2}),
        ({"m": 136, "n": 40, "k": 16}, PAIR),
        ({"m": 200, "n": 32, "k": 48}, {**PAIR, "persistent": 1, "store": hs.TmaStore(2)}),
        ({"m": 64, "n": 64, "k": 16}, {**PAIR, "tile": (64, 64, 16)}),  # consumers share columns
        ({"m": 64, "n": 24, "k": 16}, {**SMALL, "tile": (64, 24, 16)}),  # three matrices in a row
    ],
    ids=["plain", "ragged", "persistent", "pair", "pair in parts", "columns", "odd"],
)
def test_every_form(problem, config):
    check(scheduled(problem, **config))


SLOW = pytest.mark.slow


@pytest.mark.slow
@pytest.mark.parametrize(
    "epilogue",
    [
        ("bias_col", "gelu"),
        pytest.param(("residual",), marks=SLOW),
        pytest.param(("bias_row", "relu"), marks=SLOW),
    ],
)
def test_epilogues_are_fused_and_read_nothing_out_of_bounds(epilogue):
    check(scheduled({"m": 72, "n": 40, "k": 16, "epilogue": epilogue}, **SMALL))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_type(dtype):
    check(scheduled({"m": 72, "n": 40, "k": 16, "out_dtype": dtype}, **SMALL))


def test_one_row_leaves_as_one():
    """The copy out has no loop over rows then, though the tile that it leaves has 64."""
    check(scheduled({"m": 1, "n": 256, "k": 128}))


@pytest.mark.looks_ahead
def test_one_column_does_not_leave_by_tma():
    with pytest.raises(ScheduleError, match=r"found one column of the \d+ that D_shared.dyn holds"):
        scheduled({"m": 256, "n": 1, "k": 128})


@pytest.mark.parametrize(("width", "swizzle"), [(8, 0), (16, 32), (32, 64), (64, 128)])
def test_the_widest_swizzle_that_a_row_has_room_for(width, swizzle):
    sch = scheduled({"m": 64, "n": 64, "k": 16}, **SMALL, store=hs.TmaStore(64 // width))
    text = pipeline.lower(sch.mod, H200, until="tvm_hopper.SwizzleSharedTiles").script()
    store = text[text.rindex("tvm_hopper.async_copy") :]
    assert f'"tvm_hopper.swizzle": {swizzle}' in store
    if swizzle in (0, 64):  # the others are those of other tests
        check(sch)


def test_parts_of_registers_that_are_no_neighbours_in_memory():
    """Float16 in rows of the product, columns of the output: the transposed form of stmatrix."""
    a, b, c = product_of(72, 40, 16)
    d = te.compute((40, 72), lambda j, i: c[i, j].astype("float16"), name="D")
    sch = s_tir.Schedule(module_of(a, b, d))
    hs.matmul(sch, "C", hs.MatmulConfig(store="tma", **PAIR))
    text = pipeline.lower(sch.mod, H200, until="tvm_hopper.LowerWgmma").script()
    assert '"x4", "trans"' in text
    check(sch)


def test_staging_in_the_bytes_of_a_ring_that_is_dead():
    sch = scheduled({"m": 128, "n": 64, "k": 32}, **{**PAIR, "tile": (128, 64, 64), "stages": 9})
    text = pipeline.lower(sch.mod, H200, until="tvm_hopper.InsertSyncs").script()
    assert "tvm_hopper.overlay" in text
    assert "T.ptx.bar(T.uint32(1), T.uint32(256)" in text  # the other group may read the ring yet
    check(sch)


# -- what is placed

WORDS = ("stmatrix", 'T.ptx.fence("proxy"', "T.ptx.bar(", '"bulk_group"', "commit_group", "wait_gr")


def test_a_warp_group_waits_for_its_own_part_alone():
    sch = scheduled(
        {"m": 256, "n": 32, "k": 32}, **{**PAIR, "persistent": 1, "store": hs.TmaStore(2)}
    )
    text = pipeline.lower(sch.mod, H200, until="tvm_hopper.InsertSyncs").script()
    lines = text[text.index("else:") :].splitlines()
    found = [word for line in lines for word in WORDS if word in line and "wgmma" not in line]
    assert found == [
        "wait_gr",  # in front of each part: the one before has left the tile
        "T.ptx.bar(",
        "stmatrix",
        'T.ptx.fence("proxy"',
        "T.ptx.bar(",
        '"bulk_group"',
        "commit_group",
        "wait_gr",  # in front of the kernel's end
    ]
    barriers = [line for line in lines if "T.ptx.bar(" in line]
    assert all("threadIdx_x // 128" in line and "T.uint32(128)" in line for line in barriers)


def test_warp_groups_that_load_for_each_other_meet():
    """Without a producer the next tile's loads overwrite what both groups have read."""
    plain = workloads.matmul(512, 64, 16, out_dtype="float16")
    sch = s_tir.Schedule(plain)
    pair = {**PAIR, "persistent": 1}
    hs.matmul(sch, "C", hs.MatmulConfig(store="tma", **pair))
    k0 = next(
        x for x in sch.get_loops(sch.get_sblock("A_shared.dyn")) if STAGE in sch.get(x).annotations
    )
    for key in [key for key in sch.get(k0).annotations if key in (CONSUMERS, *PIPELINE_KEYS)]:
        sch.unannotate(k0, key)
    verify(sch.mod, against=plain).require_clean()


@functools.cache
def right():
    """Return a kernel of two tiles in two parts, two consumers."""
    sch = scheduled(
        {"m": 256, "n": 32, "k": 16}, **{**PAIR, "persistent": 1, "store": hs.TmaStore(2)}
    )
    return load(sch.mod)


REMOVED = {
    ("fence_proxy", 0): {"PROXY_FENCE_MISSING"},
    ("cp_async_bulk_commit_group", 0): {"BULK_GROUP_MISUSE"},
    ("cp_async_bulk_wait_group", 0): {"RACE_OVERWRITE_BUSY"},
    ("cp_async_bulk_wait_group", 1): {"EXIT_PENDING_ASYNC"},
    ("bar_sync_count", 0): {"RACE_OVERWRITE_BUSY"},
    ("bar_sync_count", 1): {"RACE_READ_INFLIGHT"},
}


@pytest.mark.parametrize(("instruction", "which"), REMOVED)
def test_each_sync_is_needed(instruction, which):
    report = verify(change(right(), instruction, which))
    assert REMOVED[instruction, which] <= {finding.rule for finding in report.findings}


# -- schedules by hand, and several outputs


def test_a_schedule_by_hand():
    """The tile is cached first, the accumulator second; one consumer stores with one thread."""
    sch = s_tir.Schedule(workloads.matmul(64, 64, 32, out_dtype="float32"))
    block = sch.get_sblock("C")
    i, j, k = sch.get_loops(block)
    (by, i), (bx, j), (k, inner) = (sch.split(x, [None, n]) for x, n in ((i, 64), (j, 64), (k, 16)))
    part, i = sch.split(i, [1, None])
    sch.reorder(by, bx, part, k, i, j, inner)
    for loop, tag in ((by, "blockIdx.y"), (bx, "blockIdx.x"), (part, "threadIdx.y")):
        sch.bind(loop, tag)
    out = sch.cache_write(block, 0, "shared.dyn")
    accumulator = sch.cache_write(block, 0, "local")
    for store in (accumulator, out):
        sch.reverse_compute_at(store, part)
    for operand in (0, 1):
        load = sch.cache_read(block, operand, "shared.dyn")
        sch.compute_at(load, k)
        hs.async_copy(sch, load)
    hs.wgmma(sch, block)
    hs.pipeline(sch, k, stages=2)
    hs.async_store(sch, out)
    check(sch)


def test_each_of_several_outputs_has_a_tile():
    a, b, c = product_of(64, 64, 16)
    zero = te.const(0, "float32")
    outputs = [
        te.compute((64, 64), lambda i, j: c[i, j].astype("float16"), name="D"),
        te.compute((64, 64), lambda i, j: te.max(c[i, j], zero).astype("float16"), name="E"),
    ]
    sch = s_tir.Schedule(module_of(a, b, *outputs))
    hs.matmul(sch, "C", hs.MatmulConfig(store="tma", **SMALL))
    check(sch)
