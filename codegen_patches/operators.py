"""Register TIR operators with their CUDA text, once, with TVM and its code generator.

    make_known("tvm_hopper_ex2_ftz", "(float x)", "    float y; ...", returns=("float", "float32"))

One that returns nothing is there for what it does, and nothing is moved over it.
"""

from __future__ import annotations

from typing import Any

from tvm import ir as tvm_ir
from tvm.backend.cuda.codegen.schema import device_intrinsic
from tvm.tirx.expr import CallEffectKind

_known: dict[str, tuple[Any, ...]] = {}  # what each was registered with


def make_known(
    name: str,
    signature: str,
    body: str,
    returns: tuple[str, Any] | None = None,
    templated: bool = False,
) -> None:
    """Register an operator, if it is not.

    - `name`: without "tirx.".
    - `signature`, `body`: of the function in CUDA's text.
    - `returns` (tuple): the types of its value, in C and in TIR, the latter also as a function of
      the arguments. It depends on its arguments alone then.
    - `templated`: whether the text is a template of a type T.
    """
    if name in _known:
        return
    _known[name] = (signature, body, returns, templated)
    kind = CallEffectKind.Opaque if returns is None else CallEffectKind.Pure
    tvm_ir.register_op_attr(f"tirx.{name}", "TCallEffectKind", kind.value)
    if returns is None:
        device_intrinsic(name, c_signature=signature, body=body)
        return
    tvm_ir.register_op_attr(f"tirx.{name}", "TScriptPrinterName", name)
    c_type, dtype = returns
    device_intrinsic(
        name,
        c_signature=signature,
        body=body,
        return_type=c_type,
        tvm_return_type=dtype,
        templated=templated,
    )


def definitions_in(text: str) -> list[list[Any]]:
    """Return the operators that a module's JSON names, as JSON has them: for `make_known`.

    Templates are left out: `rounded_sums.register` makes all of them known.
    """
    rows = [[name, *row] for name, row in _known.items() if f'"tirx.{name}"' in text]
    return [row for row in rows if not row[-1]]
