"""ScheduleTiles, equal shares: steps of all tiles in a row, sums handed on from block to block."""

from __future__ import annotations

import itertools

import tvm
from tvm import tirx

from tests.transforms.scripts import notes_of, parse, run
from tvm_hopper import ir
from tvm_hopper.transforms import ScheduleTiles
from tvm_hopper.transforms.common.explain_notes import RemarkNote
from tvm_hopper.transforms.tile_scheduling.stream_k_plan import TileStream

# 2 x 3 tiles of 5 steps by 4 blocks: 30 steps, of which a block takes 7 or 8.
BEFORE = """
def func(C: T.Buffer((6, 4, 128), "float32")):
    for by in T.thread_binding(2, thread="blockIdx.y"):
        for bx in T.thread_binding(3, thread="blockIdx.x", annotations=NOTES):
            for tx in T.thread_binding(256, thread="threadIdx.x"):
                with T.sblock("kernel", reads=[], writes=[C[0:6, 0:4, 0:128]], kernel=1):
                    acc = T.sblock_alloc_buffer((4,), scope="local")
                    ring = T.sblock_alloc_buffer((2, 8), scope="shared.dyn")
                    T.attr("tvm_hopper", "hand_threaded", 1)
                    if tx < 128:
                        with T.sblock("tile", reads=[], writes=[], tile_work=1):
                            for k in T.serial(5):
                                trip: T.let[T.int32] = k
                                T.call_extern("int32", "tvm_hopper.await_free", 0, trip)
                                with T.sblock("load", reads=[], writes=[ring[trip % 2, 0:8]],
                                    async_op="tma_load", channel=0):
                                    T.call_extern("int32", "tvm_hopper.fill_slot", 0, trip)
                                    TMA(T.address_of(ring[trip % 2, 0]), by, bx, k)
                    else:
                        with T.sblock("tile", reads=[], writes=[], tile_work=1):
                            for i in range(4):
                                acc[i] = T.float32(0)
                            for k in T.serial(5):
                                trip: T.let[T.int32] = k
                                T.call_extern("int32", "tvm_hopper.await_filled", 0, trip)
                                with T.sblock("product", reads=[ring[trip % 2, 0:8]],
                                    writes=[acc[0:4]], async_op="wgmma"):
                                    T.evaluate(acc[0] + ring[trip % 2, 0])
                                T.call_extern("int32", "tvm_hopper.free_slot", 0, trip)
                            for i in range(4):
                                C[by * 3 + bx, i, tx - 128] = acc[i]
"""
TILE = """
                            block: T.let[T.int32] = bx
                            begin: T.let[T.int32] = T.Div(block * 30, 4)
                            end: T.let[T.int32] = T.Div(block * 30 + 30, 4)
                            last: T.let[T.int32] = T.Div(end - 1, 5)
                            for tile in T.serial(last + 1 - T.Div(begin, 5), unroll=False):
                                streamed: T.let[T.int32] = last - tile
                                from_step: T.let[T.int32] = T.max(begin - streamed * 5, 0)
                                to_step: T.let[T.int32] = T.min(end - streamed * 5, 5)
                                done: T.let[T.int32] = T.max(end - streamed * 5 - 5, 0)
                                linear: T.let[T.int32] = streamed
                                first: T.let[T.int32] = linear // 3
                                inside: T.let[T.int32] = linear % 3
                                tile_y: T.let[T.int32] = first
                                tile_x: T.let[T.int32] = inside"""
