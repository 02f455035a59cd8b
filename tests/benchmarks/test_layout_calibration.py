"""What of the layout calibration needs no GPU: its kernels compile, the simulator runs the same."""

import functools
import json
import subprocess
import sys

import numpy as np
import pytest
from tvm.script import tirx as T

from benchmarks.calibration import apart
from benchmarks.calibration.layouts import __main__ as calibration, copies, probes, products, report
from benchmarks.calibration.layouts.descriptors import CANONICAL, SPANS, trials, word_of
from benchmarks.calibration.layouts.instruction import IMAGE_BYTES, INTEGERS, STORED, TRANSPOSED
from tests.sim.kernels import lower
from tvm_hopper.sim.layouts.matrix_descriptor import MatrixDescriptor
from tvm_hopper.simulation import simulate

WORDS = IMAGE_BYTES // 4


@functools.cache
def kernel(instruction, blocks, images, fragments):
    """Build the CUDA kernel of `instruction.py` once more, as TIR."""
    count = instruction.registers
    kind = "float32" if instruction.sum_type == "f32" else "uint32"
    flags = [] if instruction.a_type in INTEGERS else [1, 1]
    start = instruction.start
    if instruction.a_type in TRANSPOSED:
        flags += [] if instruction.from_registers else [int(instruction.a_mn)]
        flags.append(int(instruction.b_mn))

    @T.prim_func(s_tir=True)
    def main(
        X: T.Buffer((images * WORDS,), "uint32"),
        numbers: T.Buffer((2 * blocks,), "int32"),
        descriptors: T.Buffer((2 * blocks,), "uint64"),
        F: T.Buffer((fragments * 512,), "uint32"),
        C: T.Buffer((blocks * 128 * count,), kind),
    ):
        T.func_attr({"global_symbol": "main"})
        bx = T.launch_thread("blockIdx.x", blocks)
        tx = T.launch_thread("threadIdx.x", 128)
        with T.attr(T.int32(0), "hand_threaded", 1):
            smem = T.alloc_buffer((IMAGE_BYTES,), "uint8", scope="shared.dyn", align=1024)
            tile = T.decl_buffer((WORDS,), "uint32", data=smem.data, scope="shared.dyn")
            d = T.alloc_buffer((count,), kind, scope="local")
            a = T.alloc_buffer((4,), "uint32", scope="local")
            for i in T.serial(WORDS // 128):
                tile[i * 128 + tx] = X[numbers[2 * bx] * WORDS + i * 128 + tx]
            for i in T.serial(4):
                a[i] = F[(numbers[2 * bx + 1] * 128 + tx) * 4 + i]
            for i in T.serial(count):
                d[i] = T.Cast(kind, start)
            T.ptx.fence.proxy.async_.shared__cta()
            T.tvm_storage_sync("shared")
            base = T.meta_var(
                T.Cast("uint64", T.cuda.cvta_generic_to_shared(T.address_of(tile[0])))
                >> T.uint64(4)
            )
            T.ptx.wgmma.fence.sync.aligned()
            if instruction.from_registers:
                T.ptx[instruction.ptx](
                    *[d[i] for i in range(count)],
                    *[a[i] for i in range(4)],
                    descriptors[2 * bx + 1] + base,
                    T.bool(True),
                    *flags,
                )
            else:
                T.ptx[instruction.ptx](
                    *[d[i] for i in range(count)],
                    descriptors[2 * bx] + base,
                    descriptors[2 * bx + 1] + base,
                    T.bool(True),
                    *flags,
                )
            T.ptx.wgmma.commit_group.sync.aligned()
            T.ptx.wgmma.wait_group.sync.aligned(0)
            for i in T.serial(count):
                C[(bx * 128 + tx) * count + i] = d[i]

    return lower(main)


def on_simulator(instruction, images, blocks, fragments):
    """Run what `device.WgmmaOnGpu` runs."""
    program = kernel(instruction, len(blocks), len(images), len(fragments))
    values = {
        "X": images.view(np.uint32).ravel(),
        "numbers": np.stack([blocks["image"], blocks["fragment"]], 1).ravel(),
        "descriptors": np.stack([blocks["a"], blocks["b"]], 1).ravel(),
        "F": fragments.ravel(),
    }
    result = simulate(program, values).require_clean()
    return result.outputs["C"].view(np.uint32).reshape(len(blocks), 128, instruction.registers)


LAYOUTS = [
    (dtype, operand, major)
    for dtype in calibration.PROBED
    for operand in probes.ROWS
    for major in (("k", "mn") if dtype in TRANSPOSED else ("k",))
]


@pytest.mark.sampled(every=6)
@pytest.mark.parametrize(("dtype", "operand", "major"), LAYOUTS)
def test_a_probe_finds_the_addresses_that_the_simulator_reads(dtype, operand, major):
    """The digits, put together, are a map from elements to addresses; it is not assumed."""
    span = SPANS[(len(dtype) + len(operand + major)) % 4]
    chosen = [trials(major, span)[i].descriptor for i in (0, 3)]
    read = probes.addresses_read(on_simulator, dtype, operand, major, chosen)
    size = STORED[dtype].itemsize
    for descriptor, found in zip(chosen, read, strict=True):
        want = descriptor.addresses(major, probes.ROWS[operand], 32 // size, size)
        assert np.array_equal(found, want)


def test_a_probe_sees_a_layout_that_is_not_the_decoder_s():
    one, other = (t.descriptor for t in trials("k", 128)[:2])

    def moved(instruction, images, blocks, fragments):
        blocks = blocks.copy()
        blocks["a"] = np.where(blocks["a"] == word_of(one), word_of(other), blocks["a"])
        return on_simulator(instruction, images, blocks, fragments)

    (read,) = probes.addresses_read(moved, "f16", "A", "k", [one])
    trial = trials("k", 128)[0]
    assert probes.judge(read, trial, 64, 2) == probes.OTHER
    assert np.array_equal(read, other.addresses("k", 64, 16, 2))


def test_base_offsets_are_told_apart():
    (trial,) = [
        t
        for t in trials("k", 128)
        if t.descriptor == MatrixDescriptor(1024, 16, 1024, 3, 128)
    ]  # fmt: skip
    read = trial.descriptor.addresses("k", 64, 16, 2)
    assert probes.judge(read, trial, 64, 2) == probes.AS_DECODED
    read = MatrixDescriptor(1024, 16, 1024, 0, 128).addresses("k", 64, 16, 2)
    assert probes.judge(read, trial, 64, 2) == probes.WITHOUT_OFFSET
    assert probes.judge(read + 2, trial, 64, 2) == probes.OTHER


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("dtype", STORED)
def test_products_are_exact_in_the_simulator(dtype):
    step = 4 if dtype in TRANSPOSED else 3 if dtype in ("s8", "u8") else 2
    for instruction in products.instructions(dtype)[::step]:
        images, blocks, fragments, want = products.prepare(instruction, seed=1)
        some = slice(0, None, 7)  # images are of their own, fragments too
        words = on_simulator(instruction, images, blocks[some], fragments)
        assert np.array_equal(products.from_accumulators(words, instruction), want[some])


@pytest.mark.parametrize("major", ["k", "mn"])
@pytest.mark.parametrize("span", SPANS)
def test_what_is_tried_fits_into_the_image(major, span):
    for size in (2,) if major == "mn" else (1, 2, 4):
        for trial in trials(major, span):
            read = trial.descriptor.addresses(major, 128, 32 // size, size)
            assert read.min() >= 0
            assert read.max() < probes.IDENTITY_AT
    assert len([t for t in trials(major, span) if t.kind == CANONICAL]) >= 9


def test_kernels_compile():
    device = pytest.importorskip("benchmarks.calibration.layouts.device")
    text = device.text_of([products.instructions(t)[0] for t in STORED])
    assert device.compile_text(text)[:4] == b"\x7fELF"
    text = device.text_of([x for t in INTEGERS for x in products.instructions(t)])
    assert device.compile_text(text)[:4] == b"\x7fELF"
    assert device.compile_text(copies.SOURCE)[:4] == b"\x7fELF"
    with pytest.raises(RuntimeError, match="error"):
        device.compile_text("nonsense")


def test_a_box_is_expected_where_the_drawing_puts_it():
    """Second line of a 128 B swizzle: the second piece first. Outside of the tensor: zeros."""
    tensor = np.arange(copies.WIDTH_BYTES * copies.ROWS * copies.PLANES).astype(np.uint8)
    image = np.full(copies.IMAGE_BYTES, copies.UNTOUCHED, np.uint8)
    copy = copies.Copy("float16", 128, 128, 2, 256, (8, 14))
    got = copies.expected(copy, tensor, image, load=True)
    line = 3  # the second row of the box lies on line 3 of the repetition
    source = 15 * copies.WIDTH_BYTES + 16
    for piece in range(8):
        at = 256 + 128 + (piece ^ line) * 16
        assert np.array_equal(got[at : at + 16], tensor[source + piece * 16 :][:16])
    assert not got[256 + 10 * 128 : 256 + 16 * 128].any()  # six rows are below the last
    assert (got[:256] == copies.UNTOUCHED).all()
    stored = copies.expected(copy, np.zeros_like(tensor), got, load=False)
    rows = stored.reshape(-1, copies.WIDTH_BYTES)[14:24, 16:144]
    assert np.array_equal(rows, tensor.reshape(-1, copies.WIDTH_BYTES)[14:24, 16:144])


def test_every_copy_is_compared():
    def as_told(copy, load, tensor, image):
        return copies.expected(copy, tensor, image, load)

    rows = copies.copy_all(as_told, load=True)
    assert all(report.is_right(row) for row in rows)
    assert sum(row["tried"] for row in rows) == len(copies.boxes())
    wrong = copies.copy_all(lambda *all_: as_told(*all_) + 1, load=False)
    assert not any(report.is_right(row) for row in wrong)


def test_the_table_has_all_parts():
    layout = {"part": "canonical layouts", "kind": CANONICAL, "type": "f16", "operand": "A",
              "major": "k", "span": 32, "tried": 9, "as decoded": 8, "otherwise": 1}  # fmt: skip
    offset = layout | {"part": "open", "kind": "base", probes.WITHOUT_OFFSET: 0}
    product = {"part": "products", "kind": "m64", "a": "k", "b": "mn", "tried": 16, "exact": 16}
    copy = {"part": "TMA loads", "kind": "box", "type": "uint8", "span": 0, "inner": 16,
            "tried": 24, "as decoded": 24}  # fmt: skip
    failed = {"part": "failed", "kind": "u8", "end": "killed"}
    rows = [layout, offset, product, copy, failed]
    lines = report.table(rows, {"chip": "X"}).splitlines()
    assert "| f16 | A | k |  | 8 of 9 |  |  |" in lines
    assert "| base | k | 32 | 8 of 9 | 0 of 9 | 1 of 9 |" in lines
    assert "| m64 | k | mn | 16 of 16 |" in lines
    assert "| TMA loads | uint8 | 16 | 24 of 24 |  |  |  |" in lines
    assert "| u8 | killed |" in lines
    assert [report.is_right(row) for row in rows] == [False, True, True, True, False]


@pytest.mark.parametrize(
    ("script", "end"),
    [
        ("import time; time.sleep(60)", "killed after 1 s"),
        ("raise SystemExit('CUDA answers 700')", "exit code 1: CUDA answers 700"),
        ("import os; os._exit(9)", "exit code 9: no message"),
    ],
)
def test_however_a_part_ends_there_is_a_row(script, end, monkeypatch):
    run = subprocess.run
    change = lambda command, **kw: run([sys.executable, "-c", script], **kw)  # noqa: E731
    monkeypatch.setattr(apart.subprocess, "run", change)
    (row,) = calibration.measure_apart("f16", limit=1.0)
    assert row == {"part": "failed", "kind": "f16", "end": end}


def test_a_run_writes_its_table_and_says_whether_all_is_right(monkeypatch, tmp_path):
    product = {"part": "products", "kind": "m64", "a": "k", "b": "k", "tried": 1, "exact": 1}
    rows = [{"machine": {"chip": "X"}}, product]
    monkeypatch.setattr(calibration, "measure_apart", lambda part: rows)
    assert calibration.main(["--parts", "f16", "--output", str(tmp_path)]) == 0
    (path,) = tmp_path.glob("layouts_*.md")
    assert "- chip: X" in path.read_text()
    kept = json.loads(path.with_suffix(".json").read_text())
    assert kept["rows"] == [product]
    assert kept["machine"]["command"].endswith("calibration.layouts --parts f16")
    product["exact"] = 0
    assert calibration.main(["--parts", "f16", "--output", str(tmp_path)]) == 1


def test_an_unknown_part_is_refused(capsys):
    with pytest.raises(SystemExit):
        calibration.main(["--parts", "f16,f17"])
    assert "found f17; need some of f16, bf16" in capsys.readouterr().err
