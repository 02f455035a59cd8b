"""WGMMA: multiplication by a warp group (PTX ISA 9.1, 9.7.15). All 128 threads execute each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm.script import tirx as T

from tvm_hopper.facts import wgmma as facts


def fence() -> Any:
    """Order earlier accesses of registers before the next multiplication (9.7.15.7.1)."""
    return T.ptx.wgmma.fence.sync.aligned()


def commit_group() -> Any:
    """Make a group of the multiplications issued since the last one (9.7.15.7.2)."""
    return T.ptx.wgmma.commit_group.sync.aligned()


def wait_group(num_pending: int) -> Any:
    """Wait until at most `num_pending` of the latest groups are under way (9.7.15.7.3)."""
    return T.ptx.wgmma.wait_group.sync.aligned(num_pending)


def mma(
    n: int,
    dtype: str | tuple[str, str],
    accumulator: str,
    d: Sequence[Any],
    a: Any,
    b: Any,
    adds: Any = True,
    transposed: tuple[int, int] = (0, 0),
) -> Any:
    """Compute `d = a b + d` for 64 rows and `n` columns (`wgmma.mma_async`, 9.7.15.5.2).

    - `n`: columns of one instruction.
    - `dtype`, `accumulator`: types of both operands, or of each, and of `d`, under TVM's names.
    - `d`: this thread's registers of the accumulator, as `BufferLoad`s: `n / 2` of float32, or of
      uint32 for an int32 accumulator; `n / 4` of uint32 for float16, two elements in each.
    - `a`, `b`: 64-bit descriptors of operands in shared memory. Instead of a descriptor, `a` may be
      a sequence of four 32-bit registers.
    - `adds`: boolean; if false, `d = a b`.
    - `transposed`: whether a and b are MN-major, 0 or 1 each: of 16-bit operands in shared memory
      alone.
    - raises ValueError: the hardware has no such shape or pair of types, or reads no such operand
      MN-major.
    """
    dtype, other = (dtype, dtype) if isinstance(dtype, str) else dtype
    name = facts.instruction_name(n, dtype, accumulator, other)
    in_registers = isinstance(a, (list, tuple))
    left, right = transposed
    if (left and in_registers) or ((left or right) and dtype not in facts.MN_MAJOR_DTYPES):
        held = "registers" if in_registers else "shared memory"
        raise ValueError(
            f"{name}: found transposed operands {transposed}, a of {dtype} in {held}; "
            "need 16-bit types in shared memory, or a K-major operand"
        )
    # Integers are neither negated nor transposed; of other types but 16 bits each is only negated.
    scales = () if dtype in ("int8", "uint8") else (1, 1)
    majors: tuple[int, ...] = ()
    if dtype in facts.MN_MAJOR_DTYPES:
        majors = (right,) if in_registers else (left, right)
    return T.ptx[name](*d, *(a if in_registers else [a]), b, adds, *scales, *majors)
