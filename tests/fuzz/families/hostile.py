"""Hostile arguments to every public call, and names that collide with names of ours.

What is neither served nor possible must be refused with one clear error, like anything else.
"""

import re
from dataclasses import replace

from ..case import Case, Step
from ..draw import Draw
from ..product import Product
from ..script import Script
from .matmul import matmul_step

ODD = ("None", '"2"', "2.5", "True", "np.int64(2)", "-1", "0", "2**31", "2**40", "[2]", "(2, 3)",
       '"C"', "float('nan')", "{}", "np.float32(2)", "np.array(2)", "3", "1")  # fmt: skip
NO_INT = ('"2"', "2.5", "-1", "[2]", "(2, 3)", '"C"', "float('nan')", "{}", "np.float32(2)")
NUMPY = "np.int64(64)"
ARGUMENTS = ("stages", "consumers", "registers", "swizzle", "raster_group", "persistent",
             "wgmma_pending", "last_stage", "accumulate", "tile")  # fmt: skip
CALLS = (
    "hs.matmul(sch, {odd})",
    "hs.matmul(sch, sch.get_loops('C')[0])",
    "hs.matmul(sch.mod, 'C')",
    "hs.matmul(sch, 'nothing')",
    "hs.matmul(sch, 'C', {odd})",
    "hs.matmul(sch, 'C', {'stages': 2})",
    "hs.pad(sch, 'C', {odd})",
    "hs.pad(sch, 'C', (64, 64, {odd}))",
    "hs.pad(sch, {odd}, (64, 64, 64))",
    "hs.fuse_prologue(sch, {odd})",
    "hs.fuse_epilogue(sch, 'C')",
    "hs.wgmma(sch, 'C')",
    "hs.wgmma(sch, {odd})",
    "hs.async_copy(sch, 'C')",
    "hs.async_copy(sch, {odd})",
    "hs.raster(sch, sch.get_loops('C')[0], group={odd})",
    "hs.raster(sch, {odd})",
    "hs.pipeline(sch, sch.get_loops('C')[2], stages={odd})",
    "hs.pipeline(sch, {odd}, stages=2)",
    "hs.choose_config({odd}, 64, 64)",
    "hs.choose_config(64, 64, 64, {odd})",
    "hs.Roles({odd})",
    "hs.Roles(2, {odd})",
    "hs.MatmulConfig(tile=(64, 64, {odd}))",
)
IN_PLACE = (  # a loop or a copy that the step could serve, and an odd value
    "x = sch.get_loops('C')[0]; sch.bind(x, 'blockIdx.x'); hs.raster(sch, x, group={odd})",
    "x = sch.get_loops('C')[0]; sch.bind(x, 'blockIdx.x'); hs.raster(sch, x, persistent={odd})",
    "{copy}; hs.pipeline(sch, k0, stages={odd})",
    "{copy}; hs.pipeline(sch, k0, last_stage={odd})",
    "{copy}; hs.pipeline(sch, k0, stages=2, roles={odd})",
    "{copy}; hs.pipeline(sch, k0, stages=2, wgmma_pending={odd})",
    "c = sch.cache_read('C', 0, 'shared.dyn'); hs.async_copy(sch, c, swizzle={odd})",
    "c = sch.cache_read('C', 0, 'shared.dyn'); hs.async_copy(sch, c, mechanism={odd})",
)
COPY = (
    "c = sch.cache_read('C', 0, 'shared.dyn'); k0, _ = sch.split(sch.get_loops('C')[2], [None, 64])"
    "; sch.compute_at(c, k0); hs.async_copy(sch, c)"
)
INPUTS = "{'A': np.ones((64, 64), 'float16'), 'B': np.ones((64, 64), 'float16')}"
# call, and why it cannot be served; "" where it may be
AFTER = (
    ("tvm_hopper.verify(ex, runs=())", "no schedule runs"),
    (f"tvm_hopper.simulate(ex, {INPUTS}, blocks=[])", "no thread block runs"),
    (f"tvm_hopper.simulate(ex, {INPUTS}, policy='starve:foo')", "there is no such role"),
    ("tvm_hopper.simulate(ex, " + INPUTS + ", policy={odd})", "there is no such policy"),
    ("tvm_hopper.simulate(ex, " + INPUTS + ", blocks={odd})", ""),
    ("tvm_hopper.simulate(ex, [np.ones((64, 64), 'float16')] * 2)", ""),
    ("tvm_hopper.simulate(ex, {odd})", ""),
    (
        "tvm_hopper.simulate(ex, {'A': tvm.runtime.tensor(np.ones((64, 64), 'float16')), "
        "'B': np.ones((64, 64), 'float16')})",
        "",
    ),
    ("tvm_hopper.simulate(ex, {'Z': np.ones(3)})", "there is no argument Z"),
    ("tvm_hopper.simulate({odd}, {})", "it is no module"),
    ("tvm_hopper.verify({odd})", "it is no module"),
    ("tvm_hopper.explain({odd})", "it is no module"),
    ("tvm_hopper.cubin({odd})", "it is no executable"),
    ("tvm_hopper.verify(ex, max_ctas={odd})", ""),
    ("tvm_hopper.verify(ex, blocks={odd})", ""),
)
NAMES = (
    "A_pad", "C_local", "A_shared", "A_shared_dyn", "full", "empty", "buf_dyn_shmem", "smem",
    "stage", "parity", "main_kernel", "float", "half", "int", "register", "asm", "blockIdx",
    "threadIdx", "blockIdx_x", "threadIdx_x", "root", "C_update", "C_init", "C_update_o",
    "accumulator", "uint",
    "A_map", "B_map", "lane", "desc", "nan", "inf", "default", "new", "template", "bfloat16", "tma",
)  # fmt: skip


