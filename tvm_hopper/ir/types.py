"""TIR node classes under short names."""

from __future__ import annotations

from tvm.ir import Call, TensorLoad, TensorRegion
from tvm.s_tir.stmt import SBlock, SBlockRealize
from tvm.tirx import BufferStore, Evaluate, For, ForKind, IfThenElse, SeqStmt, Stmt, Var

__all__ = [
    "KERNEL_BLOCK",
    "PLAN_ATTR",
    "ROLES",
    "BufferStore",
    "Call",
    "Evaluate",
    "For",
    "ForKind",
    "IfThenElse",
    "SBlock",
    "SBlockRealize",
    "SeqStmt",
    "Stmt",
    "TensorLoad",
    "TensorRegion",
    "Var",
]

PLAN_ATTR = "tvm_hopper.plan"
KERNEL_BLOCK = "kernel"  # name of the block that holds a kernel's roles; its mark is keys.KERNEL
ROLES = "tvm_hopper"  # node of the attribute around a kernel's roles
