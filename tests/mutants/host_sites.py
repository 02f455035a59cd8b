"""Changes of the host function: the numbers of tensor maps, and of the launch.

TVM passes them to the runtime in a row of cells: `tvm_struct_set(stack, i, 15, value)` fills cell
i, and a call of the packed function takes them all.
"""

from collections.abc import Callable
from typing import Any

import tvm_ffi
from tvm import ir, tirx

from tvm_hopper.sim.tir import short_name

from .sites import Site

ENCODE = "runtime.cuTensorMapEncodeTiled"
VALUE_CELL = 15  # TVM: kTVMFFIAnyUnionValue
SET, CALL = "tvm_struct_set", "tvm_call_packed_lowered"


def _cell(node: Any) -> int | None:
    """Return which cell a statement fills with a number, None for every other statement."""
    call = node.value
    if not (isinstance(call, ir.Call) and short_name(call) == SET):
        return None
    if int(call.args[2]) != VALUE_CELL or "int" not in str(call.args[3].ty):
        return None
    return int(call.args[1])


def _names(rank: int) -> dict[int, str]:
    """Return what the cells of a tensor map of some rank are."""
    names = [f"dimension {i}" for i in range(rank)]
    names += [f"stride {i}" for i in range(1, rank)]
    names += [f"box {i}" for i in range(rank)]
    names += [f"element stride {i}" for i in range(rank)]
    names += ["interleave", "swizzle", "L2 promotion", "fill"]
    return dict(enumerate(names, start=4))


def _fields(func: Any, kernels: set[str]) -> dict[int, tuple[str, str]]:
    """Map the number of each filling statement to its class and its name."""
    statements: list[Any] = []
    tvm_ffi.structural_walk(func.body, (tirx.Evaluate, statements.append), order="pre")
    fields: dict[int, tuple[str, str]] = {}
    pending: dict[int, int] = {}
    for number, statement in enumerate(statements):
        if (cell := _cell(statement)) is not None:
            pending[cell] = number
        call = statement.value
        if not isinstance(call, ir.Call) or "packed" not in short_name(call):
            continue
        callee = str(getattr(call.args[0], "value", ""))
        if callee == ENCODE:
            rank = (max(pending) - 7) // 4  # the last cell ends the row
            for cell, name in _names(rank).items():
                if cell in pending:
                    fields[pending[cell]] = ("tensor map", f"{name} of a map")
        elif callee in kernels:
            *cells, _ = sorted(pending)
            for cell in cells:
                name = "shared memory" if cell == cells[-1] else f"argument {cell}"
                fields[pending[cell]] = ("launch", f"{name} of the launch")
        pending = {}
    return fields


def host_sites(func: Any, kernels: set[str]) -> list[Site]:
    """List every change of a host function."""
    return [
        Site("host", kind, number, change, name)
        for number, (kind, name) in _fields(func, kernels).items()
        for change in CHANGES
    ]


CHANGES: dict[str, Callable[[Any], Any]] = {
    "plus one": lambda x: x + 1,
    "minus one": lambda x: x - 1,
    "twice": lambda x: x * 2,
    "zero": lambda x: x * 0,
}


def changed_host(func: Any, site: Site) -> Any:
    """Return a host function with one change."""
    seen = iter(range(1 << 30))

    def visit(node: Any, mutator: Any) -> Any:
        if next(seen) != site.place:
            return mutator.default_mutate(node)
        call = node.value
        args = list(call.args)
        args[3] = CHANGES[site.change](args[3])
        return tirx.Evaluate(ir.Call(call.op, args, ret_ty=call.ty, attrs=call.attrs))

    return func.with_body(tvm_ffi.structural_mutate(func.body, [(tirx.Evaluate, visit)]))