def _why_no_int(odd: str) -> str:
    return f"{odd} is no size" if odd in NO_INT else ""


def make(draw: Draw) -> Case:
    """Make one case."""
    script = Script()
    p = Product(script, 64, 64, 64)
    for tensor, dtype in (("A", "float16"), ("B", "float16"), ("C", "float32")):
        script.tensor(tensor, p.shape[tensor], dtype)
    p.write()
    program = script.program()
    tile = {"tile": (64, 64, 64), "stages": 1, "consumers": 1}
    kind = draw.choose(("call", "config", "in place", "after", "name"), (30, 25, 15, 20, 10))
    odd = draw.choose(ODD)
    if kind == "call":
        text = draw.choose(CALLS)
        why = _why_no_int(odd) if "choose_config" in text else ""
        return Case(program, (Step(text.replace("{odd}", odd), {}, why),), build="", kernels=0)
    if kind == "in place":
        text = draw.choose(IN_PLACE).replace("{copy}", COPY).replace("{odd}", odd)
        *first, last = [part.strip() for part in text.split(";")]
        is_by_device = "persistent=-1" in last  # hs.BY_DEVICE
        steps = [*map(Step, first), Step(last, {}, "" if is_by_device else _why_no_int(odd))]
        return Case(program, tuple(steps), build="", kernels=0)
    if kind == "config":
        given = {**{k: repr(v) for k, v in tile.items()}, draw.choose(ARGUMENTS): odd}
        if draw.chance(40):
            given["tile"] = f"(64, 64, {draw.choose((NUMPY, odd))})"
        if "last_stage" in given:
            del given["stages"]
        text = ", ".join(f"{k}={v}" for k, v in given.items())
        return Case(program, (Step(f'hs.matmul(sch, "C", hs.MatmulConfig({text}))'),))
    if kind == "after":
        text, why = draw.choose(AFTER)
        text = text.replace("{odd}", odd)
        return Case(program, (matmul_step("C", tile),), after=(Step(text, must_refuse=why),))
    name, other = draw.choose(NAMES), draw.choose("ABC")
    renamed = re.sub(rf"\b{other}(?=[\[_ ]|_handle)", name, program.text)
    if other == "C" and draw.chance(50):
        renamed = renamed.replace('T.sblock("C")', f'T.sblock("{name}")')
        return Case(replace(program, text=renamed), (matmul_step(name, tile),), cubin=True)
    return Case(replace(program, text=renamed), (matmul_step("C", tile),), cubin=True)
