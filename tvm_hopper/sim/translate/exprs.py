"""TIR expressions to Python text: one expression, compiled once, evaluated for 32 lanes.

Every emitter returns `(code, varies)`: `varies` is False when the value is the same in all lanes by
construction, so that loop variables and addresses stay plain Python integers.
"""

from __future__ import annotations

import math
from functools import partialmethod
from typing import Any

import numpy as np
from tvm import ir, tirx

from tvm_hopper.sim.machine import lanes
from tvm_hopper.sim.tir import dtype_of, is_one_load, nodes_in, numpy_dtype, short_name, split_lanes
from tvm_hopper.sim.translate.cuda_helpers import CudaHelperEmitter
from tvm_hopper.sim.translate.device_math import MATH, plain_name
from tvm_hopper.sim.translate.hoist import HoistEmitter
from tvm_hopper.sim.translate.scope import BufferInfo, Code, elements_of

_INFIX = {
    tirx.LT: "<",
    tirx.LE: "<=",
    tirx.GT: ">",
    tirx.GE: ">=",
    tirx.EQ: "==",
    tirx.NE: "!=",
    tirx.BitwiseAnd: "&",
    tirx.BitwiseOr: "|",
    tirx.BitwiseXor: "^",
    tirx.RShift: ">>",
    tirx.FloorDiv: "//",
    tirx.FloorMod: "%",
}
_WRAPPING = {tirx.Add: "+", tirx.Sub: "-", tirx.Mul: "*", tirx.LShift: "<<"}
_BINARY_CALLS = {
    "bitwise_and": "({} & {})",
    "bitwise_or": "({} | {})",
    "bitwise_xor": "({} ^ {})",
    "shift_right": "({} >> {})",
    "shift_left": "({} << {})",
    **dict.fromkeys(("handle_add_byte_offset", "ptx.addr"), "({} + wide({}))"),
}
SAME = (
    *("likely", "tvm_thread_invariant"),
    *("cuda.smem_addr_from_uint64", "cuda.cvta_generic_to_shared"),
)
REINTERPRET = {"reinterpret": None, "cuda.uint_as_float": "float32", "cuda.float_as_uint": "uint32"}


def view_of(info: Any) -> str:
    """Return name and bytes of a view of shared memory as text, or "None"."""
    if info.kind != "shared" or not all(isinstance(e, tirx.IntImm) for e in info.shape):
        return "None"
    scalar, vector = split_lanes(info.dtype)
    size = math.prod(int(e) for e in info.shape) * vector * numpy_dtype(scalar).itemsize
    return f"({info.name!r}, {size})"


def is_scattered(ramp: Any, indices: Any) -> bool:
    """Return whether the elements of a vector lie in places of their own, not one after another."""
    return ramp is None and split_lanes(dtype_of(indices[-1]))[1] > 1


