"""ScheduleTiles: thread blocks take output tiles in groups of rows, one tile each or several."""

import pytest
import tvm
from tvm import tirx

from tests.transforms.scripts import check, notes_of, parse, run
from tvm_hopper import ir
from tvm_hopper.transforms.common.explain_notes import TilesNote
from tvm_hopper.transforms.tile_scheduling.schedule_tiles import ScheduleTiles, plan_raster

KERNEL = """
def func(C: T.Buffer((5, 8), "float32")):
    for by in T.thread_binding(5, thread="blockIdx.y"):
        for bx in T.thread_binding(8, thread="blockIdx.x", annotations=NOTES):
            for tx in T.thread_binding(256, thread="threadIdx.x"):
                with T.sblock("kernel", reads=[], writes=[], kernel=1):
                    T.attr("tvm_hopper", "hand_threaded", 1)
                    with T.sblock("tile", reads=[], writes=[], tile_work=1):
                        C[by, bx] = T.float32(0)
"""

# 5 - max(first, 3) is min(5 - first, 2), as TVM simplifies it.
GROUPED = """
def func(C: T.Buffer((5, 8), "float32")):
    for by in T.thread_binding(5, thread="blockIdx.y"):
        for bx in T.thread_binding(8, thread="blockIdx.x"):
            for tx in T.thread_binding(256, thread="threadIdx.x"):
                with T.sblock("kernel", reads=[], writes=[], kernel=1):
                    linear: T.let[T.int32] = by * 8 + bx
                    first: T.let[T.int32] = linear // 16 * 2
                    rows: T.let[T.int32] = 5 - T.max(first, 3)
                    inside: T.let[T.int32] = linear % 16
                    tile_y: T.let[T.int32] = first + T.truncmod(inside, rows)
                    tile_x: T.let[T.int32] = T.truncdiv(inside, rows)
                    T.attr("tvm_hopper", "hand_threaded", 1)
                    C[tile_y, tile_x] = T.float32(0)
"""


def noted(**notes):
    return (
        "annotations=NOTES",
        f"annotations={ {f'tvm_hopper.{k}': v for k, v in notes.items()} }",
    )


PLAIN = (", annotations=NOTES", "")
WORK_DONE = (
    """\
                    with T.sblock("tile", reads=[], writes=[], tile_work=1):
                        C""",
    "                    C",
)


def test_groups_of_rows():
    check(run(parse(KERNEL, noted(raster_group=2)), ScheduleTiles()), parse(GROUPED))


def test_rows_that_the_group_divides_need_no_minimum():
    even = ("(5, ", "(6, ")
    fewer = (
        ("                    rows: T.let[T.int32] = 5 - T.max(first, 3)\n", ""),
        ("truncmod(inside, rows)", "truncmod(inside, 2)"),
        ("truncdiv(inside, rows)", "truncdiv(inside, 2)"),
        even,
    )
    check(run(parse(KERNEL, noted(raster_group=2), even), ScheduleTiles()), parse(GROUPED, *fewer))


def test_a_group_of_one_is_the_hardware_s_order():
    check(
        run(parse(KERNEL, noted(raster_group=1)), ScheduleTiles()), parse(KERNEL, PLAIN, WORK_DONE)
    )


def tiles_of(func, **at):
    """Evaluate the tile that a block computes out of the pass's own statements."""
    values = {}
    for axis in ir.thread_axes(ir.kernels(func)[0]).values():
        if axis.loop_var.name in at:
            values[axis.loop_var] = at[axis.loop_var.name]
    found = {}
    for bind in ir.find_all(func.body, tirx.Bind):
        values[bind.var] = int(ir.simplify(ir.substitute(bind.value, values)))
        found[bind.var.name] = values[bind.var]
    return found["tile_y"], found["tile_x"]


@pytest.mark.parametrize("rows", [1, 3, 5])
@pytest.mark.parametrize("group", [2, 3, 4, 8])
def test_every_tile_is_visited_once_in_groups_from_top_to_bottom(rows, group):
    func = run(parse(KERNEL, noted(raster_group=group), ("(5, ", f"({rows}, ")), ScheduleTiles())
    seen = [tiles_of(func, by=by, bx=bx) for by in range(rows) for bx in range(8)]
    assert sorted(seen) == [(y, x) for y in range(rows) for x in range(8)]
    top = min(group, rows)
    assert seen[:top] == [(y, 0) for y in range(top)]


