"""Products multiplied as C^T = B^T A^T, so that few rows lie on an instruction's columns."""

import pytest
from tvm import s_tir

from tvm_hopper import explain, schedule as hs
from tvm_hopper.errors import ScheduleError
from tvm_hopper.simulation import verify
from tvm_hopper.testing import workloads

TARGET = "nvidia/nvidia-h200"


def scheduled(m, n, k, layout="NT", form=None, **fields):
    mod = workloads.matmul(m, n, k, layout, "float16", "float16", **(form or {}))
    sch = s_tir.Schedule(mod)
    hs.matmul(sch, "C", hs.MatmulConfig(**fields, form="transposed"))
    return mod, sch


def case(name, shape, layout, tile, form=None, slow=False, **fields):
    marks = [pytest.mark.slow] if slow else []
    return pytest.param(shape, layout, {"tile": tile, **fields}, form or {}, id=name, marks=marks)


@pytest.mark.parametrize(
    ("shape", "layout", "fields", "form"),
    [
        case("one row", (1, 128, 256), "NT", (64, 8, 64), stages=3),
        case("two consumers", (5, 200, 144), "NN", (128, 8, 64), stages=3, consumers=2),
        case(
            "epilogue",
            *((17, 136, 80), "NT", (64, 24, 64)),
            form={"epilogue": ("bias_col", "gelu", "residual")},
            stages=2,
        ),
        case("several columns", (104, 72, 72), "TT", (64, 56, 64), stages=2, slow=True),
        case("in flight", (24, 136, 200), "TN", (64, 24, 128), slow=True, wgmma_pending=1),
        case("persistent", (8, 320, 128), "NT", (64, 8, 64), stages=2, slow=True, persistent=2),
    ],
)
def test_a_transposed_product_is_clean_and_right(shape, layout, fields, form):
    mod, sch = scheduled(*shape, layout, form, **fields)
    assert verify(sch.mod, target=TARGET, against=mod).verdict == "clean"


def test_a_box_has_no_more_rows_than_there_are():
    """The weights take the 64 rows of an instruction, and x a box of the eights that it needs."""
    _, sch = scheduled(17, 256, 128, tile=(64, 24, 64), stages=2)
    (kernel,) = explain(sch.mod, target=TARGET).kernels
    assert {x.tensor: x.box for x in kernel.tensor_maps} == {"A": (64, 24), "B": (64, 64)}
    assert "m64n24k16" in kernel.product.instruction


def test_narrow_stores_are_no_fallback():
    """The fragment's rows run along the output's columns: no store could be wider."""
    _, sch = scheduled(16, 128, 128, tile=(64, 16, 64), stages=2)
    (kernel,) = explain(sch.mod, target=TARGET).kernels
    assert [x.num_bytes for x in kernel.stores] == [2]
    assert kernel.fallbacks == ()


def test_few_rows_are_transposed_by_default():
    mod = workloads.matmul(16, 256, 128, "NT", "float16", "float16")
    sch = s_tir.Schedule(mod)
    hs.matmul(sch, "C")
    (kernel,) = explain(sch.mod, target=TARGET).kernels
    assert kernel.tensor_maps[0].box[1] <= 64
    assert "transposed" in kernel.product.choice.splitlines()[0]
    assert verify(sch.mod, target=TARGET, against=mod).verdict == "clean"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"store": "tma"}, r"found store='tma' with form='transposed'; need one of the two"),
    ],
)
def test_what_does_not_go_together_is_refused(fields, message):
    with pytest.raises(ScheduleError, match=message):
        hs.MatmulConfig(**{"form": "transposed", **fields})