class ExprEmitter(HoistEmitter, CudaHelperEmitter):
    """Translates expressions into Python text; `StmtEmitter` adds statements."""

    site: int

    def unsupported(self, operation: str) -> None:
        """Note an operation that nothing models: the verdict becomes incomplete."""
        raise NotImplementedError

    def emit(self, line: str) -> None:
        """Append one line."""
        raise NotImplementedError

    def dtype_const(self, dtype: str) -> str:
        """Return the name of a numpy dtype constant."""
        scalar, _ = split_lanes(dtype)
        name = f"DT_{''.join(c if c.isascii() and c.isalnum() else '_' for c in scalar)}"
        if name not in self.scope.constants:
            self.scope.constants[name] = numpy_dtype(scalar)
        return name

    def buffer(self, var: Any) -> BufferInfo | None:
        """Return the facts about a buffer variable."""
        info = self.scope.buffers.get(var)
        if info is None:
            self.unsupported(f"buffer {getattr(var, 'name', var)} without a definition")
        return info

    # -- entry ------------------------------------------------------------------------------------

    def expr(self, node: Any) -> Code:
        """Return the Python text of an expression and whether it varies over lanes."""
        if self.of_thread(node):
            return self.hoisted(node), True
        return self.inline(node)

    def inline(self, node: Any) -> Code:
        """Return the text of an expression where it is."""
        kind = type(node)
        if kind in _INFIX:
            return self._binary(f"({{}} {_INFIX[kind]} {{}})", node.a, node.b)
        if kind in _WRAPPING:
            return self._wrapping(node, _WRAPPING[kind])
        method = getattr(self, f"_on_{kind.__name__.lower()}", None)
        if method is None:
            self.unsupported(f"expression {kind.__name__}")
            return "0", False
        return method(node)

    def code(self, node: Any) -> str:
        """Return only the text of an expression."""
        return self.expr(node)[0]

    def _binary(self, form: str, a: Any, b: Any) -> Code:
        (left, va), (right, vb) = self.expr(a), self.expr(b)
        return form.format(left, right), va or vb

    def _wrapping(self, node: Any, sign: str) -> Code:
        text, varies = self._binary(f"({{}} {sign} {{}})", node.a, node.b)
        dtype = dtype_of(node)
        if not varies and dtype.startswith("uint") and sign != "+":
            text = f"wrap({text}, {dtype!r})"
        return text, varies

    # -- leaves -----------------------------------------------------------------------------------

    def _on_intimm(self, node: Any) -> Code:
        if dtype_of(node) == "bool":
            return ("True" if int(node.value) else "False"), False
        value = lanes.wrap(int(node.value), dtype_of(node))
        return (f"({value})" if value < 0 else str(value)), False

    def _on_floatimm(self, node: Any) -> Code:
        value = float(node.value)
        if value != value or value in (float("inf"), float("-inf")):
            text = f"float('{value}')"
        else:
            text = f"({value!r})"
        dtype = dtype_of(node)
        if dtype not in ("float16", "float32", "float64"):
            # numpy promotes other types next to Python's float, where the device keeps them.
            name = self.scope.name(f"K_{dtype}")
            self.scope.constants[name] = numpy_dtype(dtype).type(value)
            return name, False
        return text, False

    def _on_stringimm(self, node: Any) -> Code:
        return repr(str(node.value)), False

    def _on_var(self, node: Any) -> Code:
        if node in self.scope.values:
            return self.scope.values[node]
        info = self.scope.buffers.get(node)
        if info is not None:
            return info.name, False
        self.unsupported(f"variable {node.name} without a definition")
        return "0", False

    # -- arithmetic -------------------------------------------------------------------------------

    def _is_float(self, node: Any) -> bool:
        return "float" in dtype_of(node)

    def _on_div(self, node: Any) -> Code:
        if self._is_float(node):
            return self._binary("fdiv({}, {})", node.a, node.b)
        return self._binary("tdiv({}, {})", node.a, node.b)

    def _on_mod(self, node: Any) -> Code:
        return self._binary("tmod({}, {})", node.a, node.b)

    def _extreme(self, name: str, node: Any) -> Code:
        """Return NaN where an operand is none; Python's own would take the other one."""
        text, varies = self._binary("{}, {}", node.a, node.b)
        by_numpy = varies or self._is_float(node)
        return (f"np.{name}imum({text})" if by_numpy else f"{name}({text})"), varies

    _on_min, _on_max = partialmethod(_extreme, "min"), partialmethod(_extreme, "max")

    def _on_bitwisenot(self, node: Any) -> Code:
        text, varies = self.expr(node.a)
        dtype = dtype_of(node)
        return f"bitnot({text}, {dtype!r})", varies

    def _on_not(self, node: Any) -> Code:
        text, varies = self.expr(node.a)
        return f"lnot({text})", varies

    def _under(self, node: Any) -> Code:
        """Emit `node` under a lambda's own mask; the caller wraps it."""
        before = self.scope.mask
        self.scope.mask = "mm"
        try:
            return self.expr(node)
        finally:
            self.scope.mask = before

    def _logical(self, word: str, node: Any) -> Code:
        (left, va), (right, vb) = self.expr(node.a), self._under(node.b)
        if not va and not vb:
            return f"({left} {word} {self.code(node.b)})", False
        return f"logical_{word}({left}, {self.scope.mask}, lambda mm: {right})", True

    _on_and, _on_or = partialmethod(_logical, "and"), partialmethod(_logical, "or")

    def _on_cast(self, node: Any) -> Code:
        text, varies = self.expr(node.value)
        dtype = dtype_of(node)
        scalar, _ = split_lanes(dtype)
        return f"cast({text}, {self.dtype_const(scalar)}, {scalar!r})", varies

    def _on_select(self, node: Any) -> Code:
        cond, vc = self.expr(node.condition)
        (yes, va), (no, vb) = self.expr(node.true_value), self.expr(node.false_value)
        return f"select({cond}, {yes}, {no})", vc or va or vb

    def _on_let(self, node: Any) -> Code:
        value, varies = self.expr(node.value)
        name = self.scope.name(node.var.name)
        self.scope.values[node.var] = (name, varies)
        body, body_varies = self.expr(node.body)
        return f"(lambda {name}: {body})({value})", varies or body_varies

    def _on_ramp(self, node: Any) -> Code:
        base, stride = self.code(node.base), self.code(node.stride)
        return f"ramp({base}, {stride}, {int(node.lanes)})", True

    def _on_broadcast(self, node: Any) -> Code:
        return f"broadcast({self.code(node.value)}, {int(node.lanes)})", True

    # -- memory -----------------------------------------------------------------------------------

    def index(self, info: BufferInfo, indices: Any) -> tuple[Any, str, bool]:
        """Return (ramp node or None, index text, varies) of a possibly vector index."""
        indices = elements_of(info, indices)
        if len(indices) > 1:
            text, varies = "0", False
            for extent, index in zip(info.shape, indices, strict=True):
                part, part_varies = self.expr(index)
                text, varies = f"({text} * {self.code(extent)} + {part})", varies or part_varies
            return None, text, varies
        index = indices[0]
        dense = isinstance(index, tirx.Ramp) and isinstance(index.stride, tirx.IntImm)
        if dense and int(index.stride.value) == 1:
            base, varies = self.expr(index.base)
            return index, base, varies
        text, varies = self.expr(index)
        return None, text, varies

    def _on_tensorload(self, node: Any) -> Code:
        info = self.buffer(node.source)
        if info is None:
            return "0", False
        ramp, index, varies = self.index(info, node.indices)
        lanes_count = int(ramp.lanes) if ramp is not None else 1
        dtype, vector = split_lanes(info.dtype)
        if info.kind == "local":
            self.touch(info, index, lanes_count, varies)
            if ramp is not None and not varies:
                size = f"{info.name}.shape[1] - {lanes_count - 1}"
                start = f"register({index}, {size})"
                return f"{info.name}[:, {start} : {index} + {lanes_count}]", True
            if ramp is not None:
                return f"ldl({info.name}, ramp({index}, 1, {lanes_count}), {self.scope.mask})", True
            if varies:
                return f"ldl({info.name}, {index}, {self.scope.mask})", True
            return f"{info.name}[:, register({index}, {info.name}.shape[1])]", True
        if info.kind == "global":
            self.program.loaded_params.add(info.root)
        scattered = is_scattered(ramp, node.indices)
        if ramp is not None and vector == 1 and not is_one_load(ramp):
            scattered, index, lanes_count = True, f"ramp({index}, 1, {lanes_count})", 1
        count = lanes_count * vector
        text = (
            f"w.load({self.site}, {self.scope.mask}, {info.name}, "
            f"{'i' if scattered else index}, ({self.dtype_const(dtype)}, {count}, {vector}), "
            f"{view_of(info)})"
        )
        if scattered:
            text = f"gather(lambda i: {text}, {index})"
        return text, varies or count > 1 or scattered

    def touch(self, info: BufferInfo, index: str, count: int, varies: bool) -> None:
        """Note an access to registers that a wgmma may own; `StmtEmitter` checks it."""

    # -- calls ------------------------------------------------------------------------------------

    def _on_call(self, node: Any) -> Code:
        short = short_name(node)
        if short in _BINARY_CALLS:
            return self._binary(_BINARY_CALLS[short], node.args[0], node.args[1])
        if short in SAME:
            return self._same(short, node)
        if short in REINTERPRET:
            return self._reinterpret(node, REINTERPRET[short])
        if short in ("call_pure_extern", "call_extern"):
            extern, args = str(node.args[0].value), list(node.args[1:])
            if plain_name(extern) is None:
                self._read_before(args)
            return self._math(extern, plain_name(extern), args)
        method = getattr(self, f"_call_{short.replace('.', '_')}", None)
        if method is not None:
            return method(node)
        if short.startswith("cuda."):
            helper = self.cuda_helper(short.removeprefix("cuda."), node)
            if helper is not None:
                return helper
        if short == "cuda.func_call":  # CUDA as text; the first argument is the name
            self.unsupported(f"call {short} of {node.args[0].value}")
            return "0", False
        return self._math(short, short.removeprefix("cuda."), list(node.args))

    def _read_before(self, args: list[Any]) -> None:
        """Read the memory that arguments name by value: that comes before any unknown body."""
        if self.scope.mask == "mm":  # inside of a lambda there are no statements
            return
        for arg in args:
            loads = nodes_in(arg, ir.TensorLoad) if dtype_of(arg) != "handle" else []
            if any(not load.source.scope().startswith("local") for load in loads):
                self.emit(self.code(arg))

    def _math(self, shown: str, name: str | None, args: list[Any]) -> Code:
        if name not in MATH:
            self.unsupported(f"call {shown}")
            return "0", False
        parts = [self.expr(arg) for arg in args]
        kind = self.dtype_const(dtype_of(args[0]))
        text = f"math({name!r}, {kind}, {', '.join(code for code, _ in parts)})"
        return text, any(varies for _, varies in parts)

    def _same(self, short: str, node: Any) -> Code:
        text, varies = self.expr(node.args[0])
        if short.endswith("generic_to_shared"):
            return f"to_shared({text})", varies
        return text, varies

    def _reinterpret(self, node: Any, target: str | None) -> Code:
        source, dtype = dtype_of(node.args[0]), target or dtype_of(node)
        text, varies = self.expr(node.args[0])
        if source == dtype or "handle" in (source, dtype):
            return text, varies
        return (
            f"reinterpret({text}, {self.dtype_const(source)}, {self.dtype_const(dtype)})",
            varies,
        )

    def _call_if_then_else(self, node: Any) -> Code:
        cond, vc = self.expr(node.args[0])
        (yes, va), (no, vb) = self._under(node.args[1]), self._under(node.args[2])
        text = f"ite({cond}, {self.scope.mask}, lambda mm: {yes}, lambda mm: {no})"
        return text, vc or va or vb

    def _call_buffer_data(self, node: Any) -> Code:
        info = self.buffer(node.args[0])
        return (info.name if info else "0"), False

    def _call_address_of(self, node: Any) -> Code:
        target = node.args[0]
        if isinstance(target, ir.Var):  # the address of a parameter: a tensor map
            return self.expr(target)
        info = self.buffer(target.source)
        if info is None or info.kind == "local":
            if info is not None:
                self.unsupported(f"address of the register buffer {info.root or info.name}")
            return "0", False
        _, index, varies = self.index(info, target.indices)
        return self._displaced(info.name, index, varies, numpy_dtype(info.dtype).itemsize)

    def _call_tvm_access_ptr(self, node: Any) -> Code:
        base, _ = self.expr(node.args[1])
        offset, varies = self.expr(node.args[2])
        size = numpy_dtype(dtype_of(node.args[0])).itemsize
        return self._displaced(base, offset, varies, size)

    def _displaced(self, base: str, index: str, varies: bool, size: int) -> Code:
        """Return an address; one that varies may have an index of 32 bits, which none fits in."""
        step = str(size)
        if varies:
            step = f"STEP_{size}"
            self.scope.constants[step] = np.int64(size)
        return f"({base} + {index} * {step})", varies

    def _call_cuda_elect_sync(self, node: Any) -> Code:
        return f"w.elect({self.site}, {self.scope.mask})", True

    def _call_cuda_thread_rank(self, node: Any) -> Code:
        return "w.tid", True

    def _call_large_uint_imm(self, node: Any) -> Code:
        low, high = (int(arg.value) for arg in node.args)
        return str(high << 32 | low), False

    def _call_isnullptr(self, node: Any) -> Code:
        return "False", False

    def _call_cuda_half2float(self, node: Any) -> Code:
        text, varies = self.expr(node.args[0])
        return f"cast({text}, {self.dtype_const('float32')}, 'float32')", varies

    _call_cuda_bfloat162float = _call_cuda_half2float

    def _shuffle(self, mode: str, node: Any) -> Code:
        parts = ", ".join(self.code(arg) for arg in node.args[:4])
        return f"w.shuffle({self.site}, {self.scope.mask}, {mode!r}, {parts})", True

    _call_tvm_warp_shuffle = _call_cuda___shfl_sync = partialmethod(_shuffle, "idx")
    _call_tvm_warp_shuffle_up = _call_cuda___shfl_up_sync = partialmethod(_shuffle, "up")
    _call_tvm_warp_shuffle_down = _call_cuda___shfl_down_sync = partialmethod(_shuffle, "down")
    _call_cuda___shfl_xor_sync = partialmethod(_shuffle, "bfly")

    def _vote(self, mode: str, node: Any) -> Code:
        named, holds = (self.code(arg) for arg in node.args[:2])
        return f"w.vote({self.site}, {self.scope.mask}, {mode!r}, {named}, {holds})", False

    _call_cuda_any_sync = partialmethod(_vote, "any")
    _call_cuda_all_sync = partialmethod(_vote, "all")
    _call_cuda_ballot_sync = partialmethod(_vote, "ballot")

    def _call_tvm_warp_activemask(self, node: Any) -> Code:
        return f"w.activemask({self.scope.mask})", False

    _call_cuda___activemask = _call_tvm_warp_activemask

    def params_of(self, expr: Any) -> set[str]:
        """Return the parameters that an address may point into."""
        raise NotImplementedError

    def _atomic(self, op: str, node: Any, value: Any, compare: str = "") -> Code:
        params = self.params_of(node.args[0])
        self.program.loaded_params |= params
        self.program.stored_params |= params
        address, kind = self.code(node.args[0]), self.dtype_const(dtype_of(value))
        args = f"{op!r}, {address}, {self.code(value)}, {kind}{compare}"
        return f"w.atomic({self.site}, {self.scope.mask}, {args})", True

    def _call_cuda_atomic_add(self, node: Any) -> Code:
        return self._atomic("add", node, node.args[1])

    def _call_cuda_atomic_cas(self, node: Any) -> Code:
        return self._atomic("cas", node, node.args[2], f", compare={self.code(node.args[1])}")
