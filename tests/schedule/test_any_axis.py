"""Reductions over dimensions with others on both sides: what they compute, and what they refuse."""

import functools
import random

import pytest
import tvm
from tvm import s_tir, te

from tests.schedule.programs import axis, module, tensor
from tests.schedule.refuse import refuse
from tvm_hopper import dlight, explain, ir, schedule as hs
from tvm_hopper.schedule.column_reduction.apply import chosen_columns
from tvm_hopper.simulation import verify
from tvm_hopper.testing import any_axis

TARGET = "nvidia/nvidia-h200"
refuse = functools.partial(refuse, helper=hs.column_reduction)
ONCE = (("on_wait", 0),)


def scheduled(mod, config=None):
    with tvm.target.Target(TARGET):
        sch = s_tir.Schedule(mod)
        hs.column_reduction(sch, config=config)
    return sch


def check(mod, config=None):
    sch = scheduled(mod, config)
    verify(sch, against=mod, runs=ONCE).require_clean()
    return sch


def drawn(count):
    """Yield programs of odd and even sizes, each kind and type in turn."""
    source = random.Random(34)
    names, dtypes = list(any_axis.ANY_AXIS), ("float16", "bfloat16", "float32")
    for number in range(count):
        outer, length = source.choice([(), (1,), (3,), (2, 2)]), source.choice([2, 7, 33, 130])
        kept = source.choice([(1, 3), (8,), (64,), (100,), (5, 4)])
        yield names[number % len(names)], (*outer, length, *kept), len(outer), dtypes[number % 3]


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(("name", "shape", "axis", "dtype"), list(drawn(15)))
def test_programs(name, shape, axis, dtype):
    check(any_axis.ANY_AXIS[name](shape, (axis,), dtype))


HELD = hs.ColumnReductionConfig(threads=4, rows=16, flight=3)
STREAMED = hs.ColumnReductionConfig(threads=8, rows=8, flight=2, blocks=1)
SHARED = hs.ColumnReductionConfig(threads=4, rows=16, flight=2, blocks=3)


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("config", [HELD, STREAMED, SHARED], ids=["held", "streamed", "shared"])
@pytest.mark.parametrize(
    ("name", "shape", "axes"),
    [
        ("softmax", (2, 45, 36), (1,)),
        ("layer_norm", (2, 44, 3, 5), (1,)),
        ("sum_and_scaled", (3, 15, 24), (0, 1)),
    ],
)
def test_ways(name, shape, axes, config):
    """Rows are kept in registers, loaded by each pass, or shared by thread blocks."""
    check(any_axis.ANY_AXIS[name](shape, axes, "float16"), config)


def test_a_pair_of_the_greatest_and_its_place():
    from tvm_hopper.testing.losses import first_greatest

    x, k = tensor(2, 70, 24), axis(70)
    best = first_greatest()
    place, most = te.compute((2, 24), lambda i, j: best((k, x[i, k, j]), axis=k), name="Y")
    check(module(x, place, most), HELD)


@pytest.mark.parametrize(
    ("shape", "kernels"), [((64, 1000, 64), 1), ((64, 54613, 64), 5), ((512, 2048, 256), 1)]
)
def test_thread_blocks_share_columns_where_registers_hold_no_part_of_them(shape, kernels):
    found = explain(scheduled(any_axis.softmax(shape, (1,))), TARGET).kernels
    assert len(found) == kernels
    (note,) = [x for x in found[0].notes if x.startswith("column reduction: ")]
    assert ("share the rows" in note) == (kernels > 1)


def test_a_choice_schedules_the_same():
    mod = any_axis.softmax((8, 300, 64), (1,))
    with tvm.target.Target(TARGET):
        config = chosen_columns(s_tir.Schedule(mod))
    one, other = scheduled(mod), scheduled(mod, config)
    tvm.ir.assert_structural_equal(one.mod, other.mod)
    assert config.flight * config.rows >= 300


def test_the_rule_takes_them():
    rule = dlight.ColumnReduction()
    with tvm.target.Target(TARGET) as target:
        sch = rule.apply(any_axis.softmax((8, 100, 64), (1,))["main"], target, False)
    assert sch is not None
    assert rule.decisions[-1].elements == ()
    assert len(ir.kernels(sch.mod["main"])) == 1


# -- what is refused


def test_blocks_of_other_shapes():
    x, k = tensor(4, 8, 64), axis(8)
    s = te.compute((4, 64), lambda i, j: te.sum(x[i, k, j], axis=k), name="S")
    y = te.compute((4, 8), lambda i, m: s[i, m] + 1.0, name="Y")
    refuse(module(x, y), "block Y: found a result of 4 x 8 elements next to 8 elements of each of")
    z = te.compute((4, 8, 64), lambda i, m, j: x[i, m, j] + s[i, 63 - j], name="Z")
    refuse(module(x, z), "block Z, tensor S: found the index .* of a result of this function")


def test_types_and_extents():
    x, k = tensor(4, 8, 64, dtype="float16"), axis(8)
    s = te.compute((4, 64), lambda i, j: te.sum(x[i, k, j], axis=k), name="S")
    refuse(module(x, s), "a reduction in float16; need float32 or .*; cast the input")
    n = te.var("n")
    z, m = te.placeholder((4, n, 64), "float32", name="Z"), te.reduce_axis((0, n), "m")
    t = te.compute((4, 64), lambda i, j: te.sum(z[i, m, j], axis=m), name="T")
    refuse(module(z, t), "n elements of each of 64 columns; need numbers that are known")


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"group": 2}, "group=2; need a reduction of all elements to one value"),
        ({"threads": 8, "rows": 64, "flight": 16, "blocks": 4}, "for 300 rows of 64 columns"),
    ],
)
def test_configurations_that_do_not_fit(given, match):
    refuse(any_axis.softmax((2, 300, 64), (1,)), match, hs.ColumnReductionConfig(**given))
