"""Groups of rows whose lengths a tensor says: tiles of one group each, found by a table."""

import itertools

import numpy as np
import pytest
import tvm
from tvm import s_tir
from tvm.script import tirx as T

from tests.schedule.refuse import refuse
from tvm_hopper import explain, schedule as hs
from tvm_hopper.errors import ScheduleError
from tvm_hopper.schedule.products import tile_groups
from tvm_hopper.simulation import simulate, verify
from tvm_hopper.testing.ragged import UNTOUCHED, draw, ragged
from tvm_hopper.testing.workloads import matmul

SMALL = {"tile": (64, 32, 64), "stages": 2, "consumers": 1}
SHAPE = (256, 64, 128, 4)
OFFSETS = [0, 63, 63, 128, 200]  # an empty group, 65 rows, rows past the end
COUNTS = [0, 64, 1, 63]
CUTS = [0, *np.sort(np.random.default_rng(1).integers(0, 300, 255)).tolist(), 300]


def check_values(mod, places, config=None, seed=0):
    sch = s_tir.Schedule(mod)
    hs.matmul(sch, "C", hs.MatmulConfig(**(SMALL if config is None else config)))
    drawn = draw(mod, places, seed)
    result = simulate(sch, drawn.tensors)
    result.require_clean()
    got = result.outputs[drawn.result].astype("float64")
    np.testing.assert_array_equal(got, drawn.want)
    return sch


@pytest.mark.parametrize(
    ("places", "persistent"),
    [
        (OFFSETS, None),
        (OFFSETS, 0),  # a block for each tile that there may be
        ([0, 0, 0, 256, 256], 3),  # one group has all rows
        ([5, 70, 135, 136, 240], 3),  # rows in front of the first group, too
        ([0, 0, 0, 0, 0], 3),
    ],
)
def test_rows_of_groups(places, persistent):
    check_values(ragged(*SHAPE), places, SMALL | {"persistent": persistent})


@pytest.mark.parametrize(
    ("shape", "places", "options", "config"),
    [
        ((256, 40, 72, 4), OFFSETS, {"dtype": "bfloat16"}, {}),  # columns and depth off tiles
        (SHAPE, OFFSETS, {}, None),  # a tile of the model's
        (SHAPE, OFFSETS, {}, {"tile": (128, 64, 64), "consumers": 2}),
        (SHAPE, OFFSETS, {"layout": "offsets64"}, {"raster": hs.Raster(2)}),
        (SHAPE, OFFSETS, {"dtype": "float8_e4m3fn"}, {"tile": (64, 32, 128)}),
        (SHAPE, OFFSETS, {"dtype": "int8"}, {"tile": (64, 32, 128)}),
        (SHAPE, OFFSETS, {"epilogue": "relu", "out_dtype": "bfloat16"}, {}),
        (SHAPE, OFFSETS, {"epilogue": "bias", "out_dtype": "float16"}, {"schedule": "pingpong"}),
        ((64, 64, 128, 4), COUNTS, {"layout": "counts"}, {}),
        ((64, 64, 128, 4), COUNTS, {"layout": "counts", "epilogue": "bias"}, {}),
        ((300, 32, 64, 256), CUTS, {}, {"persistent": 8}),
    ],
)
def test_values(shape, places, options, config):
    config = {} if config is None else SMALL | config
    if config.get("schedule"):
        config |= {"consumers": 2, "tile": (64, 64, 64)}
    check_values(ragged(*shape, **options), places, config)


SYMBOLIC = """
@T.prim_func(s_tir=True)
def main(a: T.handle, B: T.Buffer((4, 64, 128), "float16"), P: T.Buffer((5,), "int32"),
         c: T.handle):
    m = T.int32()
    A = T.match_buffer(a, (m, 128), "float16")
    C = T.match_buffer(c, (m, 64), "float32")
    for e in range(4):
        for i, j, k in T.grid(P[e + 1] - P[e], 64, 128):
            with T.sblock("C"):
                v = T.axis.spatial(m, P[e] + i)
                ve, vj, vk = T.axis.remap("SSR", [e, j, k])
                with T.init():
                    C[v, vj] = T.float32(0)
                C[v, vj] = C[v, vj] + T.Cast("float32", A[v, vk]) * T.Cast("float32", B[ve, vj, vk])
"""


