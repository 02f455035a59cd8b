"""What `explain` says: of a schedule, of an executable, as text, as a table and as a dict."""

import io
import json
from dataclasses import replace

import pytest
import tvm
from tvm import s_tir

import tvm_hopper
from tvm_hopper import ir, pipeline, schedule as hs
from tvm_hopper.schedule.products.parts import MOST_ROWS_ACROSS
from tvm_hopper.testing import workloads
from tvm_hopper.transforms.common.explain_notes import SmemNote, to_json

TARGET = "nvidia/nvidia-h200"


def scheduled(**config):
    sch = s_tir.Schedule(workloads.matmul(1000, 512, 256, "NN", "float16", "float16"))
    hs.matmul(sch, "C", hs.MatmulConfig(**config))
    return sch.mod


@pytest.fixture(scope="module")
def module():
    return scheduled(
        tile=(128, 128, 64),
        stages=3,
        consumers=2,
        registers=(40, 232),
        raster=1,
        persistent=0,
    )


def test_a_schedule_is_taken_as_its_module(module, explanation):
    assert tvm_hopper.explain(s_tir.Schedule(module), TARGET) == explanation


def test_a_text_of_several_lines_goes_on_under_its_first_one(explanation):
    (kernel,) = explanation.kernels
    told = type(explanation)((replace(kernel, fallbacks=("slow\nnot fast: why",)),))
    *_, first, second = str(told).splitlines()
    assert first.split() == ["fallback", "slow"]
    assert second == " " * first.index("slow") + "not fast: why"


@pytest.fixture(scope="module")
def explanation(module):
    return tvm_hopper.explain(module, TARGET)


def test_the_plan_is_the_one_asked_for(explanation):
    (kernel,) = explanation.kernels
    assert (kernel.stages, kernel.consumers, kernel.threads) == (3, 2, 384)
    assert kernel.product.tile == (64, 128, 64)
    assert kernel.product.instruction == "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16"
    assert kernel.roles.registers == (40, 232)
    assert kernel.product.accumulator_registers == 64


def test_bytes_are_those_of_the_tile(explanation):
    (kernel,) = explanation.kernels
    # A: 128 x 64 halves = 16384 bytes, B the same; three stages and 2 x 3 barriers of 8 bytes
    (ring,) = kernel.rings
    assert (ring.stages, ring.stage_bytes) == (3, 32768)
    assert (ring.full_arrivals, ring.empty_arrivals) == (1, 2)
    assert sum(region.size for region in kernel.smem) == 3 * 32768 + 48
    assert kernel.smem_bytes == 3 * 32768 + 32 + 24  # barriers start at multiples of 16
    assert [m.tensor for m in kernel.tensor_maps] == ["A", "B"]
    assert kernel.tensor_maps[1].dims == ("512", "256")


def test_the_text_names_what_matters(explanation):
    text = str(explanation)
    assert "kernel main" in text
    assert "3 stages of 32768 bytes" in text
    assert "98360 of 232448 bytes (42%)" in text
    assert "box 64 x 128 of 256 x 1000 elements, 16384 bytes, swizzle 128 B" in text
    assert "fallbacks" in text


def test_kernels_are_told_by_their_number():
    """Nothing is known of the kernel in the middle, and little of the first."""
    mod = scheduled(tile=(128, 128, 64), stages=3, consumers=2)
    lowered = pipeline.lower_final(mod, TARGET).host
    (var,) = lowered.get_global_vars()
    known = json.loads(lowered[var].attrs[ir.PLAN_ATTR])
    first = [to_json(SmemNote("cache", 0, 512))]
    text = json.dumps(
        {**known, "num_kernels": 3, "kernels": {"0": first, "2": known["kernels"]["0"]}}
    )
    lowered = tvm.IRModule({var: lowered[var].with_attr(ir.PLAN_ATTR, text)})
    other, product = tvm_hopper.explain(lowered).kernels
    assert (other.product, other.smem_bytes, other.stages) == (None, 512, None)
    assert (product.name, product.stages, product.consumers) == ("main, 2", 3, 2)


def test_the_table_holds_the_same_topics(explanation):
    rich_console = pytest.importorskip("rich.console")
    out = io.StringIO()
    rich_console.Console(file=out, width=200).print(explanation)
    for topic, _ in explanation.kernels[0].rows():
        assert topic.strip() in out.getvalue()


