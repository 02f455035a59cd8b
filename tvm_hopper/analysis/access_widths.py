"""Vector widths: bytes per access of each tensor of a final kernel."""

from __future__ import annotations

from typing import Any

from tvm import sym, tirx

from tvm_hopper import ir
from tvm_hopper.codegen_patches.ptx.alignment import access_bytes
from tvm_hopper.errors import cannot_lower
from tvm_hopper.facts.dtypes import DTYPES, dtype_bytes


def access_widths(kernel: tirx.PrimFunc) -> dict[int, int]:
    """Return the bytes of the widest access by parameter, in a kernel that TVM has split off.

    Only there is it known which accesses are vectors: TVM's passes simplify indices first, merge
    neighbours, and the CUDA code generator prints a load whose start it cannot divide element by
    element (`CodeGenC`, `BufferLoadNode`). Names that TVM binds are followed.
    """
    roots: dict[ir.Var, int] = {param: i for i, param in enumerate(kernel.params)}
    widths: dict[int, int] = {}
    analyzer = sym.Analyzer()

    def touch(buffer: Any, num_bytes: int) -> None:
        if buffer in roots:
            widths[roots[buffer]] = max(widths.get(roots[buffer], 1), num_bytes)

    def declare(node: tirx.DeclBuffer) -> None:
        pointer = ir.pointer_of(node.data)
        root = roots.get(node.data if pointer is None else pointer)
        if root is not None:
            roots[node.buffer] = root

    def load(node: ir.TensorLoad) -> None:
        if node.source in roots:
            touch(node.source, _width(node.source, node.indices[-1], analyzer))

    def store(node: ir.BufferStore) -> None:
        if node.buffer in roots:
            touch(node.buffer, _width(node.buffer, node.indices[-1], analyzer, True))

    def call(node: ir.Call) -> None:
        if (num_bytes := access_bytes(node)) > 1:
            for arg in node.args:
                touch(_pointee(arg), num_bytes)

    ir.visit(
        kernel.body,
        [
            (tirx.Bind, lambda x: analyzer.bind(x.var, x.value, allow_override=True)),
            (tirx.DeclBuffer, declare),
            (ir.TensorLoad, load),
            (ir.BufferStore, store),
            (ir.Call, call),
        ],
    )
    return widths


def _width(buffer: ir.Var, index: Any, analyzer: sym.Analyzer, is_store: bool = False) -> int:
    """Return the bytes of one access."""
    dtype, _, lanes = str(buffer.ty.dtype.dtype).partition("x")  # "float16x8": TVM merges elements
    count = int(lanes or 1)
    if "x" in ir.dtype_of(index):  # what is no ramp yet TVM may simplify to one
        index = analyzer.simplify(index)
    if isinstance(index, tirx.Ramp) and ir.is_const(index.stride, 1):
        length = int(index.lanes)
        if is_store or count > 1 or _divides(length, index.base, analyzer):
            count *= length
    if dtype in DTYPES:
        return count * dtype_bytes(dtype)
    if count == 1:
        return 1
    raise cannot_lower(
        f"tensor {buffer.name}",
        f"vectors of {dtype}",
        f"elements of whole bytes, one of {', '.join(DTYPES)}",
        "let a separate kernel unpack them, or pass the bytes",
    )


def _divides(length: int, expr: Any, analyzer: sym.Analyzer) -> bool:
    known = analyzer.modular_set(analyzer.simplify(expr))
    return int(known.coeff) % length == 0 and int(known.base) % length == 0


def _pointee(arg: Any) -> Any:
    """Return the buffer that an argument points into, None for anything else."""
    if isinstance(arg, ir.Call) and arg.op.name == "tirx.address_of":
        return arg.args[0].source if isinstance(arg.args[0], ir.TensorLoad) else None
    return ir.pointer_of(arg)
