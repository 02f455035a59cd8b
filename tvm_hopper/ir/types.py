"""TIR node classes under short names."""

from __future__ import annotations

from tvm.ir import Call as Call, TensorLoad as TensorLoad, TensorRegion as TensorRegion
from tvm.s_tir.stmt import SBlock as SBlock, SBlockRealize as SBlockRealize
from tvm.tirx import (
    BufferStore as BufferStore,
    Evaluate as Evaluate,
    For as For,
    ForKind as ForKind,
    IfThenElse as IfThenElse,
    SeqStmt as SeqStmt,
    Stmt as Stmt,
    Var as Var,
)

PLAN_ATTR = "tvm_hopper.plan"
KERNEL_BLOCK = "kernel"  # name of the block that holds a kernel's roles; its mark is keys.KERNEL
ROLES = "tvm_hopper"  # node of the attribute around a kernel's roles