def test_the_dict_is_plain(explanation):
    plain = explanation.as_dict()
    assert json.loads(json.dumps(plain)) == plain
    assert plain["kernels"][0]["smem"][0]["offset"] == 0
    assert "arch" not in plain["kernels"][0]


def test_a_function_is_explained_as_its_module_is(module, explanation):
    assert tvm_hopper.explain(module["main"], TARGET) == explanation


def test_an_executable_adds_what_the_assembler_said(module, explanation):
    (kernel,) = tvm_hopper.explain(tvm.compile(module, target=TARGET)).kernels
    assert kernel.name == "main_kernel"
    assert kernel.assembled.registers == 168
    assert (kernel.assembled.spill_bytes, kernel.assembled.stack_bytes) == (0, 0)
    assert kernel.smem == explanation.kernels[0].smem
    assert "168 registers, 0 bytes spilled" in str(dict(kernel.rows())["assembler"])


def test_a_widened_accumulator_is_reported():
    mod = workloads.matmul(
        256, 256, 256, "NT", "float16", "float16", acc_dtype="float16", cast="none"
    )
    sch = s_tir.Schedule(mod)
    hs.matmul(sch, "C", hs.MatmulConfig(accumulate="float32"))
    explanation = tvm_hopper.explain(sch.mod, TARGET)
    assert "accumulates in float32 where the program says float16" in explanation.kernels[0].notes
    assert explanation.kernels[0].fallbacks == ()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_product_that_the_program_rounds_is_reported(dtype):
    notes = {}
    for cast in ("before", "after"):
        sch = s_tir.Schedule(workloads.matmul(64, 64, 64, dtype=dtype, cast=cast))
        hs.matmul(sch, "C", hs.MatmulConfig(tile=(64, 64, 64), stages=1, consumers=1))
        notes[cast] = tvm_hopper.explain(sch.mod, TARGET).kernels[0].notes
    rounded = f"products are summed unrounded: the program rounds each product to {dtype}"
    assert notes == {"before": (), "after": (rounded,)}


def test_a_raster_order_is_said_when_it_is_not_the_hardwares(explanation):
    assert explanation.kernels[0].raster_group == 1
    assert "raster order" not in str(explanation)
    asked = tvm_hopper.explain(scheduled(tile=(128, 128, 64), raster=4), TARGET)
    assert asked.kernels[0].raster_group == 4
    assert "4 rows of output tiles together" in str(asked)


def test_a_persistent_kernel_says_how_many_blocks_share_the_tiles(explanation):
    assert explanation.kernels[0].persistent is None
    sch = s_tir.Schedule(workloads.matmul(1024, 1024, 256))
    hs.matmul(sch, "C", hs.MatmulConfig(tile=(128, 128, 64), persistent=48))
    (kernel,) = tvm_hopper.explain(sch.mod, TARGET).kernels
    assert kernel.persistent == 48
    assert dict(kernel.rows())["persistent"] == "48 thread blocks share the output tiles"


def test_a_grid_that_the_device_decides_is_said_as_a_formula():
    sch = s_tir.Schedule(workloads.matmul(4096, 4096, 256))
    hs.matmul(sch, "C", hs.MatmulConfig(tile=(128, 256, 64)))
    (kernel,) = tvm_hopper.explain(sch.mod, TARGET).kernels
    assert (kernel.persistent, kernel.order.tiles) == (hs.BY_DEVICE, "512")
    assert dict(kernel.rows())["persistent"] == (
        "by the device at launch: 128 thread blocks on 132 SMs, 103 on 114 SMs, 74 on 78 SMs "
        "share 512 output tiles"
    )


@pytest.mark.parametrize("index", ["int32", "int64"])
def test_a_grid_of_symbolic_tiles_is_said_as_a_formula(index):
    sch = s_tir.Schedule(workloads.matmul("m", 1024, 256, index=index))
    hs.matmul(sch, "C", hs.MatmulConfig(tile=(128, 256, 64)))
    (kernel,) = tvm_hopper.explain(sch.mod, TARGET).kernels
    assert dict(kernel.rows())["persistent"] == (
        "by the device at launch: ceil(tiles / ceil(tiles / SMs)) thread blocks, "
        "tiles = ((m + 127) // 128) x 4"
    )


