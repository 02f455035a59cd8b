"""The sync placement of NVIDIA/Fuser#3843, through InsertSyncs: the exact waits, no more.

1. two operations, each with a consumer of its own
2. two operations in one loop, with two consumers
3. one operation whose consumer has consumers in turn

each for products (wgmma), stores (tma_store) and copies (cp.async), and all of them at once.
A script shows both sides: lines behind a `+` are what the pass adds, and it indents those behind a
`?`, which the first thread executes alone.
"""

import re

from tests.transforms.scripts import check, parse, run
from tvm_hopper.transforms import InsertSyncs

HEAD = """
def func(A: T.Buffer((128,), "float32"), C: T.Buffer((128,), "float32"),
    D: T.Buffer((128,), "float32"), tensor_map: T.handle("tensormap")):
    for tx in T.thread_binding(128, thread="threadIdx.x"):
        {mark}with T.sblock("kernel", reads=[], writes=[], kernel=1):
            acc = T.sblock_alloc_buffer((4,), scope="local")
            acc2 = T.sblock_alloc_buffer((4,), scope="local")
            a = T.sblock_alloc_buffer((128,), scope="shared.dyn")
            b = T.sblock_alloc_buffer((128,), scope="shared.dyn")
            tile = T.sblock_alloc_buffer((1, 128), scope="shared.dyn")
            tile2 = T.sblock_alloc_buffer((1, 128), scope="shared.dyn")
            ring = T.sblock_alloc_buffer((2, 128), scope="shared.dyn")
"""
MARK = 'T.attr("tvm_hopper", "hand_threaded", 1)\n        '

OPERATION = """
with T.sblock("{op}", reads=[{reads}], writes=[{writes}], async_op="{op}"{notes}):
    {body}
"""
PLAIN = """
with T.sblock("{name}", reads=[{reads}], writes=[{writes}]):
    {body}
"""


def call(name, *pointers):
    return f'T.call_extern("int32", "{name}", {", ".join(pointers)})'


def element(buffer, index="0"):
    """Name an element of a tile, of the first slot where it has some."""
    return f"{buffer}[0, {index}]" if buffer.startswith("tile") else f"{buffer}[{index}]"


def mma(acc, tile="a"):
    """Return a product of a tile into registers."""
    return OPERATION.format(
        op="wgmma",
        reads=f"{element(tile, '0:128')}, {acc}[0:4]",
        writes=f"{acc}[0:4]",
        notes="",
        body=call("mma", f"{acc}[0]", f"T.address_of({element(tile)})"),
    )


def store(tile):
    """Return a store of a tile to the tensor of a map, which one thread issues."""
    body = call("store", "T.address_of(tensor_map)", f"T.address_of({element(tile)})")
    reads = element(tile, "0:128")
    return OPERATION.format(op="tma_store", reads=reads, writes="", notes="", body=body)


def copy(tile, channel, trip="0", ahead=None):
    """Return a copy by the threads into a slot of a channel's ring."""
    slot = f"{trip} % 2" if tile == "ring" else "0"
    notes = f", channel={channel}" + (f", ahead=[{ahead}]" if ahead is not None else "")
    fill = call("tvm_hopper.fill_slot", str(channel), trip)
    chunk = call(
        "tvm_hopper.cp_async", f"T.address_of({tile}[{slot}, tx])", "T.address_of(A[tx])", "4", "4"
    )
    return OPERATION.format(
        op="cp_async",
        reads="A[0:128]",
        writes=f"{tile}[{slot}, 0:128]",
        notes=notes,
        body=f"{fill}\n    {chunk}",
    )


def load(tile, channel):
    """Return a copy by TMA."""
    fills = call("tvm_hopper.fill_slot", str(channel), "trip")
    box = call("tma", f"T.address_of({tile}[0, 0])", "T.address_of(tensor_map)")
    block = OPERATION.format(
        op="tma_load",
        reads="",
        writes=f"{tile}[0, 0:128]",
        notes=f", channel={channel}",
        body=f"{fills}\n    {box}",
    )
    return f"\ntrip: T.let[T.int32] = 0\n{block}"


def use(source, tensor="C"):
    """Return a plain statement of each thread that reads registers or its element of a tile."""
    at = {"acc": "acc[0]", "acc2": "acc2[0]", "ring": "ring[trip % 2, tx]"}
    body = f"{tensor}[tx] = {at.get(source) or element(source, 'tx')}"
    return PLAIN.format(name="use", reads="", writes="", body=body)


