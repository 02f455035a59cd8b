"""Registers of a thread: setmaxnreg, moves, shuffles between threads."""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.script import tirx as T

from tvm_hopper import ir
from tvm_hopper.facts.programming_model import THREADS_PER_WARP

_ALL_LANES = 0xFFFFFFFF


def setmaxnreg_dec(num_registers: int) -> Any:
    """Give back all but `num_registers` registers of each thread (PTX ISA 9.1, 9.7.19.5).

    All warps of a warp group execute it; 24 to 256 in steps of 8.
    """
    return T.ptx["setmaxnreg.dec.sync.aligned.u32"](num_registers)


def setmaxnreg_inc(num_registers: int) -> Any:
    """Wait until each thread of the warp group can have `num_registers` registers (9.7.19.5)."""
    return T.ptx["setmaxnreg.inc.sync.aligned.u32"](num_registers)


def shuffle_xor(value: Any, distance: int) -> Any:
    """Return the 32-bit value of the lane whose number is this one's XOR `distance`.

    `shfl.sync.bfly`, 9.7.9.6; all 32 lanes execute it.
    """
    mask = tirx.IntImm("uint32", _ALL_LANES)
    lanes = THREADS_PER_WARP
    return ir.call_op(
        "tirx.tvm_warp_shuffle_xor", ir.dtype_of(value), mask, value, distance, lanes, lanes
    )


def shuffle_from(value: Any, lane: Any) -> Any:
    """Return the 32-bit value of the lane of a number; all 32 lanes execute it.

    `shfl.sync.idx`, 9.7.9.6.
    """
    mask = tirx.IntImm("uint32", _ALL_LANES)
    lanes = THREADS_PER_WARP
    return ir.call_op("tirx.tvm_warp_shuffle", ir.dtype_of(value), mask, value, lane, lanes, lanes)


def ballot(condition: Any) -> Any:
    """Return a word with a bit for each lane: whether a condition holds there.

    `vote.sync.ballot.b32`, 9.7.13.10; all 32 lanes execute it.
    """
    return T.cuda.ballot_sync(tirx.IntImm("uint32", _ALL_LANES), tirx.Cast("int32", condition))
