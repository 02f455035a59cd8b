"""Which reductions there are: the table, and what ptxas says of each combination."""

import itertools
import shutil
import subprocess

import pytest

from tvm_hopper.facts.dtypes import DTYPES
from tvm_hopper.facts.reductions import (
    LEGAL,
    OPERATIONS,
    bulk_suffix,
    depends_on_order,
    is_legal,
    map_dtype,
)

KERNEL = """.version 8.7
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 pg) {{
.reg .b64 g; .reg .b32 s, n;
ld.param.u64 g, [pg]; mov.u32 s, 0; mov.u32 n, 64;
{text}
ret; }}
"""
BULK = "cp.reduce.async.bulk.global.shared::cta.bulk_group.{suffix} [g], [s], n;"
TENSOR = "cp.reduce.async.bulk.tensor.1d.global.shared::cta.{op}.tile.bulk_group [g, {{n}}], [s];"
NAMES = ("f16", "bf16", "f32", "f64", "s32", "u32", "s64", "u64", "b32", "b64")


def assembles(texts, tmp_path):
    """Tell of each instruction whether ptxas takes it: it names the lines of the others."""
    source = tmp_path / "k.ptx"
    source.write_text(KERNEL.format(text="\n".join(texts)))
    first = KERNEL.split("{text}")[0].count("\n") + 1
    done = subprocess.run(
        ["ptxas", "-arch=sm_90a", "-o", "/dev/null", str(source)],
        capture_output=True,
        text=True,
        check=False,
    )
    return [f"line {first + n};" not in done.stderr for n in range(len(texts))]


@pytest.mark.skipif(shutil.which("ptxas") is None, reason="no ptxas")
def test_ptxas_takes_what_the_table_says_and_nothing_else(tmp_path):
    forms = [
        (operation, f"{operation}{ftz}.{name}")
        for operation, ftz, name in itertools.product(OPERATIONS, ("", ".noftz"), NAMES)
    ]
    taken = assembles([BULK.format(suffix=suffix) for _, suffix in forms], tmp_path)
    accepted = {suffix for (_, suffix), takes in zip(forms, taken, strict=True) if takes}
    ours = {
        bulk_suffix(operation, dtype)
        for operation in OPERATIONS
        for dtype in LEGAL["bulk"][operation]
    }
    assert ours == accepted


@pytest.mark.skipif(shutil.which("ptxas") is None, reason="no ptxas")
def test_ptxas_takes_every_operation_on_boxes(tmp_path):
    texts = [TENSOR.format(op=operation) for operation in (*OPERATIONS, "mul")]
    assert assembles(texts, tmp_path) == [True] * len(OPERATIONS) + [False]


def test_boxes_have_types_of_tensor_maps():
    for operation, dtypes in LEGAL["tma"].items():
        for dtype in dtypes:
            assert DTYPES[map_dtype(operation, dtype)].tensor_map_code is not None


@pytest.mark.parametrize(
    ("operation", "dtype", "bulk", "tma"),
    [
        ("add", "float32", True, True),
        ("min", "float32", False, False),
        ("add", "float64", True, False),
        ("max", "bfloat16", True, True),
        ("xor", "uint64", True, True),
        ("or", "float16", False, False),
        ("add", "int8", False, False),
    ],
)
def test_some_of_the_table(operation, dtype, bulk, tma):
    assert is_legal("bulk", operation, dtype) == bulk
    assert is_legal("tma", operation, dtype) == tma


@pytest.mark.parametrize(
    ("operation", "dtype", "suffix"),
    [
        ("add", "float16", "add.noftz.f16"),
        ("max", "float16", "max.f16"),
        ("add", "int64", "add.u64"),
        ("min", "int64", "min.s64"),
        ("and", "int32", "and.b32"),
    ],
)
def test_names(operation, dtype, suffix):
    assert bulk_suffix(operation, dtype) == suffix


def test_sums_of_int64_are_those_of_uint64():
    assert map_dtype("add", "int64") == "uint64"
    assert map_dtype("min", "int64") == "int64"
    assert map_dtype("add", "float32") == "float32"


def test_what_depends_on_the_order():
    assert depends_on_order("add", "float32")
    assert not depends_on_order("add", "int32")
    assert not depends_on_order("max", "float16")