AFTER = f"""
def func(C: T.Buffer((6, 4, 128), "float32")):
    with T.sblock("root", reads=[], writes=[]):
        with T.sblock("parts", reads=[], writes=[]):
            acc_sums = T.sblock_alloc_buffer((4, 5, 128))
            ZERO
            for bx in T.thread_binding(4, thread="blockIdx.x"):
                for tx in T.thread_binding(256, thread="threadIdx.x"):
                    with T.sblock("kernel", reads=[acc_sums[0:4, 0:5, 0:128]],
                        writes=[C[0:6, 0:4, 0:128], acc_sums[0:4, 0:5, 0:128]], kernel=1):
                        acc = T.sblock_alloc_buffer((4,), scope="local")
                        ring = T.sblock_alloc_buffer((2, 8), scope="shared.dyn")
                        T.attr("tvm_hopper", "hand_threaded", 1)
                        if tx < 128:{TILE}
                                for k in range(to_step - from_step):
                                    trip: T.let[T.int32] = done + k
                                    T.call_extern("int32", "tvm_hopper.await_free", 0, trip)
                                    with T.sblock("load", reads=[], writes=[ring[trip % 2, 0:8]],
                                        async_op="tma_load", channel=0):
                                        T.call_extern("int32", "tvm_hopper.fill_slot", 0, trip)
                                        TMA(RING, tile_y, tile_x, from_step + k)
                        else:{TILE}
                                for i in range(4):
                                    acc[i] = T.float32(0.0)
                                for k in range(to_step - from_step):
                                    trip: T.let[T.int32] = done + k
                                    T.call_extern("int32", "tvm_hopper.await_filled", 0, trip)
                                    with T.sblock("product", reads=[ring[trip % 2, 0:8]],
                                        writes=[acc[0:4]], async_op="wgmma"):
                                        T.evaluate(acc[0] + ring[trip % 2, 0])
                                    T.call_extern("int32", "tvm_hopper.free_slot", 0, trip)
                                if from_step > 0:
                                    with T.sblock("take", reads=[acc[0:4],
                                        acc_sums[0:4, 0:5, 0:128]], writes=[acc[0:4]]):
                                        seen = T.sblock_alloc_buffer((1,), "uint32", scope="local")
                                        seen[0] = T.uint32(0)
                                        T.cuda.wait_until(seen[0], BEFORE, DONE)
                                        for i in T.serial(4, unroll=4):
                                            acc[i] = acc_sums[block - 1, i, tx - 128] + acc[i]
                                if to_step < 5:
                                    with T.sblock("hand_on", reads=[acc[0:4]],
                                        writes=[acc_sums[0:4, 0:5, 0:128]]):
                                        for i in T.serial(4, unroll=4):
                                            acc_sums[block, i, tx - 128] = acc[i]
                                        T.cuda.warp_sync()
                                        if (tx - 128) % 32 == 0:
                                            T.ptx.st(T.address_of(acc_sums[block, WORD]), RELEASE)
                                else:
                                    for i in range(4):
                                        C[tile_y * 3 + tile_x, i, tx - 128] = acc[i]
"""
SHORT = (("TMA(", 'T.call_extern("int32", "tvm_hopper.tma_load", '),)
SHORT_AFTER = (
    *SHORT,
    ("RING", "T.address_of(ring[trip % 2, 0])"),
    ("BEFORE", "T.address_of(acc_sums[block - 1, WORD])"),
    ("WORD", "4, (tx - 128) // 32 * 32"),
    ("DONE", 'seen[0] == T.uint32(1), "gpu", "global", "u32", 0'),
    ("RELEASE", 'T.uint32(1), "", "release", "gpu", "global", "", "", "", "u32", ""'),
    ("            ZERO\n", ""),
)


def noted(**notes):
    text = {f"tvm_hopper.{k}": v for k, v in {"persistent": 4, "stream": 2, **notes}.items()}
    return (
        "annotations=NOTES",
        f"annotations={ {k: v for k, v in text.items() if v is not None} }",
    )


def streamed(*changes, **notes):
    return run(parse(BEFORE, noted(**notes), *SHORT, *changes), ScheduleTiles())


def test_shares_of_all_steps():
    got = streamed()
    zero, kernel = ir.kernels(got)
    want = parse(AFTER, *SHORT_AFTER)
    (wanted,) = ir.kernels(want)
    tvm.ir.assert_structural_equal(kernel, wanted, map_free_vars=True)
    (stored,) = ir.find_all(zero, ir.BufferStore)
    assert str(stored.buffer.name) == "acc_sums"
    assert ir.is_const(stored.indices[1], 4)  # the words alone