def fill(tile, *syncs, value="T.float32(1)"):
    """Return a plain store to a tile, with what is placed in front of it in its block."""
    inner = [*"".join(syncs).splitlines(), f"{element(tile, 'tx')} = {value}"]
    return PLAIN.format(name="fill", reads="", writes="", body="\n    ".join(inner))


def relu(source="acc", result="acc2"):
    """Return a consumer of registers or of a tile whose result has consumers."""
    value = f"{source}[0]" if source == "acc" else element(source, "tx")
    if result.startswith("acc"):
        body = f"{result}[0] = T.max({value}, T.float32(0))"
        return PLAIN.format(name="relu", reads="", writes="", body=body)
    return fill(result, value=f"T.max({value}, T.float32(0))")


def loop(*parts, trip=False):
    head = "for k in T.serial(4):\n"
    bind = "    trip: T.let[T.int32] = k\n" if trip else ""
    return f"\n{head}{bind}{indent(''.join(parts), 4)}"


def indent(text, by):
    return "".join(f"{' ' * by}{line}\n" for line in text.splitlines() if line.strip())


HOLD = (
    'T.call_intrin("void", "tirx.tvm_hopper_code_fence")\n'
    + 'for i in T.serial(4, annotations={{"pragma_unroll": 4}}):\n'
    '    T.call_intrin("void", "tirx.tvm_hopper_hold_float32", {0}[i])\n'
)
SYNCS = {
    "wgmma.fence": "T.ptx.wgmma.fence.sync.aligned()",
    "wgmma.commit": "T.ptx.wgmma.commit_group.sync.aligned()",
    "wgmma.wait": "T.ptx.wgmma.wait_group.sync.aligned({0})",
    "hold": HOLD,
    "hold more": HOLD.partition("\n")[2],
    "bulk.commit": "T.ptx.cp.async_.bulk.commit_group()",
    "bulk.wait_read": 'T.ptx["cp.async.bulk.wait_group.read"]({0})',
    "cp_async.commit": "T.ptx.cp.async_.commit_group()",
    "cp_async.wait": "T.ptx.cp.async_.wait_group({0})",
    "proxy": 'T.ptx["fence.proxy.async.shared::cta"]()',
    "meet": 'T.tvm_storage_sync("shared")',
    "await": 'T.call_extern("int32", "tvm_hopper.await_filled", {0}, trip)',
}


def sync(*names):
    """Return what the pass adds: `one` statement a name, `0: one` by the first thread alone."""
    lines, first = "", ""
    for name in names:
        elected, name = name.startswith("0: "), name.removeprefix("0: ")
        kind, *numbers = re.split(r" (?=\w+$)", name) if name not in SYNCS else [name]
        text = SYNCS[kind].format(*numbers)
        if elected:
            first += text + "\n"
            continue
        lines += elect(first) + text + "\n"
        first = ""
    return "".join(f"+{line}\n" for line in (lines + elect(first)).splitlines())


def elect(text):
    return f"if tx == 0:\n{indent(text, 4)}" if text else ""


def elected(*parts):
    """Return operations that the pass lets the first thread issue."""
    lines = [line for line in "".join(parts).splitlines() if line.strip()]
    return "".join(f"{line}\n" for line in ("+if tx == 0:", *(f"?{line}" for line in lines)))


def before(*parts):
    """Return the function without what the pass adds."""
    lines = "".join(parts).replace("?", "").splitlines(True)
    body = "".join(line for line in lines if not line.lstrip().startswith("+"))
    return parse(HEAD.format(mark="") + indent(body, 12))


def after(*parts, end=""):
    """Return the function with it; `end` stands behind the kernel's block."""
    lines = "".join(parts).replace("?", " " * 4).splitlines(True)
    plain = [re.sub(r"^( *)\+", r"\1", line) for line in lines]
    body = re.sub(r', async_op="\w+"', "", "".join(plain))
    tail = indent(end.replace("+", ""), 8)
    return parse(HEAD.format(mark=MARK) + indent(body, 12) + tail)


def places(*parts, end=""):
    """Compare what the pass makes of a script with what the script says of it."""
    check(run(before(*parts), InsertSyncs()), after(*parts, end=end))


FENCE, COMMIT = sync("wgmma.fence"), sync("wgmma.commit")


# Products.


def test_two_products_each_with_its_own_consumer():
    """The first one's consumer waits while the second one is under way."""
    places(
        loop(FENCE, mma("acc"), COMMIT),
        loop(FENCE, mma("acc2", "b"), COMMIT),
        sync("wgmma.wait 1", "hold more acc"),
        use("acc"),
        sync("wgmma.wait 0", "hold acc", "hold more acc2"),
        use("acc2", "D"),
    )


