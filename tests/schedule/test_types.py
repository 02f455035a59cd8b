"""Values of the wrong type are refused in words, before anything is scheduled."""

import pytest
from tvm import s_tir, te

from tvm_hopper import schedule as hs
from tvm_hopper.errors import ScheduleError
from tvm_hopper.testing import workloads


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"raster": "8"}, r"found raster='8'; need an int, one of 'hilbert', an hs.Raster or None"),
        ({"raster": 1.5}, r"found raster=1.5; need an int, one of 'hilbert', an hs.Raster or None"),
        (
            {"split_k": "free"},
            r"found split_k='free'; need an int, one of 'cluster', .* an hs.S",
        ),
        ({"store": "bulk"}, r"found store='bulk'; need one of 'tma', 'threads', an hs.TmaStore or"),
        (
            {"form": "rows"},
            r"found form='rows'; need one of 'tiles', .*, an hs.DirectShape or",
        ),
        ({"form": (32, 4)}, r"found form=\(32, 4\); need one of 'tiles', "),
        ({"early_launch": 1}, r"found early_launch=1; need one of 'weights', True, False or None"),
        ({"batch_invariant": 1}, r"found batch_invariant=1; need True or False"),
        ({"persistent": 1.0}, r"found persistent=1.0; need an int or None"),
        ({"persistent": 10**12}, r"found persistent=1000000000000; need at most 2147483647"),
        ({"stages": 2.0}, r"found stages=2.0; need an int or None"),
        ({"stages": True}, r"found stages=True; need an int or None"),
        ({"consumers": True}, r"found consumers=True; need an int or None"),
        ({"swizzle": "128"}, r"found swizzle='128'; need one of 0, 32, 64, 128 or None"),
        ({"tile": 128}, r"found tile=128; need rows, columns and depth"),
        ({"tile": (128, 128)}, r"found tile=\(128, 128\); need rows, columns and depth"),
        ({"tile": (128.0, 128, 64)}, r"need ints from 1 to 65536, or sampled random variables"),
        ({"tile": (0, 128, 64)}, r"need ints from 1 to 65536, or sampled random variables"),
    ],
)
def test_a_field_of_the_configuration(fields, match):
    with pytest.raises(ScheduleError, match=match):
        hs.MatmulConfig(**fields)


@pytest.mark.parametrize("registers", [40, (40,), (40, "232"), (40, 232.0)])
def test_registers_of_roles(registers):
    with pytest.raises(ScheduleError, match=r"roles: found registers=.*; need registers of a prod"):
        hs.Roles(2, registers)


def test_consumers_of_roles():
    with pytest.raises(ScheduleError, match=r"roles: found consumers='2'; need an int or None"):
        hs.Roles("2")


def test_a_configuration_is_a_matmul_config():
    sch = s_tir.Schedule(workloads.matmul(128, 128, 64))
    with pytest.raises(ScheduleError, match=r"found config=\{'tile': 1\}; need an hs.MatmulConfig"):
        hs.matmul(sch, "C", {"tile": 1})


@pytest.mark.parametrize("tile", [(0, 0, 0), (64, 64), None])
def test_a_tile_to_pad_to(tile):
    sch = s_tir.Schedule(workloads.matmul(100, 100, 64))
    with pytest.raises(ScheduleError, match=r"pad: found tile="):
        hs.pad(sch, "C", tile)


def test_a_copy_may_be_named():
    sch = s_tir.Schedule(workloads.matmul(128, 128, 64))
    sch.cache_read("C", 0, "shared.dyn")
    hs.async_copy(sch, "A_shared.dyn")
    assert "tvm_hopper.async_copy" in sch.get(sch.get_sblock("A_shared.dyn")).annotations


def test_a_schedule_is_needed():
    mod = workloads.matmul(128, 128, 64)
    with pytest.raises(ScheduleError, match=r"found sch=a IRModule; need a schedule; make one"):
        hs.matmul(mod, "C")


def product(lhs, rhs):
    a, b = te.placeholder((64, 64), lhs, name="A"), te.placeholder((64, 64), rhs, name="B")
    k = te.reduce_axis((0, 64), "k")
    wide = lambda x: x.astype("float32")  # noqa: E731
    c = te.compute((64, 64), lambda i, j: te.sum(wide(a[i, k]) * wide(b[j, k]), k), "C")
    return s_tir.Schedule(te.create_prim_func([a, b, c]))


@pytest.mark.parametrize("types", [("float16", "int8"), ("int8", "int8"), ("float16", "bfloat16")])
def test_operands_of_other_types(types):
    """The fix is done: what is of another type is cast in front, and the product is taken."""
    with pytest.raises(ScheduleError, match=r"; need .*; cast .* in front \(hs.pointwise\)"):
        hs.matmul(product(*types), "C")
    other = te.placeholder((64, 64), types[1], name="X")
    cast = te.compute((64, 64), lambda i, j: other[i, j].astype("float16"), "Y")
    hs.pointwise(s_tir.Schedule(te.create_prim_func([other, cast])))
    hs.matmul(product("float16", "float16"), "C")
