"""Waits for groups in machine code: those that were placed, one each, and none of the assembler's.

`WARPGROUP.DEPBAR` waits for products, `DEPBAR` for copies and stores by group; `LDGDEPBAR` commits.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import tvm

import tvm_hopper
from tests.transforms.scripts import parse, run
from tests.transforms.sync import test_three_cases as three
from tvm_hopper import pipeline, schedule as hs
from tvm_hopper.cuda_build import assembler_log, compilers
from tvm_hopper.testing import copies, step_products, workloads
from tvm_hopper.testing.copies import Route
from tvm_hopper.testing.step_products import ProductTiling
from tvm_hopper.transforms import InsertSyncs

pytestmark = pytest.mark.slow

H200 = "nvidia/nvidia-h200"


def disassemble(cubin: bytes, tmp_path: Path) -> str:
    path = tmp_path / "kernel.cubin"
    path.write_bytes(cubin)
    tool = shutil.which("nvdisasm") or str(
        Path(compilers.header_folders()[0]).parent / "bin" / "nvdisasm"
    )
    return subprocess.run(
        [tool, "-c", str(path)], capture_output=True, text=True, check=True
    ).stdout


def waits(sass: str) -> list[str]:
    """Return the waits for groups in machine code, in its order."""
    found = re.findall(r"\s((?:WARPGROUP\.)?DEPBAR\S* [^;]*)", sass)
    return [" ".join(x.replace(".LE", "").replace(",", "").split()) for x in found]


def check(sch, tmp_path: Path, expected: list[str], unrolled: bool = False) -> None:
    """Compare what was placed, and the machine code; of loops that are `unrolled` which waits."""
    ex = tvm.compile(sch.mod, target=H200)
    placed = str(pipeline.lower_final(sch.mod, H200).device).count('"wait_group"')
    assert placed == len(expected)
    found = waits(disassemble(tvm_hopper.cubin(ex), tmp_path))
    assert set(found) == set(expected)
    assert unrolled or sorted(found) == sorted(expected)


PRODUCTS, COPIES = "WARPGROUP.DEPBAR gsb0", "DEPBAR SB0"


@pytest.mark.parametrize(
    ("pending", "expected"),
    [(0, [f"{PRODUCTS} 0x0"]), (1, [f"{PRODUCTS} 0x1", f"{PRODUCTS} 0x0"])],
)
def test_a_product(pending, expected, tmp_path):
    sch = tvm.s_tir.Schedule(workloads.matmul(512, 512, 512))
    config = hs.MatmulConfig(tile=(128, 128, 64), stages=3, wgmma_pending=pending)
    hs.matmul(sch, "C", config=config)
    check(sch, tmp_path, expected)


@pytest.mark.parametrize(
    ("route", "expected"),
    [
        # in front of the slot's next load, one store in flight, and at the end
        (Route(store="tma", stages=3), [f"{COPIES} 0x1", f"{COPIES} 0x0"]),
        (Route(store="tma", stages=None), [f"{COPIES} 0x0"] * 2),
        (Route(load="cp_async", store=None, stages=3), [f"{COPIES} 0x1", f"{COPIES} 0x0"]),
        (Route(load="cp_async", store="tma", stages=3), [f"{COPIES} 0x1", *[f"{COPIES} 0x0"] * 3]),
    ],
    ids=["stores", "stores of one slot", "copies", "both"],
)
def test_copies_and_stores(route, expected, tmp_path):
    by_threads = route.load == "cp_async"  # the CUDA compiler writes such turns out
    check(copies.schedule(copies.copy(512, 512), route), tmp_path, expected, by_threads)


@pytest.mark.parametrize("pending", [0, 1])
def test_products_stores_and_copies_of_both_kinds(pending, tmp_path):
    """Of copies by the producer's threads nobody waits for a group."""
    tiling = ProductTiling((64, 64, 64), stages=3, wgmma_pending=pending, store="tma")
    sch = step_products.schedule(
        workloads.matmul(512, 512, 512, "NT", "float16", "float16"), tiling
    )
    groups = [f"{PRODUCTS} 0x{n}" for n in range(pending, -1, -1)]
    check(sch, tmp_path, [*groups, f"{COPIES} 0x0"])


# The three cases of products, which no schedule makes: a kernel has one.


def product(acc: str, descriptor: int) -> str:
    """Return a product by the real instruction, of an operand that nobody looks at."""
    registers = ", ".join(f"{acc}[{i}]" for i in range(4))
    name = "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16"
    return three.OPERATION.format(
        op="wgmma",
        reads=f"a[0:128], {acc}[0:4]",
        writes=f"{acc}[0:4]",
        notes="",
        body=f'T.ptx["{name}"]({registers}, T.uint64({descriptor}), T.uint64(2), True, 1, 1, 0, 0)',
    )


def consumer(acc: str, tensor: str) -> str:
    total = " + ".join(f"{acc}[{i}]" for i in range(4))
    body = f"{tensor}[tx] = {total}"
    return three.PLAIN.format(name="use", reads="", writes="", body=body)


ZERO = "\nfor z in range(4):\n    acc[z] = T.float32(0)\n    acc2[z] = T.float32(0)\n"
FIRST, SECOND = product("acc", 1), product("acc2", 5)
BOTH = [consumer("acc", "C"), consumer("acc2", "D")]
CASES = {
    "own consumers": ([three.loop(FIRST), three.loop(SECOND), *BOTH], ["0x1", "0x0"]),
    "one loop": ([three.loop(FIRST, SECOND), *BOTH], ["0x0"]),
    "chained": (
        [three.loop(FIRST), three.relu(), consumer("acc2", "C"), consumer("acc", "D")],
        ["0x0"],
    ),
}


@pytest.mark.parametrize("rolled", [True, False], ids=["rolled", "unrolled"])
@pytest.mark.parametrize("name", CASES)
def test_the_three_cases(name, rolled, tmp_path):
    parts, expected = CASES[name]
    body = three.indent("".join([ZERO, *parts]), 12)
    if rolled:
        body = body.replace("T.serial(4)", 'T.serial(4, annotations={"disable_unroll": True})')
    head = three.HEAD.format(mark="").replace('T.sblock_attr({"tvm_hopper.kernel": 1})', "")
    func = run(parse(head + body), InsertSyncs()).with_attr("global_symbol", "main")
    ex = tvm.compile(tvm.IRModule({"main": func}), target={"kind": "cuda", "arch": "sm_90a"})
    result = compilers.compile_source(ex.mod.imports[0].inspect_source())
    assert not assembler_log.remarks(result.log)
    sass = disassemble(result.cubin, tmp_path)
    assert waits(sass) == [f"{PRODUCTS} {x}" for x in expected]
