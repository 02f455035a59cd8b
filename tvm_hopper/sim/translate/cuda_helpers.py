"""Device functions of TVM in expressions (`T.cuda.*`): as the CUDA text that the wheel prints."""

from __future__ import annotations

from functools import partialmethod
from typing import Any

from tvm import ir

from tvm_hopper.sim.tir import dtype_of, numpy_dtype
from tvm_hopper.sim.translate.registers import RegisterCall

Code = tuple[str, bool]

_F32, _PAIR = ("f32", "float32"), ("f32x2", "uint64")
_BOTH = ("b64", "uint64")
_RN = {"rnd": "rn", "ftz": "", "sat": ""}
_NO_FTZ = {"ftz": "", "nan": "", "xorsign": "", "abs": "", "relu": ""}
_TO_HALVES = {"rnd": "rn", "relu": "", "satfinite": "", "dtype": "bf16x2", "atype": "f32"}
_WIDEN = {n: "" for n in ("rnd", "relu", "satfinite", "ftz", "sat")} | {
    "dtype": "f32",
    "atype": "bf16",
}
_HALVES = ("bf16x2", "uint32")

JOIN = RegisterCall("mov_pack_b32x2", {"type": "b64"}, [("b32", "float32")] * 2, [_BOTH])
SPLIT = RegisterCall("mov_unpack_b32x2", {"type": "b64"}, [_BOTH], [("b32", "float32")] * 2)
SPLIT_HALVES = RegisterCall(
    "mov_unpack_b16x2", {"type": "b32"}, [("b32", "uint32")], [("b16", "uint16")] * 2
)
MULTIPLY = RegisterCall("mul", {**_RN, "type": "f32x2"}, [_PAIR, _PAIR], [_PAIR])
ADD = RegisterCall("add", {**_RN, "type": "f32x2", "srctype": ""}, [_PAIR, _PAIR], [_PAIR])
NARROW = RegisterCall("cvt_bf16x2_f32", _TO_HALVES, [_F32, _F32], [_HALVES])
WIDEN = RegisterCall("cvt", _WIDEN, [("bf16", "uint16")], [_F32])
LEAST = RegisterCall("min", {**_NO_FTZ, "type": "bf16x2"}, [_HALVES, _HALVES], [_HALVES])
MOST = RegisterCall("max", {**_NO_FTZ, "type": "bf16x2"}, [_HALVES, _HALVES], [_HALVES])
BYTES = RegisterCall(
    "cvt_f8x2_f32",
    {"rnd": "rn", "satfinite": "satfinite", "relu": "", "dtype": "e4m3x2", "atype": "f32"},
    [_F32, _F32],
    [("e4m3x2", "uint16")],
)
DIVIDE = RegisterCall("div_f", {"mode": "approx", "ftz": "", "type": "f32"}, [_F32, _F32], [_F32])


def bytes_of_four(x: Any, y: Any, z: Any, w: Any) -> list[Any]:
    """Return four numbers as e4m3, x lowest."""
    low, high = BYTES(y, x)[0], BYTES(w, z)[0]
    return [low | (high.astype("uint32") << 16)]


def widened_pair(packed: Any) -> list[Any]:
    """Return two bfloat16 as two float32."""
    return JOIN(*(WIDEN(half)[0] for half in SPLIT_HALVES(packed)))


def narrowed_pair(packed: Any) -> list[Any]:
    """Return two float32 as two bfloat16."""
    x, y = SPLIT(packed)
    return NARROW(y, x)


# By the call's name: a function of the arguments, and which of its results is meant.
COMPUTED: dict[str, tuple[Any, int]] = {
    "make_float2": (JOIN, 0),
    "float2_x": (SPLIT, 0),
    "float2_y": (SPLIT, 1),
    "fmul2_rn": (MULTIPLY, 0),
    "fadd2_rn": (ADD, 0),
    "float22bfloat162_rn": (lambda x, y: NARROW(y, x), 0),  # the first one is the low half
    "float22bfloat162_rn_from_float2": (narrowed_pair, 0),
    "bfloat1622float2": (widened_pair, 0),
    "hmin2": (LEAST, 0),
    "hmax2": (MOST, 0),
    "fp8x4_e4m3_from_float4": (bytes_of_four, 0),
    "fdividef": (DIVIDE, 0),
}