def test_two_products_in_one_loop_with_two_consumers():
    """They are one group, for which one wait is enough."""
    places(
        loop(FENCE, mma("acc"), mma("acc2", "b"), COMMIT),
        sync("wgmma.wait 0", "hold acc", "hold more acc2"),
        use("acc"),
        use("acc2", "D"),
    )


def test_a_product_with_a_chained_epilogue():
    places(
        loop(FENCE, mma("acc"), COMMIT),
        sync("wgmma.wait 0", "hold acc"),
        relu(),
        use("acc2"),
        use("acc", "D"),
    )


def test_a_product_outside_of_loops_is_held():
    """Without a loop in between nothing else keeps registers from being read before the wait."""
    places(
        FENCE,
        mma("acc"),
        sync("wgmma.commit", "wgmma.wait 0", "hold acc"),
        use("acc"),
    )


# Stores: the source is what is waited for, and one thread commits and waits.

WRITTEN = sync("proxy", "meet")


def test_two_stores_whose_tiles_are_written_again_one_by_one():
    places(
        fill("a"),
        WRITTEN,
        elected(store("a")),
        fill("b", sync("0: bulk.commit")),
        WRITTEN,
        elected(store("b")),
        fill("a", sync("0: bulk.commit", "0: bulk.wait_read 1", "meet")),
        fill("b", sync("0: bulk.wait_read 0", "meet")),
    )


def test_two_stores_in_one_loop():
    """They are one group: one wait and one barrier for both tiles, in front of the first one."""
    places(
        loop(
            fill("a", sync("0: bulk.wait_read 0", "meet")),
            fill("b"),
            WRITTEN,
            elected(store("a"), store("b"), sync("bulk.commit")),
        ),
        end=sync("0: bulk.wait_read 0"),
    )


def test_a_store_whose_tile_is_computed_with():
    """Reading the tile needs no wait, nor does the tile of the result; writing it again does."""
    places(
        fill("a"),
        WRITTEN,
        elected(store("a")),
        fill("b", sync("0: bulk.commit"), value="T.max(a[tx], T.float32(0))"),
        WRITTEN,
        elected(store("b")),
        fill("a", sync("0: bulk.commit", "0: bulk.wait_read 1", "meet")),
        end=sync("0: bulk.wait_read 0"),
    )


# Copies by the threads.


def test_two_copies_each_with_its_own_consumer():
    places(
        copy("tile", 0),
        sync("cp_async.commit"),
        use("a"),
        copy("tile2", 1),
        sync("cp_async.commit", "cp_async.wait 1", "meet"),
        use("tile"),
        sync("cp_async.wait 0", "meet"),
        use("tile2", "D"),
    )


def test_two_consumers_of_a_copy_that_runs_ahead_in_a_loop():
    """One wait and one barrier a trip, for both of them and for the slot that is filled again."""
    places(
        copy("ring", 0, ahead=0),
        sync("cp_async.commit"),
        loop(
            sync("cp_async.wait 0", "meet"),
            "trip: T.let[T.int32] = k\n",
            copy("ring", 0, "(trip + 1)", ahead=1),
            sync("cp_async.commit"),
            use("ring"),
            use("ring", "D"),
        ),
        end=sync("cp_async.wait 0"),
    )


def test_a_copy_with_a_chained_epilogue():
    places(
        copy("tile", 0),
        sync("cp_async.commit"),
        use("a"),
        sync("cp_async.wait 0", "meet"),
        relu("tile", "acc"),
        use("acc"),
        use("tile", "D"),
    )


# All kinds at once.


def test_products_stores_and_copies_of_both_kinds_in_one_function():
    """Each is waited for where it is used: no product for a store, no store for a product."""
    places(
        load("tile", 0),
        copy("tile2", 1),
        fill("a", sync("cp_async.commit")),
        sync("await 0", "cp_async.wait 0", "proxy", "meet", "wgmma.fence"),
        mma("acc", "tile"),
        mma("acc", "tile2"),
        sync("wgmma.commit"),
        elected(store("a"), sync("bulk.commit")),
        sync("wgmma.wait 0", "hold acc"),
        use("acc"),
        fill("a", sync("0: bulk.wait_read 0", "meet")),
        WRITTEN,
        elected(store("a")),
        end=sync("0: bulk.commit", "0: bulk.wait_read 0"),
    )
