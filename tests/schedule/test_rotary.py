"""`hs.matmul` of products whose heads are rotated after them: partners in a row, tables, parts."""

import itertools

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import s_tir, te, tirx
from tvm.target import Target

from tests.schedule.refuse import refuse
from tvm_hopper import explain, schedule as hs
from tvm_hopper.simulation import simulate, verify
from tvm_hopper.testing.gates import rotated_product

H200 = "nvidia/nvidia-h200"
NUMPY = {"float16": "float16", "bfloat16": ml_dtypes.bfloat16}


def values_of(m, n, k, width, tables=None, dtype="float16"):
    rng = np.random.default_rng(0)
    a, w = (rng.standard_normal(x).astype("float32") for x in ((m, k), (n, k)))
    cos, sin = (rng.standard_normal((tables or m, width)).astype("float32") for _ in range(2))
    given = {"A": a.astype(NUMPY[dtype]), "W": w.astype(NUMPY[dtype]), "cos": cos, "sin": sin}
    return {**given, "position": rng.integers(0, tables, m).astype("int32")} if tables else given


def rotated(a, w, cos, sin, position=None, *, pairs=False, columns=None):
    """Return in float64 what the program says."""
    c = a.astype("float64") @ w.astype("float64").T
    if position is not None:
        cos, sin = cos[position], sin[position]
    heads = c.reshape(len(c), -1, cos.shape[1])
    halves = (heads[..., 0::2], heads[..., 1::2]) if pairs else np.split(heads, 2, axis=-1)
    turned = (-halves[1], halves[0])
    other = np.stack(turned, -1).reshape(heads.shape) if pairs else np.concatenate(turned, -1)
    full = (heads * cos[:, None] + other * sin[:, None]).reshape(c.shape)
    return full if columns is None else np.concatenate([full[:, :columns], c[:, columns:]], 1)


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(
    ("shape", "more", "config"),
    [
        ((64, 128, 64, 64), {}, {}),
        ((64, 128, 64, 64), {"pairs": True}, {}),
        ((40, 384, 64, 128), {"columns": 256}, {"tile": (64, 128, 64)}),  # v is not rotated
        ((70, 320, 64, 80), {"columns": 80}, {}),  # heads that are no power of two
        ((70, 256, 64, 64), {"columns": 128}, {"tile": (64, 128, 64), "consumers": 2}),
        ((70, 200, 64, 40), {"pairs": True, "columns": 120}, {"tile": (128, 256, 64)}),
        ((70, 256, 64, 64), {"columns": 96}, {"tile": (128, 256, 64), "consumers": 2}),
        ((1, 256, 64, 128), {"dtype": "bfloat16"}, {}),
        ((64, 96, 64, 16), {}, {"tile": (64, 96, 64), "persistent": 2}),  # of each other eight
        ((70, 128, 64, 64), {"tables": 200}, {}),  # by the position of each row
    ],
)
def test_values(shape, more, config):
    """Each register meets its partner's, in any tile of whole heads."""
    m, n, _, _ = shape
    own = {x: y for x, y in more.items() if x in ("tables", "dtype")}
    sch = s_tir.Schedule(rotated_product(*shape, **more))
    hs.matmul(sch, "C", hs.MatmulConfig(**config))
    given = values_of(*shape, **own)
    done = simulate(sch, given, target=H200)
    want = rotated(**{x.lower(): y for x, y in given.items()},
                   **{x: y for x, y in more.items() if x not in own})  # fmt: skip
    assert done.findings == ()
    error = np.linalg.norm(done.outputs["D"].astype("float64").reshape(m, n) - want)
    assert error < np.linalg.norm(want) * (4e-3 if more.get("dtype") else 4e-4)


def test_tables_leave_accumulators_in_registers():
    """Loads for all elements of a tile at once would spill."""
    sch = s_tir.Schedule(rotated_product(384, 512, 128, 128, columns=256))
    hs.matmul(sch, "C", hs.MatmulConfig(tile=(192, 256, 64), consumers=3))
    assert "0 bytes spilled, stack frame 0" in str(explain(tvm.compile(sch.mod, target=H200)))


def judged(sch, mod, **more):
    verify(sch, against=mod, target=H200, progress=False, **more).require_clean()


@pytest.mark.parametrize(
    "more", [{"pairs": True, "dtype": "bfloat16"}, {"columns": 32, "tables": 16}]
)
def test_verdict(more):
    mod = rotated_product(64, 64, 64, 32, **more)
    sch = s_tir.Schedule(mod)
    hs.matmul(sch, "C")
    judged(sch, mod)


