"""Small kernels with their plain programs, and changes of their final device functions."""

from collections.abc import Callable
from typing import Any

import tvm
import tvm_ffi
from tvm import ir as tvm_ir, s_tir, tirx

from tests.sim_kernels.mutate import change
from tvm_hopper import ir, schedule as hs
from tvm_hopper.simulation import Program, load, verify
from tvm_hopper.testing import pointwise, tensor_cores, workloads

LOAD = "cp_async_bulk_tensor_g2s_cluster"
ONE_RUN = (("on_wait", 0),)
TILE = hs.MatmulConfig((128, 64, 64), stages=2, consumers=1)


def matmul(**more: Any) -> tuple[tvm.IRModule, Program]:
    """Return a product of four tiles, three steps each, and its kernel."""
    mod = workloads.matmul(256, 128, 192, **more)
    sch = s_tir.Schedule(mod)
    hs.matmul(sch, "C", TILE)
    return mod, load(sch.mod)


def mma() -> tuple[tvm.IRModule, Program]:
    """Return a product by mma.sync, and its kernel."""
    mod = tensor_cores.matmul(64, 32, 80)
    tiling = tensor_cores.WarpTiling(stages=3, tile=(32, 32, 16), warps=(2, 2))
    return mod, load(tensor_cores.schedule(mod, tiling).mod)


def elementwise() -> tuple[tvm.IRModule, Program]:
    """Return exp(A) + B, and its kernel."""
    mod = pointwise.exp_add(64, 256)
    tiling = pointwise.Tiling(tile=(8, 128), steps=4, threads=128, stages=2)
    return mod, load(pointwise.schedule(mod, tiling).mod)


def judge(program: Any, plain: Any, **more: Any) -> Any:
    """Verify under one schedule."""
    return verify(program, runs=ONE_RUN, against=plain, **more)


def wrong(program: Any, plain: Any, **more: Any) -> list[Any]:
    """Return what is wrong with the values of a program."""
    report = judge(program, plain, **more)
    return [one for one in report.findings if one.rule == "WRONG_VALUE"]


# -- changes --------------------------------------------------------------------------------------


def with_nodes(program: Program, kind: type, new: Callable[[Any], Any]) -> Program:
    """Replace nodes of the one kernel: `new` returns another node, or the same."""
    ((name, func),) = program.kernels.items()
    body = tvm_ffi.structural_map(func.body, [(kind, new)], order="pre")
    return Program(program.host, {name: func.with_body(body)})


def with_load_coordinate(
    program: Program, which: int, operand: int, new: Callable[[Any], Any]
) -> Program:
    """Change one coordinate of one TMA load; the coordinates follow the tensor map."""

    def apply(call: tvm_ir.Call) -> tvm_ir.Call:
        args = list(call.args)
        args[2 + operand] = new(args[2 + operand])
        return tvm_ir.Call(call.op, args, ret_ty=call.ty, attrs=call.attrs)

    return change(program, LOAD, which, apply)


def global_stores(program: Program) -> list[Any]:
    """Return the stores to tensors."""
    (func,) = program.kernels.values()
    return ir.find_all(func.body, tirx.BufferStore, lambda s: s.buffer.scope() in ("", "global"))


def with_store(program: Program, new: Callable[[Any], Any]) -> Program:
    """Change the first store to a tensor."""
    first = global_stores(program)[0]
    return with_nodes(program, tirx.BufferStore, lambda s: new(s) if s.same_as(first) else s)


def shifted(store: Any, by: Any) -> Any:
    """Move a store by some elements."""
    (index,) = store.indices
    if isinstance(index, tirx.Ramp):
        index = tirx.Ramp(index.base + by, index.stride, index.lanes)
    else:
        index = index + by
    return tirx.BufferStore(store.buffer, store.value, [index])