@pytest.mark.parametrize("group", [1 << 29, (1 << 31) - 1, 1 << 40])
def test_a_group_of_more_rows_than_there_are_is_all_of_them(group):
    """8 columns x 2^29 rows did not fit into 32 bits."""
    all_rows = run(parse(KERNEL, noted(raster_group=5)), ScheduleTiles())
    check(run(parse(KERNEL, noted(raster_group=group)), ScheduleTiles()), all_rows)


def symbolic(rows, columns, **notes):
    """Return the order's statements of a kernel with symbolic rows or columns of tiles, as text."""
    extents = (
        ('(5, thread="blockIdx.y")', f'({rows}, thread="blockIdx.y")'),
        ('(8, thread="blockIdx.x"', f'({columns}, thread="blockIdx.x"'),
        ('"float32")):', '"float32"), m: T.int32, n: T.int32):'),
    )
    return run(parse(KERNEL, noted(**notes), *extents), ScheduleTiles()).script()


def test_a_group_of_symbolic_rows_is_clipped_to_what_32_bits_count():
    # a constant of that size, times elements of a tile, would pass 32 bits: at run time then
    text = symbolic("m", 8, raster_group=1 << 30)
    assert "T.min(m, 1073741824)" in text
    assert "* 1073741824" not in text
    assert "linear // 8192 * 1024" in symbolic("m", 8, raster_group=1024)


def test_symbolic_columns_are_divided_without_a_look_at_signs():
    text = symbolic(5, "(n + 63) // 64", raster_group=1 << 24)
    assert "in_group: T.let[T.int32] = (n + 63) // 64 * 5" in text
    assert "T.Div(linear, in_group) * 5" in text
    assert "T.truncmod(linear, in_group)" in text


def test_a_large_group_of_symbolic_rows_and_columns_is_clipped_at_run_time():
    text = symbolic("(m + 63) // 64", "(n + 63) // 64", raster_group=1 << 24)
    assert "group: T.let[T.int32] = T.min((m + 63) // 64, 16777216)" in text
    assert "in_group: T.let[T.int32] = (n + 63) // 64 * group" in text
    # 2^31 / 64 columns x 16: fits
    text = symbolic("(m + 63) // 64", "(n + 63) // 64", raster_group=16)
    assert "in_group: T.let[T.int32] = (n + 63) // 64 * 16" in text


def test_more_blocks_than_32_bits_count_are_one_for_each_tile():
    got = run(parse(ROLES, noted(persistent=1 << 40)), ScheduleTiles())
    assert int(ir.thread_axes(ir.kernels(got)[0])["blockIdx.x"].extent) == 32


def test_option_orders_where_there_are_rows():
    func = parse(KERNEL, PLAIN).with_attr("tvm_hopper.raster_group", 2)
    got = run(func, ScheduleTiles()).without_attr("tvm_hopper.raster_group")
    check(got, parse(GROUPED))
    no_rows = ('T.thread_binding(5, thread="blockIdx.y")', "T.serial(5)")
    flat = parse(KERNEL, PLAIN, no_rows).with_attr("tvm_hopper.raster_group", 2)
    got = run(flat, ScheduleTiles()).without_attr("tvm_hopper.raster_group")
    check(got, parse(KERNEL, PLAIN, no_rows, WORK_DONE))


# -- several tiles a thread block

ROLES = """
def func(C: T.Buffer((4, 8), "float32")):
    for by in T.thread_binding(4, thread="blockIdx.y"):
        for bx in T.thread_binding(8, thread="blockIdx.x", annotations=NOTES):
            for tx in T.thread_binding(256, thread="threadIdx.x"):
                with T.sblock("kernel", reads=[], writes=[], kernel=1):
                    T.attr("tvm_hopper", "hand_threaded", 1)
                    if tx < 128:
                        with T.sblock("tile", reads=[], writes=[], tile_work=1):
                            T.call_extern("int32", "load", by, bx)
                    else:
                        with T.sblock("tile", reads=[], writes=[], tile_work=1):
                            C[by, bx] = T.float32(0)
"""

