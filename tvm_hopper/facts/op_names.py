"""TVM's names of the operations that analyses and passes look for.

`codegen_patches/ptx` emits them. The simulator has its own (`sim/tir.py`).
"""

from __future__ import annotations

from typing import Any

PTX, CUDA, LEGACY = "tirx.ptx.", "tirx.cuda.", "tirx.ptx_legacy."

LDMATRIX, STMATRIX = f"{PTX}ldmatrix", f"{PTX}stmatrix"
LEGACY_LDMATRIX, LEGACY_MMA = f"{LEGACY}ldmatrix", f"{LEGACY}mma"
MAPA = f"{PTX}mapa_u32"
TO_SHARED = f"{CUDA}cvta_generic_to_shared"
MBARRIER_INIT = f"{PTX}mbarrier_init"
MBARRIER_EXPECT = f"{PTX}mbarrier_arrive_expect_tx"
MBARRIER_WAIT = f"{CUDA}mbarrier_wait"

# Beginnings of names: a family of instructions.
GLOBAL_LOADS = f"{PTX}ld"
CLUSTER_BARRIERS = f"{PTX}barrier_cluster"
SETMAXNREG = f"{PTX}setmaxnreg"
CP_ASYNC = f"{PTX}cp_async_"
RAW_CP_ASYNC = "tirx.s_tir.cp_async_raw"  # which TVM's code generator prints as cp.async
ASYNC_COPIES = (CP_ASYNC, f"{PTX}cp_reduce_async_", RAW_CP_ASYNC)


def is_op(call: Any, names: str | tuple[str, ...]) -> bool:
    """Tell whether the name of a call's operation begins in one of these ways."""
    return str(getattr(call.op, "name", "")).startswith(names)
