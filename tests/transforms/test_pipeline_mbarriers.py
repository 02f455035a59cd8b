"""PipelineMbarriers: ring, barriers, a producer and consumers out of one pipelined loop."""

import json

import pytest
import tvm
from tvm.script import tirx as T

from tests.transforms.scripts import check, parse, run
from tvm_hopper import ir
from tvm_hopper.plan.ring_plan import plan_ring
from tvm_hopper.transforms.pipeline_mbarriers import PipelineMbarriers

LOAD = "tvm_hopper.tma_load"
TMA = "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"

# `mma` and `store` stand for what LowerWgmma leaves: instructions, and code that knows its thread.
BEFORE = """
@T.prim_func(private=True, s_tir=True)
def func(A_map: T.handle("tensormap"), B_map: T.handle("tensormap"), C: T.Buffer((4,), "float32")):
    for bx in T.thread_binding(3, thread="blockIdx.x"):
        for tx in T.thread_binding(256, thread="threadIdx.x"):
            with T.sblock(""):
                T.reads()
                T.writes(C[0:4])
                acc = T.sblock_alloc_buffer((4,), scope="local")
                for i in range(4):
                    acc[i] = T.float32(0)
                for k in T.serial(
                    8,
                    annotations={
                        "software_pipeline_stage": [0, 0, 1],
                        "software_pipeline_order": [0, 1, 2],
                        "software_pipeline_async_stages": [0],
                    },
                ):
                    with T.sblock(""):
                        T.reads()
                        T.writes()
                        a = T.sblock_alloc_buffer(
                            (2, 64, 64), "float16", scope="shared.dyn", align=1024
                        )
                        b = T.sblock_alloc_buffer(
                            (1, 16, 32), "float32", scope="shared.dyn", align=1024
                        )
                        with T.sblock("load_a"):
                            T.reads()
                            T.writes(a[0:2, 0:64, 0:64])
                            T.sblock_attr({"tvm_hopper.async_op": "tma_load"})
                            for panel in range(2):
                                T.call_extern(
                                    "int32",
                                    LOAD,
                                    T.address_of(a[panel, 0, 0]),
                                    T.address_of(A_map),
                                    k * 128 + panel * 64,
                                    bx * 64,
                                )
                        with T.sblock("load_b"):
                            T.reads()
                            T.writes(b[0, 0:16, 0:32])
                            T.sblock_attr({"tvm_hopper.async_op": "tma_load"})
                            T.call_extern(
                                "int32",
                                LOAD,
                                T.address_of(b[0, 0, 0]),
                                T.address_of(B_map),
                                k * 32,
                                0,
                            )
                        with T.sblock("mma"):
                            T.reads(a[0:2, 0:64, 0:64], b[0, 0:16, 0:32], acc[0:4])
                            T.writes(acc[0:4])
                            T.sblock_attr({"tvm_hopper.async_op": "wgmma"})
                            T.call_extern(
                                "int32",
                                "mma",
                                acc[0],
                                T.address_of(a[0, 0, 0]),
                                T.address_of(b[0, 0, 0]),
                                tx // 128,
                                k,
                            )
                with T.sblock("store"):
                    T.reads(acc[0:4])
                    T.writes(C[0:4])
                    C[tx % 4] = acc[0]
""".replace("LOAD", repr(LOAD))