GRID_OF_HEADS = "for i, h, j, k in T.grid(P[e + 1] - P[e], 2, 64, 128)"
REMAP_OF_HEADS = 've, vh, vj, vk = T.axis.remap("SSSR", [e, h, j, k])'
KNOWN = (("    m = T.int32()\n", ""), ("(m, ", "(256, "))


def parsed(text, *changes):
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    func = tvm.script.from_source(text, extra_vars={"T": T})
    return tvm.IRModule({"main": func.with_attr("global_symbol", "main")})


def test_a_number_of_rows_that_the_call_tells():
    drawn = draw(ragged(*SHAPE), OFFSETS)
    sch = s_tir.Schedule(parsed(SYMBOLIC))
    hs.matmul(sch, "C", hs.MatmulConfig(**SMALL))
    result = simulate(sch, drawn.tensors)
    result.require_clean()
    np.testing.assert_array_equal(result.outputs["C"], drawn.want)


def test_a_limit_of_loops_that_are_longer():
    """A loop over the most rows, cut off by a condition, is a loop over those of a group."""
    drawn = draw(ragged(*SHAPE), OFFSETS)
    longest = (
        *KNOWN,
        ("T.grid(P[e + 1] - P[e], 64, 128)", "T.grid(64, 64, 128)"),
        ('"C"):\n', '"C"):\n                T.where(i < P[e + 1] - P[e])\n'),
    )
    mod = parsed(SYMBOLIC, *longest)
    sch = s_tir.Schedule(mod)
    hs.matmul(sch, "C", hs.MatmulConfig(**SMALL))
    result = simulate(sch, drawn.tensors)
    result.require_clean()
    want = drawn.want.copy()
    want[127] = want[192:200] = UNTOUCHED  # rows behind the 64th of a group
    np.testing.assert_array_equal(result.outputs["C"], want)


@pytest.mark.parametrize("persistent", [0, 3])
def test_another_dimension_of_the_output(persistent):
    """A tile of the table is then several rows of tiles."""
    heads = (
        *KNOWN,
        ('a, (256, 128), "float16"', 'a, (2, 256, 128), "float16"'),
        ("(4, 64, 128)", "(2, 4, 64, 128)"),
        ('c, (256, 64), "float32"', 'c, (2, 256, 64), "float32"'),
        ("for i, j, k in T.grid(P[e + 1] - P[e], 64, 128)", GRID_OF_HEADS),
        ('ve, vj, vk = T.axis.remap("SSR", [e, j, k])', REMAP_OF_HEADS),
        *[(f"C[v, vj]{x}", f"C[vh, v, vj]{x}") for x in (" = T.", " = C", " + ")],
        ("A[v,", "A[vh, v,"),
        ("B[ve,", "B[vh, ve,"),
    )
    sch = s_tir.Schedule(parsed(SYMBOLIC, *heads))
    hs.matmul(sch, "C", hs.MatmulConfig(**SMALL, persistent=persistent))
    rng = np.random.default_rng(2)
    a, b = (rng.integers(-2, 3, x).astype("float16") for x in ((2, 256, 128), (2, 4, 64, 128)))
    out = np.full((2, 256, 64), UNTOUCHED, "float32")
    result = simulate(sch, {"A": a, "B": b, "P": np.array(OFFSETS, "int32"), "C": out})
    result.require_clean()
    want = np.full(out.shape, float(UNTOUCHED))
    for e, (first, end) in enumerate(itertools.pairwise(OFFSETS)):
        parts = a[:, first:end].astype("float64"), b[:, e].astype("float64")
        want[:, first:end] = np.einsum("hik,hjk->hij", *parts)
    np.testing.assert_array_equal(result.outputs["C"], want)


