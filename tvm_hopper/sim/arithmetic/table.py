"""Table of modelled PTX register instructions, by their name in TVM's table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tvm_hopper.sim.arithmetic import (
    approximations,
    bitwise,
    comparisons,
    conversions,
    floats,
    integers,
)
from tvm_hopper.sim.arithmetic.approximations import NEAREST
from tvm_hopper.sim.arithmetic.formats import Array
from tvm_hopper.sim.arithmetic.integers import Mods


def _nothing(mods: Mods) -> str:
    return ""


@dataclass(frozen=True)
class RegisterInstruction:
    """How the forms of one instruction compute their results.

    - `function` (callable): (mods, source operands...) -> bits of the destination, or a tuple of
      them. Operands are unsigned bits of the operand's width, predicates booleans, immediates
      integers.
    - `refuses`: mods -> why this form is not modelled; empty if it is.
    """

    function: Callable[..., Any]
    refuses: Callable[[Mods], str] = _nothing

    def __call__(self, mods: Mods, *operands: Any) -> tuple[Array, ...]:
        """Return the bits of each destination."""
        with np.errstate(all="ignore"):
            found = self.function(mods, *operands)
        return found if isinstance(found, tuple) else (found,)


def _mixed(mods: Mods) -> str:
    return "sources of another type need sm_100" if mods.get("srctype") else ""


def _gross(mods: Mods) -> str:
    rough = mods["mode"] == "approx" and mods["type"] == "f64"
    return "PTX states no error bound" if rough else ""


def _out_of_bounds(mods: Mods) -> str:
    return "NaNs that mark what is out of bounds" if mods.get("oob") else ""


def _newer_tf32(mods: Mods) -> str:
    return "needs sm_100" if mods.get("satfinite") and mods["rnd"] != "rna" else ""


def _newer_bytes(mods: Mods) -> str:
    return "needs sm_100" if mods["atype"] == "bf16x2" else ""


def _by_mode(exactly: Callable[..., Any], roughly: Callable[..., Any]) -> Callable[..., Any]:
    """Choose between IEEE rounding and an approximation by the mode."""

    def apply(mods: Mods, *operands: Array) -> Any:
        return (roughly if mods["mode"] in ("approx", "full") else exactly)(mods, *operands)

    return apply


def _min_max(of_integers: Callable[..., Any], of_floats: Callable[..., Any]) -> Callable[..., Any]:
    """Choose by the type."""

    def apply(mods: Mods, a: Array, b: Array) -> Any:
        return (of_integers if mods["type"][0] in "us" else of_floats)(mods, a, b)

    return apply


_PLAIN: dict[str, Callable[..., Any]] = {
    # integers
    "add_int": integers.add,
    "sub_int": integers.sub,
    "mul_int": integers.mul,
    "mul_wide": integers.mul_wide,
    "mad_int": integers.mad,
    "mad_wide": integers.mad_wide,
    "mul24": integers.mul24,
    "mad24": integers.mad24,
    "sad": integers.sad,
    "div": integers.div,
    "rem": integers.rem,
    "abs": integers.absolute,
    "neg_int": integers.neg,
    "dp4a": integers.dp4a,
    "dp2a": integers.dp2a,
    "cvt_pack": integers.cvt_pack,
    "cvt_pack_c": integers.cvt_pack,
    # bits
    "and": lambda mods, a, b: a & b,
    "or": lambda mods, a, b: a | b,
    "xor": lambda mods, a, b: a ^ b,
    "not": lambda mods, a: ~a,  # the opposite of a predicate
    "cnot": lambda mods, a: (a == 0).astype(a.dtype),
    "lop3": bitwise.lop3,
    "lop3_bool": bitwise.lop3_bool,
    "lop3_bool_sink": bitwise.lop3_bool_sink,
    "shl": bitwise.shl,
    "shr": bitwise.shr,
    "shf": bitwise.shf,
    "popc": bitwise.popc,
    "clz": bitwise.clz,
    "bfind": bitwise.bfind,
    "fns": bitwise.fns,
    "brev": bitwise.brev,
    "bfe": bitwise.bfe,
    "bfi": bitwise.bfi,
    "szext": bitwise.szext,
    "bmsk": bitwise.bmsk,
    "prmt": bitwise.prmt,
    "mov": lambda mods, a: a,
    "mov_pack_b16x2": bitwise.mov_pack,
    "mov_pack_b16x4": bitwise.mov_pack,
    "mov_pack_b32x2": bitwise.mov_pack,
    "mov_unpack_b16x2": bitwise.mov_unpack(2),
    "mov_unpack_b16x4": bitwise.mov_unpack(4),
    "mov_unpack_b32x2": bitwise.mov_unpack(2),
    # comparisons
    "set": comparisons.set_register,
    "set_bool": comparisons.set_register,
    "set_half": comparisons.set_register,
    "set_half_bool": comparisons.set_register,
    "setp": comparisons.setp,
    "setp_bool": comparisons.setp,
    "setp_half": comparisons.setp,
    "setp_half_bool": comparisons.setp,
    "setp_pq": comparisons.setp_pair,
    "setp_bool_pq": comparisons.setp_pair,
    "setp_half_pq": comparisons.setp_pair,
    "setp_half_bool_pq": comparisons.setp_pair,
    "selp": comparisons.selp,
    "slct": comparisons.slct,
    # floats
    "max": _min_max(integers.maximum, floats.maximum),
    "min": _min_max(integers.minimum, floats.minimum),
    "mul": floats.mul,
    "mad_f": floats.fma,
    "div_f": _by_mode(floats.div, approximations.div),
    "sqrt": _by_mode(floats.sqrt, NEAREST["sqrt"]),
    "abs_f": floats.absolute,
    "abs_half": floats.absolute,
    "neg": floats.neg,
    "neg_half": floats.neg,
    "testp": floats.testp,
    "copysign": floats.copysign,
    "add_half": floats.add,
    "sub_half": floats.sub,
    "mul_half": floats.mul,
    # approximations
    "ex2": NEAREST["ex2"],
    "ex2_half": NEAREST["ex2"],
    "lg2": NEAREST["lg2"],
    "sin": NEAREST["sin"],
    "cos": NEAREST["cos"],
    "tanh": NEAREST["tanh"],
    "tanh_half": NEAREST["tanh"],
    # conversions
    "cvt": conversions.cvt,
    "cvt_f16x2_f32": conversions.to_pair,
    "cvt_bf16x2_f32": conversions.to_pair,
    "cvt_f8x2_f32": conversions.to_pair,
    "cvt_f16x2_f8x2": conversions.between_pairs,
}

INSTRUCTIONS: dict[str, RegisterInstruction] = {
    **{name: RegisterInstruction(function) for name, function in _PLAIN.items()},
    "add": RegisterInstruction(floats.add, _mixed),
    "sub": RegisterInstruction(floats.sub, _mixed),
    "fma": RegisterInstruction(floats.fma, _mixed),
    "fma_half": RegisterInstruction(floats.fma, _out_of_bounds),
    "cvt_tf32_f32": RegisterInstruction(conversions.to_tf32, _newer_tf32),
    "cvt_f8x2_fp16x2": RegisterInstruction(conversions.between_pairs, _newer_bytes),
    "rcp": RegisterInstruction(_by_mode(floats.rcp, NEAREST["rcp"]), _gross),
    "rsqrt": RegisterInstruction(NEAREST["rsqrt"], _gross),
}
