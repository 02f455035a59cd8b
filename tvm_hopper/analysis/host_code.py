"""Find accesses of tensors outside of kernels, which run on the host.

for i, j in grid(64, 64): S[i] = S[i] + X[i, j]               a load of X, by the host
for bx in thread_binding(64, "blockIdx.x"): ...               a kernel: not looked at
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tvm_hopper import ir

ADDRESSES = ("tirx.address_of", "tirx.tvm_access_ptr")  # take an element's place, and read nothing


def host_code(func: tirx.PrimFunc) -> ir.Stmt:
    """Return the body of a function without its kernels, in loops or in attributes, and dead loops.

    A loop or a block over no elements is dead.
    """
    body = ir.map_kernels(func, lambda _: ir.seq()).body
    threads = {x: ir.seq() for x in ir.outermost_thread_extents(body)}
    body = ir.replace_nodes(body, tirx.AttrStmt, threads)
    dead = ir.find_all(body, ir.For, lambda x: ir.is_const(x.extent, 0))
    body = ir.replace_nodes(body, ir.For, {x: ir.seq() for x in dead})
    empty = ir.find_all(
        body,
        ir.SBlockRealize,
        lambda x: any(ir.is_const(v.dom.extent, 0) for v in x.block.iter_vars),
    )
    return ir.replace_nodes(body, ir.SBlockRealize, {x: ir.seq() for x in empty})


def touched_elements(host: ir.Stmt) -> list[tuple[Any, str]]:
    """Return stores and loads of tensors in memory, each with a text; addresses are no loads."""
    named = [
        load
        for call in ir.find_all(host, ir.Call, lambda x: getattr(x.op, "name", "") in ADDRESSES)
        for load in ir.find_all(list(call.args), ir.TensorLoad)
    ]
    touched: list[tuple[Any, str]] = [
        (store, f"a store into {store.buffer.name}")
        for store in ir.find_all(host, ir.BufferStore)
        if store.buffer.scope() in ("", "global")
    ]
    for load in ir.find_all(host, ir.TensorLoad):
        in_memory = load.source.scope() in ("", "global")
        if in_memory and not any(load.same_as(x) for x in named):
            touched.append((load, f"a load of {load.source.name}"))
    return touched


def place_of(host: ir.Stmt, node: Any) -> str:
    """Name the innermost block around a node."""
    around = ir.find_all(host, ir.SBlock, lambda block: ir.uses_node(block, node))
    names = [block.name_hint for block in around if block.name_hint not in ("", "root")]
    return f"block {names[-1]}" if names else "host code"
