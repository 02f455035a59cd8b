"""`hs.matmul` of an operand that is converted on its way: recognition, refusals, choice."""

import pytest
from tvm import s_tir, te
from tvm.target import Target

from tests.schedule.programs import module, operands, product, tensor
from tests.schedule.refuse import refuse
from tvm_hopper import ir, schedule as hs
from tvm_hopper.requests import keys
from tvm_hopper.simulation import verify
from tvm_hopper.testing.converted import converted_weight
from tvm_hopper.testing.quantized import grouped_weight

H200 = "nvidia/nvidia-h200"
SIDES = (16, 64, 64)


def narrow(*shape, name="W", dtype="int8"):
    """Return a stored tensor, and it in float16."""
    stored = tensor(*shape, dtype=dtype, name=name)
    return stored, te.compute(shape, lambda *i: stored(*i).astype("float16"), name=f"{name}_wide")


def test_the_kernel_loads_bytes_and_multiplies_from_registers():
    sch = s_tir.Schedule(converted_weight(*SIDES))
    hs.matmul(sch, "C")
    body = sch.mod["main"].body
    blocks = {x.name_hint: x for x in ir.find_all(body, ir.SBlock)}
    assert "F" not in blocks, "inlined into the block that scales"
    assert str(blocks["scaled"].writes[0].source.scope()) == "local"
    (copied,) = (x for x in blocks.values() if x.name_hint.startswith("W_shared"))
    assert ir.dtype_of(copied.writes[0].source) == "int8"


@pytest.mark.parametrize(("rows", "columns"), [(4, 50), (20, 50), (100, 50), (20, 9)])
def test_any_number_of_columns_has_a_tile(rows, columns):
    """What the choice lists can be loaded: boxes hold whole atoms of the swizzle."""
    with Target(H200):
        hs.matmul(s_tir.Schedule(converted_weight(rows, columns, 512)), "C")


@pytest.mark.parametrize(
    ("rows", "tile", "parts"),
    [(16, (256, 16, 128), [4]), (512, (128, 256, 64), [])],
)
def test_tiles_are_chosen_by_what_is_moved_and_converted(rows, tile, parts):
    with Target(H200):
        sch = s_tir.Schedule(converted_weight(rows, 8192, 8192))
        hs.matmul(sch, "C")
    body = sch.mod["main"].body
    (wgmma,) = ir.find_blocks(body, keys.WGMMA)
    rows_of_one, *sides = (int(x.extent) for x in ir.find_all(wgmma.body, ir.For))
    assert (2 * rows_of_one, *sides) == tile
    shared = ir.find_all(body, ir.For, lambda x: keys.ACROSS_CLUSTER in x.annotations)
    assert [int(x.extent) for x in shared] == parts


def test_lanes_decode_for_few_rows():
    """By default up to eight rows, also of a size class; whole runs of a sum in flight."""
    for rows in (1, 8):
        with Target(H200):
            sch = s_tir.Schedule(grouped_weight(rows, 4096, 4096))
            hs.matmul(sch, "C")
        assert ir.find_blocks(sch.mod["main"].body, keys.MMA_SYNC)
    sch = s_tir.Schedule(grouped_weight("m", 2048, 2048))
    with Target(H200):
        hs.matmul(sch, "C")
    (block,) = ir.find_blocks(sch.mod["main"].body, keys.MMA_SYNC)
    assert block.name_hint.startswith("C_8"), "one kernel for up to eight rows"


@pytest.mark.parametrize(
    ("form", "config", "match"),
    [
        (
            {"is_kn": True, "along": "n"},
            {"form": "direct"},
            "dequantize, of which 16 stored bytes make no neighbours along k; need one of 8, 16,",
        ),
        ({"k": 160}, {"form": "direct"}, "K = 160; need a multiple of 128 for dequantize, 32 in"),
        (
            {"m": 64, "bits": 2, "group": 16},
            {"form": "direct"},
            "found 64 rows; need rows and a depth of which registers",
        ),
        ({}, {"form": hs.DirectShape(4, 16, 64)}, "need multiples of 16 and 128 for the rows"),
    ],
)
def test_what_lanes_do_not_decode(form, config, match):
    sides = {"m": 8, "n": 64, "k": 256} | form
    refuse(grouped_weight(**sides), match, hs.MatmulConfig(**config))