SHARED = """
def func(C: T.Buffer((4, 8), "float32")):
    for bx in T.thread_binding(12, thread="blockIdx.x"):
        for tx in T.thread_binding(256, thread="threadIdx.x"):
            with T.sblock("kernel", reads=[], writes=[], kernel=1):
                T.attr("tvm_hopper", "hand_threaded", 1)
                if tx < 128:
                    for tile in T.serial(T.truncdiv(43 - bx, 12), disable_unroll=True):
                        linear: T.let[T.int32] = tile * 12 + bx
                        first: T.let[T.int32] = linear // 16 * 2
                        inside: T.let[T.int32] = linear % 16
                        tile_y: T.let[T.int32] = first + T.truncmod(inside, 2)
                        tile_x: T.let[T.int32] = T.truncdiv(inside, 2)
                        T.call_extern("int32", "load", tile_y, tile_x)
                else:
                    for tile in T.serial(T.truncdiv(43 - bx, 12), disable_unroll=True):
                        linear: T.let[T.int32] = tile * 12 + bx
                        first: T.let[T.int32] = linear // 16 * 2
                        inside: T.let[T.int32] = linear % 16
                        tile_y: T.let[T.int32] = first + T.truncmod(inside, 2)
                        tile_x: T.let[T.int32] = T.truncdiv(inside, 2)
                        C[tile_y, tile_x] = T.float32(0)
"""