def heads(shape, order, parts=None, batched=False):
    """Return the rotated heads of a product as models write them, a block a step.

    `parts`: heads of q, k and v, which are outputs of their own.
    """
    b, s, h, d = shape
    depth, lead = 64, (b, s) if batched else (b * s,)
    a, w = te.placeholder((*lead, depth), "float16", "A"), te.placeholder((h * d, depth), "float16")
    cos, sin = (te.placeholder((s, d), "float32", x) for x in ("cos", "sin"))
    k, half = te.reduce_axis((0, depth), "k"), d // 2

    def product(*i):
        return te.sum(a(*i[:-1], k).astype("float32") * w[i[-1], k].astype("float32"), [k])

    c = te.compute((*lead, h * d), product, "C")
    place = order.index("s")

    def rows(b, s):
        return (b, s) if batched else (b * shape[1] + s,)

    def output(first, count, is_rotated):
        x = te.compute((b, s, count, d), lambda b, s, h, d_: c(*rows(b, s), (first + h) * d + d_))
        if order == "bhsd":
            flat = x
            x = te.compute((b, count, s, d), lambda b, h, s, d: flat[b, s, h, d])
        if not is_rotated:
            return te.compute(x.shape, lambda *i: x(*i).astype("float16"), f"D{first}")
        minus = te.compute((*x.shape[:3], half), lambda *i: -x(*i[:3], i[3] + half))
        other = te.compute(
            x.shape, lambda *i: tirx.if_then_else(i[3] >= half, x(*i[:3], i[3] - half), minus(*i))
        )
        both = te.compute(
            x.shape, lambda *i: x(*i) * cos[i[place], i[3]] + other(*i) * sin[i[place], i[3]]
        )
        return te.compute(x.shape, lambda *i: both(*i).astype("float16"), f"D{first}")

    starts = np.cumsum([0, *(parts or (h,))])
    outputs = [output(int(x), int(y - x), x < 2) for x, y in itertools.pairwise(starts)]
    func = te.create_prim_func([a, w, cos, sin, *outputs])
    return tvm.IRModule({"main": func.with_attr("global_symbol", "main")})


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(
    ("shape", "order", "more"),
    [
        ((1, 40, 2, 32), "bshd", {"batched": True}),  # a batch of one
        ((2, 20, 2, 32), "bhsd", {}),
        ((2, 20, 4, 32), "bhsd", {"parts": (1, 1, 2), "batched": True}),
        ((1, 40, 6, 16), "bshd", {"parts": (1, 2, 3)}),  # tiles of several outputs
    ],
)
def test_heads_of_several_blocks(shape, order, more):
    """Blocks of other axes than the product's become one for each output, in rows and columns."""
    mod = heads(shape, order, **more)
    sch = s_tir.Schedule(mod)
    hs.matmul(sch, "C")
    judged(sch, mod)


def test_symbolic_rows():
    mod = rotated_product("m", 64, 64, 32, columns=32)
    sch = s_tir.Schedule(mod)
    with Target(H200):
        hs.matmul(sch, "C", rows=64)
    for m in (1, 70):
        given = values_of(m, 64, 64, 32)
        out = {"D": np.zeros((m, 64), "float16")}
        done = simulate(sch, {**given, **out}, target=H200)
        want = rotated(**{x.lower(): y for x, y in given.items()}, columns=32)
        assert done.findings == ()
        assert np.linalg.norm(done.outputs["D"] - want) < 4e-4 * np.linalg.norm(want)


@pytest.mark.parametrize("width", [80, 96, 256])
def test_tiles_of_whole_heads(width):
    """The chooser takes no other tile."""
    sch = s_tir.Schedule(rotated_product(1024, 24 * width, 512, width))
    hs.matmul(sch, "C")
    grid = {str(sch.get(x).thread_binding.thread_tag): int(sch.get(x).extent)
            for x in sch.get_loops(sch.get_sblock("D"))[:3]
            if sch.get(x).thread_binding is not None}  # fmt: skip
    assert 24 % grid["blockIdx.x"] == 0


def test_a_tile_that_cuts_through_a_head():
    mod = rotated_product(64, 256, 64, 64)
    found = "a tile of 96 columns, and outputs of several of 64 columns; need multiples of 64"
    refuse(mod, found, config=hs.MatmulConfig(tile=(64, 96, 64)))
    found = "a tile of 64 columns for 2 consumers"
    refuse(mod, found, config=hs.MatmulConfig(tile=(64, 64, 64), consumers=2))


@pytest.mark.parametrize(
    ("mod", "column"),
    [
        (lambda: rotated_product(64, 64, 64, 8), r"v_j \+ 4"),  # in another thread
        (lambda: rotated_product(64, 1024, 64, 512), r"v_j \+ 256"),  # in another tile
        (lambda: rotated_product(64, 96, 64, 24), r"v_j \+ 12"),
    ],
)
def test_what_no_thread_holds(mod, column):
    match = rf"reads of C\[v_i, v_j\] and C\[v_i, {column}\].*a multiple of 8 columns apart"
    refuse(mod(), match)