@pytest.mark.parametrize("scattered", [False, True])
def test_rows_that_a_tensor_names(scattered):
    """Tokens of experts, where they lie: gathered for a product, stored where they came from."""
    names = [
        ("P: T.Buffer", "X: T.Buffer((200,), 'int32'), P: T.Buffer"),
        ("A[v, vk]", "A[X[v], vk]"),
    ]
    if scattered:
        names.append(("C[v, vj]", "C[X[v], vj]"))
    mod = parsed(SYMBOLIC, *KNOWN, *names)
    rng = np.random.default_rng(0)
    drawn = draw(ragged(*SHAPE), OFFSETS).tensors
    order = rng.permutation(256)[:200].astype("int32")
    sorted_rows = drawn["A"].copy()
    drawn |= {"X": order, "A": rng.permutation(drawn["A"])}
    sorted_rows[:200] = drawn["A"][order]
    sch = s_tir.Schedule(mod)
    hs.matmul(sch, "C", hs.MatmulConfig(**SMALL, persistent=3))
    result = simulate(sch, {str(x.name): drawn[str(x.name)] for x in mod["main"].params})
    result.require_clean()
    got, want = result.outputs["C"], np.full((256, 64), UNTOUCHED, "float64")
    for e, (first, end) in enumerate(itertools.pairwise(OFFSETS)):
        rows = order[first:end] if scattered else slice(first, end)
        want[rows] = sorted_rows[first:end].astype("float64") @ drawn["B"][e].astype("float64").T
    np.testing.assert_array_equal(got, want)
    assert "fallback  " not in str(explain(sch, "nvidia/nvidia-h200"))  # chunks of 16 bytes


@pytest.mark.parametrize("places", [OFFSETS, [0, 64, 64, 128, 256]])
def test_tiles_that_a_table_counts_are_verified(places):
    mod = ragged(*SHAPE)
    sch = s_tir.Schedule(mod)
    hs.matmul(sch, "C", hs.MatmulConfig(**SMALL))
    given = {x: draw(mod, places).tensors[x] for x in ("P", "C")}
    report = verify(sch, given)
    assert report.verdict == "clean"
    assert "by the contents of tiles" in str(report)
    assert "values compared with main: on integers 16384" in str(report)


@pytest.mark.parametrize(
    ("options", "ways"), [({}, 3), ({"layout": "counts", "epilogue": "bias"}, 3)]
)
def test_lengths_that_are_not_given_are_drawn(options, ways):
    """Equal groups, ragged ones with rows left over, and one group."""
    sch = s_tir.Schedule(ragged(64, 32, 64, 4, **options))
    hs.matmul(sch, "C", hs.MatmulConfig(**SMALL))
    report = verify(sch, runs=[("eager", 0)])
    assert report.verdict == "clean"
    assert str(report).count("eager(0): clean") == ways
    assert "bit for bit" in report.values.text


def test_a_row_of_the_next_group_is_found(monkeypatch):
    of_tile = tile_groups._TiledGroups.of_tile

    def more(cut, what, tile):
        return of_tile(cut, what, tile) + int(what == tile_groups.LEFT)

    monkeypatch.setattr(tile_groups._TiledGroups, "of_tile", more)
    sch = s_tir.Schedule(ragged(*SHAPE))
    hs.matmul(sch, "C", hs.MatmulConfig(**SMALL))
    report = verify(sch, draw(ragged(*SHAPE), OFFSETS).tensors, runs=[("eager", 0)])
    found = {(x.rule, x.buffer) for x in report.findings}
    assert found & {("RACE_WRITE_WRITE", "C"), ("WRONG_VALUE", "C")}


def test_a_trace_replays_on_the_tiles():
    mod = ragged(*SHAPE)
    sch = check_values(mod, OFFSETS)
    again = s_tir.Schedule(hs.tile_groups(mod, "C", 64))
    sch.trace.apply_to_schedule(again, remove_postproc=False)
    tvm.ir.assert_structural_equal(again.mod, sch.mod)
    assert "tiles" in str(hs.tile_groups(mod["main"], "C", 64))
    plain = matmul("m", 256, 64)
    assert hs.tile_groups(plain, "C", 64).same_as(plain)


def test_only_tiles_that_there_are_take_time():
    with tvm.target.Target("nvidia/nvidia-h200"):
        sch = s_tir.Schedule(ragged(*SHAPE))
        hs.matmul(sch, "C", hs.MatmulConfig(**SMALL))
        text = str(explain(sch))
    assert "min(tiles, SMs) thread blocks, tiles = at most 14" in text


# -- refused