def test_each_size_class_is_a_section_that_says_for_which_rows_it_is():
    sch = s_tir.Schedule(workloads.matmul("m", 1024, 256, index="int64"))
    hs.matmul(sch, "C", classes=(64, 256, 4096))
    kernels = tvm_hopper.explain(sch.mod, TARGET).kernels
    rows = [dict(kernel.rows()) for kernel in kernels]
    assert [x["launched for"] for x in rows] == ["1 <= m <= 64", "65 <= m <= 256", "m >= 257"]
    for bound, kernel, text in zip((64, 256, 4096), kernels, rows, strict=True):
        best = text["chosen by estimate"].splitlines()[0]  # of as many rows
        time = f"{kernel.chosen_for.tenths / 10:.1f} us"
        assert best.endswith(f": {time}")
        assert text["chosen for"] == f"{bound} rows, {time} by estimate"
        assert kernel.chosen_for.rows == bound
        tile = hs.choose_config(bound, 1024, 256, out_dtype="float32").tile
        assert best.startswith("x".join(map(str, tile)))
    assert [kernel.persistent for kernel in kernels] == [None, None, hs.BY_DEVICE]
    plain = tvm_hopper.explain(sch.mod, TARGET).as_dict()["kernels"]
    assert plain[1]["launched_for"] == "65 <= m <= 256"


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(
    "options", [{}, {"layout": "NN", "out_dtype": "float16", "epilogue": ("bias_row", "relu")}]
)
def test_the_kernel_of_a_class_is_that_of_a_static_build_of_its_bound(options):
    bounds, (n, k) = (16, 1100, 4096), (4096, 512)
    sch = s_tir.Schedule(workloads.matmul("m", n, k, **options))
    hs.matmul(sch, "C", classes=bounds)
    kernels = tvm_hopper.explain(sch.mod, TARGET).kernels
    for bound, kernel in zip(bounds, kernels, strict=True):
        static = s_tir.Schedule(workloads.matmul(bound, n, k, **options))
        in_rows = hs.MatmulConfig(form="untransposed")  # of many rows classes have no other tiles
        hs.matmul(static, "C", in_rows if bound > MOST_ROWS_ACROSS else None)
        (own,) = tvm_hopper.explain(static.mod, TARGET).kernels
        alike = "rings", "roles", "wgmma_pending", "raster_group", "smem_bytes", "fallbacks"
        for field in alike:
            assert getattr(kernel, field) == getattr(own, field), (bound, field)
        assert kernel.product == replace(own.product, block=kernel.product.block)
        assert kernel.persistent == (own.persistent if bound != bounds[-1] else hs.BY_DEVICE)
        assert ("transposed" in kernel.product.choice.splitlines()[0]) == (bound == 16)


def test_the_first_of_the_best_is_what_a_class_has():
    sch = s_tir.Schedule(workloads.matmul("m", 6144, 4096, out_dtype="float16"))
    hs.matmul(sch, "C", classes=(300, 1000, 8192))
    for kernel in tvm_hopper.explain(sch, target="nvidia/nvidia-h200").kernels:
        first, *_ = dict(kernel.rows())["chosen by estimate"].splitlines()
        assert ("transposed" in first) == (kernel.chosen_for.rows == 300)


def test_one_kernel_of_symbolic_rows_says_what_it_was_chosen_for_alone():
    sch = s_tir.Schedule(workloads.matmul("m", 64, 64))
    hs.matmul(sch, "C", rows=1)
    (kernel,) = tvm_hopper.explain(sch.mod, TARGET).kernels
    rows = dict(kernel.rows())
    assert rows["chosen for"].startswith("1 row, ")
    assert "launched for" not in rows  # that there are rows at all goes without saying


def test_refuses_a_module_without_a_kernel_of_ours():
    mod = workloads.matmul(64, 64, 64)
    with pytest.raises(
        tvm_hopper.HopperError, match=r"explain: found no kernel of ours; need .*async_copy = .auto"
    ):
        tvm_hopper.explain(mod, tvm.target.Target({"kind": "llvm"}))


def test_refuses_an_executable_that_is_not_ours():
    built = tvm.compile(workloads.matmul(8, 8, 8), target="llvm")
    with pytest.raises(tvm_hopper.HopperError, match="found no CUDA module"):
        tvm_hopper.explain(built)