class CudaHelperEmitter:
    """Mixin of `ExprEmitter`."""

    def cuda_helper(self, name: str, node: ir.Call) -> Code | None:
        """Return the text of a call of a device function; None if none of that name is modelled."""
        if name in COMPUTED:
            function, position = COMPUTED[name]
            parts = [self.expr(arg) for arg in node.args]
            known = self.constant("helper", function)
            text = f"{known}({', '.join(code for code, _ in parts)})[{position}]"
            return text, any(varies for _, varies in parts)
        method = getattr(self, f"_helper_{name}", None)
        return None if method is None else method(node)

    def _helper_ffs_u32(self, node: ir.Call) -> Code:
        text, varies = self.expr(node.args[0])
        return f"find_first_set({text})", varies

    def _helper_ldg(self, node: ir.Call) -> Code | None:
        if len(node.args) != 2:
            return None  # the vector form is a statement
        address, varies = self.expr(node.args[0])
        self.program.loaded_params |= self.params_of(node.args[0])
        kind = self.dtype_const(str(node.args[1].value))
        return f"w.load({self.site}, {self.scope.mask}, {address}, 0, ({kind}, 1, 1))", varies

    def _helper_mov_sreg(self, node: ir.Call) -> Code | None:
        registers = {"laneid": ("LANES", True), "cluster_ctarank": ("w.cta.rank", False)}
        return registers.get(str(node.args[1].value))

    def _reduced(self, op: str, node: ir.Call) -> Code:
        named, value = (self.code(arg) for arg in node.args[:2])
        kind = self.dtype_const("uint32")
        args = f"{self.site}, {self.scope.mask}, {op!r}, {named}, {value}, {kind}"
        return f"w.reduce_lanes({args})", False

    _helper_reduce_add_sync_u32 = partialmethod(_reduced, "add")
    _helper_reduce_min_sync_u32 = partialmethod(_reduced, "min")

    # -- operations of all threads of a block ----------------------------------------------------

    def _meeting(self, text: str, helper: str) -> str:
        """Return a call that waits, as part of an expression."""
        if self.scope.mask == "mm":  # inside of a lambda nothing can wait
            self.unsupported(f"{helper} on one side of an expression")
            return "0"
        return f"(yield from {text})"

    def _vote_block(self, op: str, node: ir.Call) -> Code:
        value = self.code(node.args[0])
        text = f"w.vote_block({self.site}, {self.scope.mask}, {op!r}, {value})"
        return self._meeting(text, f"syncthreads_{op}"), False

    _helper_syncthreads_and = partialmethod(_vote_block, "and")
    _helper_syncthreads_or = partialmethod(_vote_block, "or")

    def _reduction(self, node: ir.Call, helper: str) -> tuple[str, str, str, int] | None:
        """Return value, operation, type and count of a reduction."""
        value, op, count = node.args[0], str(node.args[1].value), int(node.args[2].value)
        dtype = dtype_of(value)
        if op != "sum" and numpy_dtype(dtype).kind in "iu" and helper == "cta_reduce":
            self.unsupported(f"cta_reduce {op} of {dtype}, which CUDA computes as float")
            return None
        return self.code(value), op, self.dtype_const(dtype), count

    def _helper_warp_reduce(self, node: ir.Call) -> Code:
        found = self._reduction(node, "warp_reduce")
        if found is None:
            return "0", False
        value, op, kind, width = found
        args = f"{self.site}, {self.scope.mask}, {value}, {op!r}, {width}, {kind}"
        return f"w.warp_reduce({args})", True

    def _helper_cta_reduce(self, node: ir.Call) -> Code:
        found = self._reduction(node, "cta_reduce")
        if found is None:
            return "0", False
        value, op, kind, num_warps = found
        scratch = node.args[3]
        params = self.params_of(scratch)
        self.program.loaded_params |= params
        self.program.stored_params |= params
        size = numpy_dtype(dtype_of(node.args[0])).itemsize
        self.program.min_itemsize = min(self.program.min_itemsize, size)
        args = (
            f"{self.site}, {self.scope.mask}, {value}, {op!r}, {num_warps}, "
            f"{self.code(scratch)}, {kind}"
        )
        return self._meeting(f"w.cta_reduce({args})", "cta_reduce"), False