@pytest.mark.parametrize("other", ["output", "reader"])
def test_what_something_else_reads_is_not_converted_on_its_way(other):
    stored, wide = narrow(64, 64)
    x = tensor(16, 64, dtype="float16", name="X")
    more = te.compute(wide.shape, lambda *i: -wide(*i), name="more")
    refuse(
        module(x, stored, wide if other == "output" else more, product(x, wide)),
        r"block W_wide: found a cast of W from int8 to float16 before the matmul C",
    )


def test_parts_of_a_converted_operand():
    stored, wide = narrow(64, 128)
    x = tensor(16, 64, dtype="float16", name="X")
    refuse(
        module(x, stored, product(x, wide, right=lambda row, k: (row, k + 64))),
        r"block W_wide: found a cast of W from int8 to float16 before the matmul C",
    )


@pytest.mark.parametrize(
    "value",
    [
        lambda v, w, j, k: v[j, k] + w[j, k],  # none of the two is the packed one
        lambda v, w, j, k: w[j, 63 - k] * v[j, 0],
        lambda v, w, j, k: w[j, (j + k) % 64] * v[j, 0],
    ],
)
def test_what_is_no_decoder(value):
    v, w = (tensor(64, 64, dtype="int8", name=x) for x in "VW")
    x = tensor(16, 64, dtype="float16", name="X")
    f = te.compute((64, 64), lambda j, k: value(v, w, j, k).astype("float16"), name="F")
    refuse(module(x, v, w, product(x, f)), r"block F: found a c")


def test_both_operands():
    (x, x_wide), (w, w_wide) = narrow(16, 64, name="X"), narrow(64, 64)
    refuse(
        module(x, w, product(x_wide, w_wide)),
        r"found operands X_wide and W_wide, both converted on their way; need one: WGMMA takes its "
        r"first operand from registers, the second from shared memory; convert one of them in a",
    )


@pytest.mark.parametrize(
    ("sides", "config", "match"),
    [
        ((16, 64, 40), {}, r"tensor W: found rows of 40 int8 elements; need a tensor without st"),
        (SIDES, {"form": "dots"}, r"found form='dots' where scaled is converted on its way; need "),
        (SIDES, {"form": "untransposed"}, r"need form='transposed', or none: rows of a tile are"),
        (SIDES, {"store": "tma"}, r"found store='tma' with form='transposed'"),
    ],
)
def test_shapes_and_forms(sides, config, match):
    refuse(converted_weight(*sides), match, hs.MatmulConfig(**config))


def test_words_whose_elements_divide_no_tile():
    """Ten of three bits: the depth of a chosen tile is a multiple of ten; a given one has to be."""
    mod = grouped_weight(5, 64, 320, bits=3, group=40)
    sch = s_tir.Schedule(mod)
    hs.matmul(sch, "C")
    (wgmma,) = ir.find_blocks(sch.mod["main"].body, keys.WGMMA)
    *_, depth = (int(x.extent) for x in ir.find_all(wgmma.body, ir.For))
    assert depth == 80
    refuse(
        mod,
        "dequantize: found a tile of 64 depth, of which 10 are packed in one element; need a mul",
        hs.MatmulConfig(tile=(64, 8, 64)),
    )


def test_one_of_several_products():
    x, _ = operands(*SIDES)
    (v, v_wide), (w, w_wide) = narrow(64, 64, name="V"), narrow(64, 64)
    gate, up = product(x, v_wide, "C0"), product(x, w_wide, "C1")
    both = te.compute(gate.shape, lambda *i: gate(*i) * up(*i), name="D")
    refuse(
        module(x, v, w, both),
        "found V_wide, converted on its way, of several products or next to reductions; need",
        block=("C0", "C1"),
    )


@pytest.mark.parametrize("stored", ["int4", "bool"])
def test_types_that_are_not_converted_on_their_way(stored):
    """What is left is an operand that is computed before."""
    refuse(converted_weight(64, 64, 64, stored=stored, values=""), "block F: found ", None)


def test_consumers_in_turn_convert_where_requested():
    mod = converted_weight(64, 256, 64)
    sch = s_tir.Schedule(mod)
    hs.matmul(sch, "C", hs.MatmulConfig(schedule="pingpong", consumers=2, persistent=-1))
    verify(sch, against=mod, runs=(("on_wait", 0),)).require_clean()
