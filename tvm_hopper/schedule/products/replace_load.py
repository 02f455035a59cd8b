"""Read something else where a statement reads one element."""

from __future__ import annotations

from typing import Any

import tvm_ffi

from tvm_hopper import ir


def replace_load(value: Any, old: Any, new: Any) -> Any:
    """Read something else where an expression reads one element."""

    def visit(load: Any, mutator: Any) -> Any:
        same = load.source.same_as(old.source) and tvm_ffi.structural_equal(
            load.indices, old.indices
        )
        return new if same else mutator.default_mutate(load)

    return ir.mutate(value, [(ir.TensorLoad, visit)])