# One stage is 2 x 64 x 64 x 2 + 16 x 32 x 4 = 18432 bytes. Two consumers: 384 threads.
AFTER = """
@T.prim_func(private=True, s_tir=True)
def func(A_map: T.handle("tensormap"), B_map: T.handle("tensormap"), C: T.Buffer((4,), "float32")):
    for bx in T.thread_binding(3, thread="blockIdx.x"):
        for tx in T.thread_binding(384, thread="threadIdx.x"):
            with T.sblock("kernel"):
                T.reads()
                T.writes(C[0:4])
                acc = T.sblock_alloc_buffer((4,), scope="local")
                a = T.sblock_alloc_buffer((2, 2, 64, 64), "float16", scope="shared.dyn", align=1024)
                b = T.sblock_alloc_buffer((2, 1, 16, 32), "float32", scope="shared.dyn", align=1024)
                full = T.sblock_alloc_buffer((2,), "uint64", scope="shared.dyn", align=8)
                empty = T.sblock_alloc_buffer((2,), "uint64", scope="shared.dyn", align=8)
                T.attr(T.int32(0), "tirx.launch_bounds_min_blocks_per_sm", 1)
                T.attr("tvm_hopper", "hand_threaded", 1)
                if tx == 0:
                    for slot in range(2):
                        T.ptx.mbarrier.init.shared.b64(T.address_of(full[slot]), T.uint32(1))
                        T.ptx.mbarrier.init.shared.b64(T.address_of(empty[slot]), T.uint32(2))
                    T.ptx.fence.mbarrier_init.release.cluster()
                T.tvm_storage_sync("shared")
                if tx < 128:
                    T.ptx["setmaxnreg.dec.sync.aligned.u32"](40)
                    if tx == 0:
                        for k in T.serial(8, annotations={"disable_unroll": True}):
                            T.cuda.mbarrier_wait(T.address_of(empty[k % 2]), (k // 2 + 1) % 2)
                            T.ptx.mbarrier.arrive.expect_tx.shared.b64(
                                T.address_of(full[k % 2]), T.uint32(18432)
                            )
                            for panel in range(2):
                                T.ptx[TMA](
                                    T.address_of(a[k % 2, panel, 0, 0]),
                                    T.address_of(A_map),
                                    k * 128 + panel * 64,
                                    bx * 64,
                                    T.address_of(full[k % 2]),
                                )
                            T.ptx[TMA](
                                T.address_of(b[k % 2, 0, 0, 0]),
                                T.address_of(B_map),
                                k * 32,
                                0,
                                T.address_of(full[k % 2]),
                            )
                else:
                    T.ptx["setmaxnreg.inc.sync.aligned.u32"](232)
                    for i in range(4):
                        acc[i] = T.float32(0)
                    for k in T.serial(8, annotations={"disable_unroll": True}):
                        T.cuda.mbarrier_wait(T.address_of(full[k % 2]), k // 2 % 2)
                        with T.sblock("mma"):
                            T.reads(a[0:2, 0:2, 0:64, 0:64], b[0:2, 0, 0:16, 0:32], acc[0:4])
                            T.writes(acc[0:4])
                            T.sblock_attr({"tvm_hopper.async_op": "wgmma"})
                            T.call_extern(
                                "int32",
                                "mma",
                                acc[0],
                                T.address_of(a[k % 2, 0, 0, 0]),
                                T.address_of(b[k % 2, 0, 0, 0]),
                                (tx - 128) // 128,
                                k,
                            )
                        with T.sblock("release"):
                            T.reads()
                            T.writes()
                            T.sblock_attr({"tvm_hopper.release": 0})
                            if (tx - 128) % 128 == 0:
                                T.ptx.mbarrier.arrive.shared.b64(T.address_of(empty[(k + 2) % 2]))
                    with T.sblock("store"):
                        T.reads(acc[0:4])
                        T.writes(C[0:4])
                        C[(tx - 128) % 4] = acc[0]
""".replace("[TMA]", f"[{TMA!r}]")


def test_loop_becomes_a_ring_between_roles():
    check(run(parse(BEFORE), PipelineMbarriers()), parse(AFTER))


def test_again_finds_nothing():
    got = run(parse(BEFORE), PipelineMbarriers())
    (kernel,) = ir.kernels(got)
    assert plan_ring(kernel) == ()
    check(run(got, PipelineMbarriers()), parse(AFTER))


ASK_PENDING = (
    '"software_pipeline_async_stages": [0],',
    '"software_pipeline_async_stages": [0], "tvm_hopper.wgmma_pending": 1,',
)


def test_a_pending_group_delays_the_release_by_an_iteration():
    late = (
        ('"tvm_hopper.release": 0', '"tvm_hopper.release": 1'),
        ("if (tx - 128) % 128 == 0:", "if (tx - 128) % 128 == 0 and k >= 1:"),
        ("empty[(k + 2) % 2]", "empty[(k - 1 + 2) % 2]"),
    )
    check(run(parse(BEFORE, ASK_PENDING), PipelineMbarriers()), parse(AFTER, *late))


