"""Instructions that TVM's code generator makes of something else: its own `cp.async`.

    with attr("async_commit_queue_scope", 0):          if i < 12:
        s_tir.cp_async_raw("float32",                      cp.async.ca [&a[x]], [&A[y]], 4
            a.data, x, A.data, y, 4, i < 12)      ->   else:
                                                           a[x] = 0
                                                       cp.async.commit_group
    with attr("async_wait_queue_scope", 0,             cp.async.wait_group 5
              "async_wait_inflight_count", 5):         C[...] = a[...]
        C[...] = a[...]

The other modules know the instructions alone. TVM prints them of `s_tir.cp_async_raw` and of the
attributes that `InjectSoftwarePipeline` leaves (its `CodeGenCUDA`, and `s_tir_cp_async_raw` in
`tvm/backend/cuda/cpp/asm.py`): a copy under a predicate stores zeros where that does not hold.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import ir, tirx
from tvm.ir import StringImm

from tvm_hopper.sim.tir import CUDA, PTX

COMMIT, WAIT, PENDING = (
    "async_commit_queue_scope",
    "async_wait_queue_scope",
    "async_wait_inflight_count",
)
RAW_COPY = "tirx.s_tir.cp_async_raw"
DATA = "tirx.buffer_data"
THROUGH_L2 = 16  # bytes of a copy that passes by L1


def spell_out(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a device function with the instructions that its code will have.

    - `func`: as the code generator receives it.
    - returns: the same object where nothing is implied. A wait for a number of groups that is not
      constant stays as it is: TVM prints no code for it.
    """

    def attribute(attr: tirx.AttrStmt, mutator: Any) -> Any:
        key = str(attr.attr_key)
        if key == COMMIT:
            return _sequence(mutator.mutate(attr.body), _instruction("commit_group"))
        pending = attr.body
        if key == WAIT and _is_constant(pending):
            wait = _instruction("wait_group", pending.value)
            return _sequence(wait, mutator.mutate(pending.body))
        return mutator.default_mutate(attr)

    def evaluate(stmt: tirx.Evaluate, mutator: Any) -> Any:
        call = stmt.value
        if _name(call) == RAW_COPY and _name(call.args[0]) == _name(call.args[2]) == DATA:
            return _copy(call)
        return mutator.default_mutate(stmt)

    body = tvm_ffi.structural_mutate(
        func.body, [(tirx.AttrStmt, attribute), (tirx.Evaluate, evaluate)]
    )
    return func if body.same_as(func.body) else func.with_body(body)


def _is_constant(stmt: Any) -> bool:
    is_pending = isinstance(stmt, tirx.AttrStmt) and str(stmt.attr_key) == PENDING
    return is_pending and isinstance(stmt.value, tirx.IntImm)


def _name(call: Any) -> str:
    return str(getattr(call.op, "name", "")) if isinstance(call, ir.Call) else ""


def _sequence(*parts: Any) -> Any:
    flat = [x for part in parts for x in (part.seq if isinstance(part, tirx.SeqStmt) else [part])]
    return tirx.SeqStmt(flat) if len(flat) > 1 else flat[0]


def _instruction(name: str, *operands: Any) -> Any:
    words = [StringImm(x) for x in ("async", name, "")]
    op = ir.Op.get(f"{PTX}cp_async_{name}")
    return tirx.Evaluate(ir.Call(op, [*operands, *words], ret_ty="void"))


def _copy(call: Any) -> Any:
    """Return the copy, and under a predicate the zeros of its other case."""
    tile, tile_offset, tensor, tensor_offset, num_bytes = call.args[:5]
    size = int(num_bytes)
    to = tirx.BufferLoad(tile.args[0], [tile_offset])
    cvta = ir.Op.get(f"{CUDA}cvta_generic_to_shared")
    shared = ir.Call(cvta, [tirx.address_of(to)], ret_ty="uint32")
    source = tirx.address_of(tirx.BufferLoad(tensor.args[0], [tensor_offset]))
    through = "cg" if size == THROUGH_L2 else "ca"
    words = [StringImm(x) for x in ("async", through, "shared", "global", "", "", "")]
    op = ir.Op.get(f"{PTX}cp_async_{through}")
    copy = tirx.Evaluate(ir.Call(op, [shared, source, num_bytes, *words], ret_ty="void"))
    if len(call.args) < 6:
        return copy
    dtype = tvm_ffi.dtype(str(to.ty.dtype))
    zeros = [
        tirx.BufferStore(tile.args[0], tirx.const(0, str(dtype)), [tile_offset + n])
        for n in range(size * 8 // dtype.bits)
    ]
    return tirx.IfThenElse(call.args[5], copy, _sequence(*zeros))
