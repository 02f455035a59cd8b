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


@pytest.mark.parametrize(
    ("rows", "tile", "parts"),
    [(16, (128, 16, 128), [2]), (512, (128, 256, 64), [])],
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


def test_values_that_change_along_k():
    stored = tensor(64, 64, dtype="int8", name="W")
    groups = tensor(64, 2, dtype="float16", name="S")
    x = tensor(16, 64, dtype="float16", name="X")
    wide = te.compute(
        (64, 64), lambda j, k: stored[j, k].astype("float16") * groups[j, k // 32], name="F"
    )
    refuse(
        module(x, stored, groups, product(x, wide)),
        r"block F: found a computation before the matmul C",
    )


def test_both_operands():
    (x, x_wide), (w, w_wide) = narrow(16, 64, name="X"), narrow(64, 64)
    refuse(
        module(x, w, product(x_wide, w_wide)),
        r"found operands X_wide and W_wide, both converted on their way; need one: WGMMA takes its "
        r"first operand from registers, the second from shared memory; convert one of them in a",
    )


def test_rows_that_run_the_other_way():
    stored, wide = narrow(64, 64)
    x = tensor(16, 64, dtype="float16", name="X")
    refuse(
        module(x, stored, product(x, wide, right=lambda row, k: (k, row))),
        r"tensor W: found int8 whose neighbours in memory are not neighbours along k; need rows "
        r"along k, as a register has them",
    )


@pytest.mark.parametrize(
    ("sides", "config", "match"),
    [
        ((16, 64, 40), {}, r"tensor W: found rows of 40 int8 elements; need a tensor without st"),
        ((16, 72, 64), {}, r"found 72 rows of a converted operand, and a depth of 64; need multip"),
        (
            (16, 64, 96),
            {"tile": (64, 16, 64)},
            r"tensor scaled: found 96 columns, converted on their way in tiles of 64; need whole",
        ),
        (
            (16, 64, 64),
            {"tile": (128, 16, 64)},
            r"tensor scaled: found 64 rows, converted on their way in tiles of 128; need whole",
        ),
        (SIDES, {"form": "dots"}, r"found form='dots' where scaled is converted on its way; need "),
        (SIDES, {"form": "untransposed"}, r"need form='transposed', or none: rows of a tile are"),
        (SIDES, {"store": "tma"}, r"found store='tma' with form='transposed'"),
    ],
)
def test_shapes_and_forms(sides, config, match):
    refuse(converted_weight(*sides), match, hs.MatmulConfig(**config))


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
