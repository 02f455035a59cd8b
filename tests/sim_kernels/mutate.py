"""Take a sync instruction out of a final device function, or corrupt it."""

from collections.abc import Callable
from typing import Any

from tvm import ir as tvm_ir, tirx

from tvm_hopper import ir
from tvm_hopper.simulation import Program


def name_of(call: tvm_ir.Call) -> str:
    """Return an instruction's name in TIR, e.g. "mbarrier_arrive_expect_tx"."""
    return getattr(call.op, "name", "").split(".")[-1]


def instructions(func: tirx.PrimFunc, name: str) -> list[tirx.Evaluate]:
    """Return the statements that are one instruction, in the order of the program."""

    def is_one(statement: tirx.Evaluate) -> bool:
        value = statement.value
        return isinstance(value, tvm_ir.Call) and name_of(value) == name

    return ir.find_all(func.body, tirx.Evaluate, is_one)


def change(
    program: Program,
    name: str,
    which: int | None = None,
    new: Callable[[tvm_ir.Call], Any] | None = None,
) -> Program:
    """Return the program without an instruction (`which`; None: all) or with another."""
    have = [x for x in program.kernels.items() if instructions(x[1], name)]
    assert len(have) == 1, f"{len(have)} kernels have {name}"
    ((kernel, func),) = have
    found = instructions(func, name)
    chosen = found if which is None else [found[which]]
    planned = {x: ir.seq() if new is None else tirx.Evaluate(new(x.value)) for x in chosen}
    body = ir.replace_nodes(func.body, tirx.Evaluate, planned)
    return Program(program.host, {**program.kernels, kernel: func.with_body(body)})


def with_argument(index: int, value: Any) -> Callable[[tvm_ir.Call], tvm_ir.Call]:
    """Return a change of one argument, to a value or to what a function makes of the old one."""

    def apply(call: tvm_ir.Call) -> tvm_ir.Call:
        args = list(call.args)
        args[index] = value(args[index]) if callable(value) else value
        return tvm_ir.Call(call.op, args, ret_ty=call.ty, attrs=call.attrs)

    return apply
