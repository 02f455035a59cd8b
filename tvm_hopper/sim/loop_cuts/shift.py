"""Compute how an integer expression changes when a loop variable advances by some iterations.

    k         +1 every iteration                 (k >> 2) + 1 & 1      the same every 8 iterations
    k * 64    +64 every iteration                (tile * 70 + k) & 7   of k: the same every 8
    iterations k & 3     the same every 4 iterations        k * k                 nothing is claimed

`Shift(period, step)` of e claims e(k + period) = e(k) + step for all values of other variables.
Values loaded from memory are `DATA`, and so are all values computed from them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tvm import ir, tirx

from tvm_hopper.sim.tir import dtype_of, numpy_dtype, short_name


class Shift(NamedTuple):
    """A claim on an expression.

    - `period`, `step`: in iterations of the loop, and the increase of the value after them.
    - `positive`: whether the value is known to be no less than zero.
    - `value`: the value itself, where it is a constant.
    """

    period: int = 1
    step: int = 0
    positive: bool = False
    value: int | None = None


class _Data:
    def __repr__(self) -> str:
        return "DATA"


DATA = _Data()
FIXED = Shift()  # the same in every iteration
Moved = Shift | _Data | None  # None: computed from no data, and nothing more is known


@dataclass
class Known:
    """Facts known at an expression.

    - `values` (dict): by variable, and by buffer variable: of the address of its first byte. Others
      do not move.
    - `registers` (dict): claims about registers, by buffer and element.
    - `tainted` (set): register buffers that hold data.
    """

    values: dict[Any, Moved] = field(default_factory=dict)
    registers: dict[tuple[Any, int], Moved] = field(default_factory=dict)
    tainted: set[Any] = field(default_factory=set)

    def copy(self) -> Known:
        """Return a copy with separate variables and registers."""
        return Known(dict(self.values), dict(self.registers), self.tainted)


def shift_of(node: Any, known: Known) -> Moved:
    """Return the claim about an expression."""
    kind = type(node)
    if kind is int or isinstance(node, tirx.IntImm):
        number = node if kind is int else int(node.value)
        return Shift(1, 0, number >= 0, number)
    if isinstance(node, ir.Var):
        return known.values.get(node, FIXED)
    name = kind.__name__
    if name in _BINARY:
        return both(shift_of(node.a, known), shift_of(node.b, known), _BINARY[name])
    if name in ("Cast", "Not", "BitwiseNot"):
        return _converted(node, known)
    if isinstance(node, ir.TensorLoad):
        return _loaded(node, known)
    if isinstance(node, ir.Call):
        return _called(node, known)
    if name == "Select":
        return unmoved(
            [shift_of(n, known) for n in (node.condition, node.true_value, node.false_value)]
        )
    if name == "Ramp":
        return both(shift_of(node.base, known), shift_of(node.stride, known), _ramp)
    if name == "Broadcast":
        return shift_of(node.value, known)
    if name in ("FloatImm", "StringImm"):
        return FIXED
    return DATA


def both(a: Moved, b: Moved, claim: Callable[[Shift, Shift], Moved]) -> Moved:
    """Apply a rule to two claims, if there are two."""
    if isinstance(a, _Data) or isinstance(b, _Data):
        return DATA
    return None if a is None or b is None else claim(a, b)


def unmoved(parts: list[Moved]) -> Moved:
    """Claim of any function of some parts: the same when all of them are."""
    if any(isinstance(part, _Data) for part in parts):
        return DATA
    found = [part for part in parts if isinstance(part, Shift)]
    if len(found) < len(parts) or any(part.step for part in found):
        return None
    return Shift(math.lcm(*(part.period for part in found)) if found else 1)


def plus(a: Shift, b: Shift) -> Shift:
    """Claim of a sum."""
    period, x, y = _together(a, b)
    value = a.value + b.value if a.value is not None and b.value is not None else None
    return Shift(period, x + y, a.positive and b.positive, value)


def times(a: Shift, b: Shift) -> Moved:
    """Claim of a product."""
    if a.value is not None and b.value is not None:
        return Shift(1, 0, a.value * b.value >= 0, a.value * b.value)
    if a.value is not None:
        a, b = b, a
    positive = a.positive and b.positive
    if b.value is not None:
        return Shift(a.period, a.step * b.value, positive)
    if a.step or b.step:
        return None
    return Shift(math.lcm(a.period, b.period), 0, positive)


def _together(a: Shift, b: Shift) -> tuple[int, int, int]:
    period = math.lcm(a.period, b.period)
    return period, a.step * (period // a.period), b.step * (period // b.period)


def _minus(a: Shift, b: Shift) -> Shift:
    period, x, y = _together(a, b)
    value = a.value - b.value if a.value is not None and b.value is not None else None
    return Shift(period, x - y, value is not None and value >= 0, value)


def _until(a: Shift, divisor: int) -> Shift:
    """Lengthen the period until the step is a multiple of a divisor."""
    more = divisor // math.gcd(divisor, a.step)
    return Shift(a.period * more, a.step * more, a.positive)


def _divided(floor: bool) -> Callable[[Shift, Shift], Moved]:
    def claim(a: Shift, b: Shift) -> Moved:
        positive = a.positive and b.positive
        if b.value is not None and b.value > 0 and (floor or a.positive):
            if a.value is not None:
                return Shift(1, 0, a.value >= 0, a.value // b.value)
            longer = _until(a, b.value)
            return Shift(longer.period, longer.step // b.value, positive)
        if a.step or b.step:
            return None
        return Shift(math.lcm(a.period, b.period), 0, positive)

    return claim


def _remainder(floor: bool) -> Callable[[Shift, Shift], Moved]:
    def claim(a: Shift, b: Shift) -> Moved:
        if b.value is not None and b.value > 0 and (floor or a.positive):
            value = None if a.value is None else a.value % b.value
            return Shift(_until(a, b.value).period, 0, True, value)
        if a.step or b.step:
            return None
        return Shift(math.lcm(a.period, b.period), 0, a.positive)

    return claim


def masked(a: Shift, b: Shift) -> Moved:
    """Claim of a bitwise and."""
    if a.value is not None and b.value is None:
        a, b = b, a
    if b.value is not None and b.value >= 0:
        return Shift(_until(a, 1 << b.value.bit_length()).period, 0, True)
    return _same_positive(a, b)


def _set_bits(a: Shift, b: Shift) -> Moved:
    if a.value is not None and b.value is None:
        a, b = b, a
    if a.step and b.value is not None and b.value >= 0:
        longer = _until(a, 1 << b.value.bit_length())  # adding to higher bits sets no lower ones
        return Shift(longer.period, longer.step, a.positive)
    return _same_positive(a, b)


def _ramp(base: Shift, stride: Shift) -> Moved:
    return base._replace(value=None) if stride.value is not None else unmoved([base, stride])


def _same(a: Shift, b: Shift) -> Moved:
    return unmoved([a, b])


def _same_positive(a: Shift, b: Shift) -> Moved:
    if a.step or b.step:
        return None
    return Shift(math.lcm(a.period, b.period), 0, a.positive and b.positive)


def _right(a: Shift, b: Shift) -> Moved:
    if b.value is None or not 0 <= b.value < 64:
        return unmoved([a, b])
    return _divided(True)(a, Shift(1, 0, True, 1 << b.value))


def _left(a: Shift, b: Shift) -> Moved:
    if b.value is None or not 0 <= b.value < 64:
        return unmoved([a, b])
    return times(a, Shift(1, 0, True, 1 << b.value))


_BINARY: dict[str, Callable[[Shift, Shift], Moved]] = {
    "Add": plus,
    "Sub": _minus,
    "Mul": times,
    "FloorDiv": _divided(True),
    "FloorMod": _remainder(True),
    "Div": _divided(False),
    "Mod": _remainder(False),
    "BitwiseAnd": masked,
    "BitwiseOr": _set_bits,
    "BitwiseXor": _set_bits,
    "LShift": _left,
    "RShift": _right,
    **dict.fromkeys(("Min", "Max"), _same_positive),
    **dict.fromkeys(("LT", "LE", "GT", "GE", "EQ", "NE", "And", "Or"), _same),
}
_BINARY_CALLS = {
    "bitwise_and": masked,
    "bitwise_or": _set_bits,
    "bitwise_xor": _set_bits,
    "shift_left": _left,
    "shift_right": _right,
    "handle_add_byte_offset": plus,
    "ptx.addr": plus,
}
_IDENTITY = ("likely", "cuda.cvta_generic_to_shared", "cuda.smem_addr_from_uint64")
_OF_THE_THREAD = ("cuda.elect_sync", "cuda.thread_rank", "large_uint_imm", "isnullptr")


def _converted(node: Any, known: Known) -> Moved:
    inner = shift_of(node.value if hasattr(node, "value") else node.a, known)
    if not isinstance(inner, Shift) or not inner.step:
        return inner if type(node) is tirx.Cast else unmoved([inner])
    wide = type(node) is tirx.Cast and dtype_of(node) in ("int32", "uint32", "int64", "uint64")
    return inner if wide else None


def index_of(indices: Any, known: Known) -> Moved:
    """Return the claim about the place of an element."""
    if len(indices) == 1:
        return shift_of(indices[0], known)
    return unmoved([shift_of(index, known) for index in indices])


def _loaded(node: ir.TensorLoad, known: Known) -> Moved:
    place = index_of(node.indices, known)
    if not node.source.scope().startswith("local") or node.source in known.tainted:
        return DATA
    if not isinstance(place, Shift):
        return place
    return None if place.value is None else known.registers.get((node.source, place.value))


def _scaled(place: Moved, size: int) -> Moved:
    return both(place, Shift(1, 0, True, size), times)


def _called(node: ir.Call, known: Known) -> Moved:
    name = short_name(node)
    if name in _BINARY_CALLS:
        a, b = (shift_of(arg, known) for arg in node.args[:2])
        return both(a, b, _BINARY_CALLS[name])
    if name in _IDENTITY:
        return shift_of(node.args[0], known)
    if name == "reinterpret":
        inner = shift_of(node.args[0], known)
        return inner if isinstance(inner, Shift) and not inner.step else unmoved([inner])
    if name in _OF_THE_THREAD:
        return FIXED
    if name == "if_then_else":
        return unmoved([shift_of(arg, known) for arg in node.args[:3]])
    if name == "buffer_data":
        return known.values.get(node.args[0], FIXED)
    if name == "address_of":
        return _address_of(node.args[0], known)
    if name == "tvm_access_ptr":
        size = numpy_dtype(dtype_of(node.args[0])).itemsize
        offset = _scaled(shift_of(node.args[2], known), size)
        return both(shift_of(node.args[1], known), offset, plus)
    return DATA


def _address_of(target: Any, known: Known) -> Moved:
    if not isinstance(target, ir.TensorLoad):
        return FIXED  # address of a parameter: a tensor map
    base = known.values.get(target.source, FIXED)
    size = numpy_dtype(str(target.source.ty.dtype.dtype)).itemsize
    return both(base, _scaled(index_of(target.indices, known), size), plus)