def work_of(func, bx):
    """Evaluate tile, first and last step and trip of each turn by the pass's own statements."""
    (loop, _) = ir.find_all(func.body, ir.For, lambda x: x.loop_var.name == "tile")
    axis = ir.thread_axes(ir.kernels(func)[1])["blockIdx.x"].loop_var
    around = ir.find_all(func.body, tirx.Bind)[:4]

    def values(binds, known):
        for bind in binds:
            known[bind.var] = int(ir.simplify(ir.substitute(bind.value, known)))
        return known

    outer = values(around, {axis: bx})
    count = int(ir.simplify(ir.substitute(loop.extent, outer)))
    names = ("linear", "from_step", "to_step", "done")
    found = []
    for tile in range(count):
        own = values(ir.statements(loop.body)[:-1], {**outer, loop.loop_var: tile})
        by_name = {var.name: value for var, value in own.items()}
        found.append(tuple(by_name[x] for x in names))
    return found


def test_the_last_tile_of_a_share_is_the_first():
    """Thirty steps by four blocks begin at 0, 7, 15 and 22."""
    assert [work_of(streamed(), bx) for bx in range(4)] == [
        [(1, 0, 2, 0), (0, 0, 5, 2)],
        [(2, 0, 5, 0), (1, 2, 5, 5)],
        [(4, 0, 2, 0), (3, 0, 5, 2)],
        [(5, 0, 5, 0), (4, 2, 5, 5)],
    ]


def test_whole_tiles_come_first():
    """Six tiles by two blocks: two whole ones each, and the last two are shared out."""
    got = streamed(persistent=2)
    assert [work_of(got, bx) for bx in range(2)] == [
        [(0, 0, 5, 0), (2, 0, 5, 5), (4, 0, 5, 10)],
        [(1, 0, 5, 0), (3, 0, 5, 5), (5, 0, 5, 10)],
    ]
    assert notes_of(got, 1)[1] == RemarkNote(
        "loop bx: each of 2 thread blocks computes 2 whole tiles and 5 steps of 2 tiles of 5 steps "
        "each; parts of a tile are added in their order, from block to block"
    )


def steps_of_blocks(plan):
    """Return the (tile, steps) of each block, as the loops run through them."""
    for block in range(plan.blocks):
        begin, end = (block * plan.line // plan.blocks, (block + 1) * plan.line // plan.blocks)
        yield [
            (x, (max(begin - x * plan.steps, 0), min(end - x * plan.steps, plan.steps)))
            for x in range((end - 1) // plan.steps, begin // plan.steps - 1, -1)
        ]


ALL = list(itertools.product([1, 2, 5, 7, 8, 9, 15, 16, 17, 40], [1, 2, 5, 64], [1, 2, 7, 8]))


def test_every_step_once_and_sums_handed_on_first():
    for each in ALL:
        check_shares(*each)


def check_shares(tiles, steps, blocks):
    plan = TileStream(tiles, steps, min(blocks, tiles * steps), None, None)
    assert plan.whole * plan.blocks + plan.streamed == tiles
    assert plan.streamed <= 2 * plan.blocks
    done: dict[int, list[tuple[int, int, int, int]]] = {}
    for block, own in enumerate(steps_of_blocks(plan)):
        for number, (tile, (first, behind)) in enumerate(own):
            assert first < behind
            assert first == 0 or number == len(own) - 1  # what it takes, it takes last
            assert behind == steps or number == 0  # and hands on first
            done.setdefault(tile, []).append((first, behind, block, number))
    assert sorted(done) == list(range(plan.streamed))
    for parts in done.values():
        assert parts[0][0] == 0
        assert parts[-1][1] == steps
        for left, right in itertools.pairwise(parts):
            assert left[1] == right[0]
            assert left[2] + 1 == right[2]  # the block before has left it