def test_the_option_s_pending_groups_give_way_to_a_ring_of_one_slot():
    single = ("[0, 0, 1]", "[0, 0, 0]")
    option = {"tvm_hopper.wgmma_pending": 1}
    func = parse(BEFORE, single).with_attr("tvm_hopper.wgmma_pending", 1)
    (facts,) = json.loads(run(func, PipelineMbarriers()).attrs[ir.PLAN_ATTR])
    assert (facts["stages"], facts["wgmma_pending"]) == (1, 0)
    func = parse(BEFORE).with_attr(option)
    (facts,) = json.loads(run(func, PipelineMbarriers()).attrs[ir.PLAN_ATTR])
    assert (facts["stages"], facts["wgmma_pending"]) == (2, 1)


def test_phases_carry_on_over_the_tiles_of_a_persistent_kernel():
    """Slots and parities count all iterations of a thread block, 8 a tile."""
    ask = (
        'T.thread_binding(3, thread="blockIdx.x")',
        'T.thread_binding(3, thread="blockIdx.x", annotations={"tvm_hopper.persistent": 2})',
    )
    tiles = (
        'for tile in T.serial(1, annotations={"tvm_hopper.tile_loop": 1, "disable_unroll": True}):'
    )
    lines, inside = [], 0
    for line in parse_lines(AFTER):
        indent = len(line) - len(line.lstrip())
        if inside and indent < inside:
            inside = 0
        if ("for k in" in line and indent == 24) or line.strip() == "for i in range(4):":
            lines.append(" " * indent + tiles)
            inside = indent
        for old, new in (
            ("[k % 2", "[(8 * tile + k) % 2"),
            ("k // 2 % 2", "(8 * tile + k) // 2 % 2"),
            ("(k // 2 + 1) % 2", "((8 * tile + k) // 2 + 1) % 2"),
            ("empty[(k + 2) % 2]", "empty[(8 * tile + k + 2) % 2]"),
        ):
            line = line.replace(old, new)
        lines.append("    " * bool(inside) + line)
    check(run(parse(BEFORE, ask), PipelineMbarriers()), parse("\n".join(lines), ask))


def parse_lines(text):
    return text.splitlines()


@pytest.mark.parametrize(
    ("stages", "notes"),
    [
        ([0, 0, 3], {"stages": 4}),
        ([1, 1, 3], {"stages": 3}),
        ([0, 0, 0], {"stages": 1}),
    ],
)
def test_slots_are_the_distance_of_the_stages(stages, notes):
    func = parse(
        BEFORE, ("[0, 0, 1]", str(stages)), ('async_stages": [0]', 'async_stages": [0, 1]')
    )
    (facts,) = json.loads(run(func, PipelineMbarriers()).attrs[ir.PLAN_ATTR])
    assert facts["stages"] == notes["stages"]


def test_a_loop_without_pipeline_annotations_has_one_slot():
    start = BEFORE.index("T.serial(")
    end = BEFORE.index("):", start)
    plain = BEFORE[:start] + "T.serial(8" + BEFORE[end:]
    (facts,) = json.loads(run(parse(plain), PipelineMbarriers()).attrs[ir.PLAN_ATTR])
    assert facts["stages"] == 1


def test_facts_for_explain():
    (facts,) = json.loads(run(parse(BEFORE), PipelineMbarriers()).attrs[ir.PLAN_ATTR])
    assert facts == {
        "stages": 2,
        "consumers": 2,
        "wgmma_pending": 0,
        "registers": [40, 232],
        "tx_bytes": 18432,
        "arrive_counts": {"full": 1, "empty": 2},
        "threads": 384,
        "fallbacks": [],
    }


def test_other_kernel_stays():
    @T.prim_func(private=True, s_tir=True)
    def other(X: T.Buffer((64,), "float32")):
        for bx in T.thread_binding(64, thread="blockIdx.x"):
            with T.sblock("init"):
                X[bx] = T.float32(0)

    ours = parse(BEFORE)
    both = ours.with_body(ir.seq(other.body.block.body, ours.body.block.body))
    got = run(both, PipelineMbarriers())
    first, second = ir.kernels(got)
    assert first.same_as(ir.kernels(both)[0])
    tvm.ir.assert_structural_equal(second, ir.kernels(parse(AFTER))[0], map_free_vars=True)