def test_persistent_blocks_share_the_tiles():
    """32 tiles over 12 blocks: blocks 0 to 7 take three, 8 to 11 two."""
    got = run(parse(ROLES, noted(persistent=12, raster_group=2)), ScheduleTiles())
    check(got, parse(SHARED))
    assert [(43 - block) // 12 for block in (0, 7, 8, 11)] == [3, 3, 2, 2]


def test_there_are_never_more_blocks_than_tiles():
    got = run(parse(ROLES, noted(persistent=132)), ScheduleTiles())
    axes = ir.thread_axes(ir.kernels(got)[0])
    assert "blockIdx.y" not in axes
    assert int(axes["blockIdx.x"].extent) == 32


def test_the_work_of_a_block_with_one_tile_is_not_marked_any_more():
    done = tuple(
        (
            f"""\
                        with T.sblock("tile", reads=[], writes=[], tile_work=1):
                            {first}""",
            f"                        {first}",
        )
        for first in ("T.call", "C[")
    )
    check(run(parse(ROLES, PLAIN), ScheduleTiles()), parse(ROLES, PLAIN, *done))


# -- trips through a channel's slots, counted on from tile to tile

TRIPS = """
def func(C: T.Buffer((4, 8), "float32"), n: T.int32):
    for by in T.thread_binding(4, thread="blockIdx.y"):
        for bx in T.thread_binding(8, thread="blockIdx.x", annotations=NOTES):
            for tx in T.thread_binding(256, thread="threadIdx.x"):
                with T.sblock("kernel", reads=[], writes=[], kernel=1):
                    T.attr("tvm_hopper", "hand_threaded", 1)
                    if tx < 128:
                        with T.sblock("tile", reads=[], writes=[], tile_work=1):
                            trip: T.let[T.int32] = 0
                            T.call_extern("int32", "tvm_hopper.await_free", 0, trip)
                            for j in range(n):
                                for k in range(6):
                                    trip: T.let[T.int32] = j * 6 + k
                                    T.call_extern("int32", "tvm_hopper.await_free", 1, trip)
                    else:
                        with T.sblock("tile", reads=[], writes=[], tile_work=1):
                            trip: T.let[T.int32] = 0
                            T.call_extern("int32", "tvm_hopper.await_filled", 0, trip)
                            for j in range(n):
                                for k in range(6):
                                    trip: T.let[T.int32] = j * 6 + k
                                    other: T.let[T.int32] = k + 1
                                    T.call_extern("int32", "tvm_hopper.await_filled", 1, trip)
                                    T.call_extern("int32", "use", other)
                            C[by, bx] = T.float32(0)
"""


def values_of(func, name):
    """Return the values of all variables of a name, as text, in order."""
    binds = ir.find_all(func.body, tirx.Bind, lambda x: x.var.name == name)
    return [str(bind.value) for bind in binds]


def test_trips_are_counted_on_from_tile_to_tile():
    """A tile makes one trip through the first channel, and n times 6 through the second."""
    got = run(parse(TRIPS, noted(persistent=12)), ScheduleTiles())
    assert values_of(got, "trip") == ["tile", "6 * (n * tile) + (j * 6 + k)"] * 2
    assert values_of(got, "other") == ["k + 1"]
    assert not ir.find_blocks(got.body, "tvm_hopper.tile_work")


def test_trips_of_blocks_with_one_tile_stay():
    for notes in ({"raster_group": 2}, {"raster_group": 1}):
        got = run(parse(TRIPS, noted(**notes)), ScheduleTiles())
        assert values_of(got, "trip") == ["0", "j * 6 + k"] * 2
        assert not ir.find_blocks(got.body, "tvm_hopper.tile_work")


def test_iterations_that_differ_between_tiles_are_counted_in_a_register():
    func = parse(TRIPS, noted(persistent=12), ("range(6)", "range(bx + 1)"), ("j * 6", "j"))
    got = run(func, ScheduleTiles())
    assert values_of(got, "trip") == ["tile", "trips[0] + (j + k)"] * 2
    text = got.script()
    for line in ("trips[0] = 0", "trips[0] = trips[0] + (tile_x + 1) * n"):
        assert text.count(line) == 2  # in each role
    assert text.index("trips[0] = 0") < text.index("for tile in")


def walked(rows, columns, blocks):
    """Return the tiles of each block of pairs, in order."""
    changes = (
        ("(4, ", f"({rows}, "),
        ("(8, ", f"({columns}, "),
        ("((4, 8)", f"(({rows}, {columns})"),
    )
    notes = noted(persistent=blocks, raster_curve="pairs")
    func = run(parse(ROLES, notes, changes[2], *changes[:2]), ScheduleTiles())
    axis = ir.thread_axes(ir.kernels(func)[0])["blockIdx.x"]
    (loop, _) = ir.find_all(func.body, ir.For, lambda x: x.loop_var.name == "tile")
    found = []
    for block in range(int(axis.extent)):
        own = []
        for tile in range(int(ir.simplify(ir.substitute(loop.extent, {axis.loop_var: block})))):
            values = {axis.loop_var: block, loop.loop_var: tile}
            for bind in ir.find_all(loop.body, tirx.Bind):
                values[bind.var] = int(ir.simplify(ir.substitute(bind.value, values)))
            names = {x.name: y for x, y in values.items()}
            own.append((names["tile_y"], names["tile_x"]))
        found.append(own)
    return found


@pytest.mark.parametrize("blocks", [1, 2, 5, 100])
@pytest.mark.parametrize(("rows", "columns"), [(2, 4), (3, 4), (1, 5), (4, 3), (5, 1)])
def test_pairs_are_of_mirrored_tiles_and_each_tile_is_computed_once(rows, columns, blocks):
    found = walked(rows, columns, blocks)
    assert all(found)
    every = [(y, x) for y in range(rows) for x in range(columns)]
    assert sorted(x for own in found for x in own) == every
    for own in found:
        in_pairs = [x for x in own if x[0] < rows // 2 * 2]
        assert own[: len(in_pairs)] == in_pairs
        for (top, left), (below, right) in zip(in_pairs[::2], in_pairs[1::2], strict=True):
            assert (below, right) == (top + 1, columns - 1 - left)


# -- tiles that a table counts


def test_a_table_counts_rows_of_tiles_and_is_read_once_a_tile():
    """Without it blocks would also compute what no group has."""
    table = (
        ("def func(", 'def func(tiles: T.Buffer((3, 5), "int32"), '),
        ("C[by, bx] = ", "for k in range(4):\n                            C[tiles[1, by], bx] = "),
    )
    got = run(parse(KERNEL, noted(persistent=12, row_table="tiles"), *table), ScheduleTiles())
    assert [str(x.indices) for x in ir.find_all(got.body, ir.TensorLoad)] == [
        "(2, 0)",
        "(1, tile_y)",
    ]
    loop, _ = ir.find_all(got.body, ir.For, lambda x: x.kind == ir.ForKind.SERIAL)
    (rows,) = (x.var for x in ir.find_all(got.body, tirx.Bind) if x.var.name == "rows_in_use")
    block = ir.thread_axes(ir.kernels(got)[0])["blockIdx.x"].loop_var
    for used in range(6):
        counts = [ir.substitute(loop.extent, {rows: used, block: bx}) for bx in range(12)]
        assert sum(int(ir.simplify(x)) for x in counts) == used * 8


# -- as many blocks as the device at hand balances

BY_DEVICE = """
def func(C: T.Buffer((4, 8), "float32")):
    num_blocks: T.let[T.int32] = T.call_packed("tvm_hopper.count_blocks", 32, 1)
    for bx in T.thread_binding(num_blocks, thread="blockIdx.x"):
        for tx in T.thread_binding(256, thread="threadIdx.x"):
            with T.sblock("kernel", reads=[], writes=[], kernel=1):
                T.attr("tvm_hopper", "hand_threaded", 1)
                if tx < 128:
                    for tile in T.serial(T.truncdiv(num_blocks + 31 - bx, num_blocks),
                        disable_unroll=True):
                        linear: T.let[T.int32] = bx + tile * num_blocks
                        first: T.let[T.int32] = linear // 16 * 2
                        inside: T.let[T.int32] = linear % 16
                        tile_y: T.let[T.int32] = first + T.truncmod(inside, 2)
                        tile_x: T.let[T.int32] = T.truncdiv(inside, 2)
                        T.call_extern("int32", "load", tile_y, tile_x)
                else:
                    for tile in T.serial(T.truncdiv(num_blocks + 31 - bx, num_blocks),
                        disable_unroll=True):
                        linear: T.let[T.int32] = bx + tile * num_blocks
                        first: T.let[T.int32] = linear // 16 * 2
                        inside: T.let[T.int32] = linear % 16
                        tile_y: T.let[T.int32] = first + T.truncmod(inside, 2)
                        tile_x: T.let[T.int32] = T.truncdiv(inside, 2)
                        C[tile_y, tile_x] = T.float32(0)
"""


def test_the_host_counts_the_blocks_by_the_device():
    got = run(parse(ROLES, noted(persistent=-1, raster_group=2)), ScheduleTiles())
    check(got, parse(BY_DEVICE))
    assert plan_raster(ir.kernels(got)[0]) == ()
    check(run(got, ScheduleTiles()), got)


def test_slices_in_z_are_counted_with():
    bx = 'T.thread_binding(8, thread="blockIdx.x", annotations=NOTES)'
    inner = ROLES.split(bx + ":\n")[1]
    deeper = "".join("    " + line for line in inner.splitlines(keepends=True))
    sliced = ROLES.replace(
        inner, f'            for bz in T.thread_binding(3, thread="blockIdx.z"):\n{deeper}'
    )
    got = run(parse(sliced, noted(persistent=-1)), ScheduleTiles())
    (bind,) = [x for x in ir.find_all(got.body, tirx.Bind) if x.var.name == "num_blocks"]
    assert [int(x) for x in bind.value.args[1:]] == [32, 3]


def test_a_name_of_the_program_is_not_taken():
    got = run(
        parse(ROLES, noted(persistent=-1), ("C:", "num_blocks:"), ("C[", "num_blocks[")),
        ScheduleTiles(),
    )
    assert ir.find_all(got.body, tirx.Bind)[0].var.name == "num_blocks_1"


def test_facts_for_explain():
    for asked, note in (
        ({"raster_group": 2}, TilesNote(raster_group=2, persistent=None)),
        ({"raster_group": 2, "persistent": 12}, TilesNote(raster_group=2, persistent=12)),
        ({"persistent": -1}, TilesNote(raster_group=1, persistent=-1, tiles="32")),
        (
            {"raster_group": 3, "persistent": 12, "raster_curve": "hilbert"},
            TilesNote(raster_group=2, persistent=12, curve=True),
        ),
    ):
        got = run(parse(ROLES, noted(**asked)), ScheduleTiles())
        assert notes_of(got) == (note,)


def test_other_kernel_stays_even_if_its_block_has_our_block_s_name():
    other = parse("""
    def other(X: T.Buffer((8, 64), "float32")):
        for by in T.thread_binding(8, thread="blockIdx.y"):
            for bx in T.thread_binding(64, thread="blockIdx.x"):
                with T.sblock("kernel"):
                    X[by, bx] = T.float32(0)
    """)

    ours = parse(KERNEL, noted(raster_group=2))
    both = ours.with_body(ir.seq(other.body.block.body, ours.body.block.body))
    both = both.with_attr("tvm_hopper.raster_group", 2)
    got = run(both, ScheduleTiles())
    first, second = ir.kernels(got)
    assert first.same_as(ir.kernels(both)[0])
    tvm.ir.assert_structural_equal(second, ir.kernels(parse(GROUPED))[0], map_free_vars=True)