ROWS_BY_OFFSETS = "for i in range(P[e], P[e + 1]):\n         for j, k in T.grid(64, 128):"
REFUSED = [
    (
        [("A[v, vk]", "A[vj, vk]")],
        r"block C: found 0 operands that loop i moves; need one, whose rows are those of the out",
    ),
    (
        [(", 64, 128):", ", P[4], 128):")],
        r"block C: found loops \['i<.*', 'j<P\[4\]'\] of which tensors say the lengths; need one",
    ),
    (
        [("P: T.Buffer((5,), ", "g: T.int32, P: T.Buffer((5,), "), ("in range(4)", "in range(g)")],
        r"block C: found g groups of rows; need a number of groups that is known",
    ),
    (
        [("a, (256, 128)", "a, (512, 128)"), ("A[v, vk]", "A[v * 2, vk]")],
        r"block C, tensor A: found the index .*\* 2 along the rows of groups; need rows of a group",
    ),
    (
        [("c, (256, 64)", "c, (64, 256)"), ("C[v, vj]", "C[vj, v]")],
        r"block C: found the output index \[j, P\[e\] \+ i\]; need columns as its last dimension",
    ),
    (
        [("range(4)", "range(1, 4)")],
        r"block C, loop e: found a loop from 1; need loops from 0 around groups of rows; add the",
    ),
    (
        [
            ("for i, j, k in T.grid(P[e + 1] - P[e], 64, 128):", ROWS_BY_OFFSETS),
            ("P[e] + i", "i"),
        ],
        r"block C, loop i: found a loop from P\[e\]; need loops from 0 around groups of rows",
    ),
]


@pytest.mark.parametrize(("changes", "match"), REFUSED)
def test_groups_that_no_table_describes(changes, match):
    refuse(parsed(SYMBOLIC, *KNOWN, *changes), match)


READERS = [
    (
        "for i, j in T.grid(256, 64)",
        "for i, j, r in T.grid(256, 64, 2)",
        r"block D: found a read of C\[i, j\] in loops \['i', 'j', 'r'\]; need loops over the elem",
    ),
    (
        "T.max(C[v, vj], T",
        "T.max(C[255 - v, vj], T",
        r"block D: found a read of C\[255 - i, j\] in loops \['i', 'j'\]; need loops over the elem",
    ),
    (
        "for i, j in T.grid(256, 64):",
        "for i, j in T.grid(100, 64):",
        r"block D: found a read of C\[i, j\] in loops \['i', 'j'\]; need loops over the elements",
    ),
    (
        'with T.sblock("D"):\n',
        'with T.sblock("D"):\n            T.where(i < 100)\n',
        r"block D: found a read of C\[i, j\] in loops \['i', 'j'\]; need loops over the elements",
    ),
    (
        "for i, j in T.grid(256, 64):",
        "for i in range(256):\n     for j in range(64):\n      with T.sblock('E'):\n"
        "       v, vj = T.axis.remap('SS', [i, j])\n       F[v, vj] = C[v, vj]\n"
        "    for i, j in T.grid(256, 64):",
        r"block C: found C, which blocks \['E', 'D'\] read; need one elementwise block behind",
    ),
]


@pytest.mark.parametrize(("old", "new", "match"), READERS)
def test_what_follows_takes_each_element_once(old, new, match):
    text = ragged(*SHAPE, epilogue="relu")["main"].script()
    text = text[text.index("@T.prim_func") :]
    changes = [(old, new)]
    if "'E'" in new:
        changes.append(("P: T.Buffer", 'F: T.Buffer((256, 64), "float32"), P: T.Buffer'))
    refuse(parsed(text, *changes), match)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"split_k": 2}, "split_k=2"),
        ({"cluster": (2, 1)}, r"cluster=\(2, 1\)"),
        ({"store": "tma"}, "store='tma'"),
    ],
)
def test_what_does_not_go_with_groups(given, found):
    match = rf"block C: found {found}, and groups of rows .*; need tiles that one thread block"
    refuse(ragged(*SHAPE), match, hs.MatmulConfig(**given))


def test_sizes_that_are_sampled_begin_on_the_tiles():
    sch = s_tir.Schedule(ragged(*SHAPE))
    tile = sch.sample_categorical([64, 128], [0.5, 0.5])
    with pytest.raises(ScheduleError, match=r"Schedule\(hs.tile_groups\(mod, block, rows"):
        hs.matmul(sch, "C", hs.MatmulConfig(tile=(tile, 32, 64), stages=2, consumers=1))


def test_rows_of_a_tile_are_checked():
    with pytest.raises(ScheduleError, match=r"tile_groups: found rows=0; need"):
        hs.tile_groups(ragged(*SHAPE), "C", 0)
