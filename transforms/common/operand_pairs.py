"""Compute both elements of a word at once: for operands in registers.

    f[0] = (float16(w[8 j] >> 8 t & 15) - 7) * s;  f[1] = (float16(w[8 j] >> 8 t + 4 & 15) - 7) * s
  ->
    words[0] = mul_f16x2(nibbles_float16(w[8 j], t, 7), both_halves(s))

Both elements are the same expression of different operands: sums, differences and products are
computed of two halves at once, each rounded as the program says. Small integers become halves in
few instructions (codegen_patches/half_pairs.py, byte_pairs.py), and a zero point is subtracted
along, which is exact. What has no such form is computed one by one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import tvm_ffi
from tvm import sym, tirx

from tvm_hopper import ir
from tvm_hopper.codegen_patches import byte_pairs, half_pairs
from tvm_hopper.facts.dtypes import DTYPES
from tvm_hopper.facts.programming_model import WORD_BYTES

from .shared_pair_loads import SharedPair

OPERATIONS = {tirx.Add: "add", tirx.Sub: "sub", tirx.Mul: "mul"}
_INTEGER = (tirx.Add, tirx.Sub, tirx.Mul, tirx.FloorDiv, tirx.FloorMod)
BYTE_BITS = 8
NIBBLE_BITS = 4
WORD_BITS = WORD_BYTES * BYTE_BITS
# The largest integer up to which a type has all; of wide types, a larger one than any field.
_MOST = {"int8": 127, "uint8": 255, "float16": 2048, "bfloat16": 256}
_MOST |= {f"{sign}int{bits}": 2**15 - 1 for sign in ("", "u") for bits in (16, 32, 64)}
_MOST |= {"float32": 2**15 - 1, "float64": 2**15 - 1}


@dataclass
class HalfPair:
    """Two 16-bit floats as a word, and the statements and buffers that it needs before it.

    `analyzer` knows the ranges of the variables in indices. `loaded` has both elements of a tile
    that the values read, if it does.
    """

    dtype: str
    analyzer: sym.Analyzer
    loaded: SharedPair | None = None
    before: list[Any] = field(default_factory=list)
    buffers: list[ir.Var] = field(default_factory=list)
    condition: Any = None  # under which memory is read

    def word(self, x: Any, y: Any) -> Any:
        """Return the word of two values of the type; None if it has no such form."""
        op = OPERATIONS.get(type(x))
        if type(x) is not type(y) or ir.dtype_of(x) != self.dtype or ir.dtype_of(y) != self.dtype:
            return None
        if op == "sub" and (zero := self._zero(x.b, y.b)) is not None:
            made = self._integers(x.a, y.a, zero)
            if made is not None:
                return made
        if ir.is_choice(x) and ir.is_choice(y):
            return self._choice(x, y)
        if tvm_ffi.structural_equal(x, y):
            return self._same(x)
        if op is not None:
            parts = [self.word(x.a, y.a), self.word(x.b, y.b)]
            known = all(part is not None for part in parts)
            return half_pairs.compute(op, self.dtype, *parts) if known else None
        made = self._integers(x, y, tirx.const(0, "uint32"))
        return self._bytes(x, y) if made is None else made

    def _choice(self, x: Any, y: Any) -> Any:
        """Return a word of values within bounds, and zeros beyond; None if it is no such choice."""
        conditions, values, zeros = zip(x.args, y.args, strict=True)
        if self.condition is not None or not all(map(ir.is_zero, zeros)):
            return None
        one, other = conditions
        is_same = bool(tvm_ffi.structural_equal(one, other))
        either = self.condition = one if is_same else tirx.Or(one, other)
        word, nothing = self.word(*values), tirx.const(0, "uint32")
        self.condition = None
        if word is None:
            return None
        if not is_same:
            low, high = (
                tirx.Select(condition, tirx.const(mask, "uint32"), nothing)
                for condition, mask in zip(conditions, (0xFFFF, 0xFFFF0000), strict=True)
            )
            word = tirx.bitwise_and(word, tirx.bitwise_or(low, high))
        return tirx.if_then_else(either, word, nothing)

    def _same(self, value: Any) -> Any:
        """Return a word with one value twice."""
        one = ir.new_buffer("half", (1,), self.dtype, "local")
        bits = ir.new_buffer("half_bits", (1,), "uint16", "local")
        loads = ir.find_all(value, ir.TensorLoad)
        if self.condition is not None and any(str(z.source.scope()) != "local" for z in loads):
            value = tirx.if_then_else(self.condition, value, tirx.const(0, self.dtype))
        self.before += [ir.BufferStore(one, value, [0]), tirx.DeclBuffer(bits, data=one.data)]
        self.buffers.append(one)
        return half_pairs.both(tirx.BufferLoad(bits, [0]))

    def _bytes(self, x: Any, y: Any) -> Any:
        """Return a word of the two bytes that were loaded; None if it is none."""
        if self.loaded is None or not isinstance(x, tirx.Cast):
            return None
        registers = self.loaded.registers
        if not byte_pairs.widens(ir.dtype_of(registers), self.dtype) or not all(
            isinstance(z.value, ir.TensorLoad)
            and z.value.source.same_as(registers)
            and ir.is_const(ir.simplify(z.value.indices[0] - self.loaded.first), place)
            for place, z in enumerate((x, y))
        ):
            return None
        count = int(registers.shape[0])
        is_wide = count % 4 == 0 and ir.dtype_of(registers) in byte_pairs.SOURCES
        kind, each = ("uint32", 4) if is_wide else ("uint16", 2)
        words = ir.new_buffer(f"{registers.name}_bytes", (count // each,), kind, "local")
        self.before.append(tirx.DeclBuffer(words, data=registers.data))
        first = self.loaded.first
        word = tirx.BufferLoad(words, [ir.simplify(first // each, self.analyzer)])
        half = tirx.Cast("uint32", ir.simplify(first % 4 // 2, self.analyzer)) if is_wide else 0
        return byte_pairs.widen(ir.dtype_of(registers), self.dtype, word, half)

    def _zero(self, x: Any, y: Any) -> Any:
        """Return a small integer that is subtracted from both, as a uint32; None if it is none."""
        if not tvm_ffi.structural_equal(x, y):
            return None
        if isinstance(x, tirx.FloatImm):
            value = float(x.value)
            is_small = value.is_integer() and 0 <= value <= byte_pairs.MOST_ZERO
            return tirx.const(int(value), "uint32") if is_small else None
        found = Field.of(x, self.analyzer) if isinstance(x, tirx.Cast) else None
        return found.value if found and found.mask <= byte_pairs.MOST_ZERO else None

    def _integers(self, x: Any, y: Any, zero: Any) -> Any:
        """Return a word of two fields of words, minus a number; None if they are none."""
        first, second = Field.of(x, self.analyzer), Field.of(y, self.analyzer)
        if first is None or second is None or first.mask != second.mask:
            return None
        byte_mask, nibble_mask = ((1 << x) - 1 for x in (BYTE_BITS, NIBBLE_BITS))
        if first.mask == byte_mask and self._is_run(first, second, BYTE_BITS, 16):
            half = tirx.Cast("uint32", self.analyzer.simplify(first.shift // 16))
            return byte_pairs.widen("uint8", self.dtype, first.word, half, zero)
        if _most(zero) > half_pairs.MOST_ZERO:
            return None
        if first.mask == nibble_mask and self._is_run(first, second, NIBBLE_BITS, 8):
            byte = tirx.Cast("uint32", self.analyzer.simplify(first.shift // BYTE_BITS))
            return half_pairs.nibbles(self.dtype, first.word, byte, zero)
        if is_apart(first, second, self.analyzer):
            shift = tirx.Cast("uint32", first.shift)
            return half_pairs.nibbles_apart(self.dtype, first.word, shift, zero)
        if first.mask > half_pairs.MOST_SMALL[self.dtype]:
            return None
        return half_pairs.small(self.dtype, first.value, second.value, zero)

    def _is_run(self, first: Field, second: Field, bits: int, step: int) -> bool:
        """Tell whether two fields are neighbours in a word, from a multiple of `step` bits on."""
        apart = self.analyzer.simplify(second.shift - first.shift)
        start = self.analyzer.modular_set(first.shift)
        return (
            ir.is_const(apart, bits)
            and int(start.coeff) % step == int(start.base) % step == 0
            and bool(tvm_ffi.structural_equal(first.word, second.word))
        )


@dataclass(frozen=True)
class Field:
    """Some bits of a word: (word >> shift) & mask, of a uint32 and a signed integer."""

    word: Any
    shift: Any
    mask: int

    @classmethod
    def of(cls, value: Any, analyzer: sym.Analyzer) -> Field | None:
        """Return the field that a value is, converted to a float or not; None if it is none."""
        value, types = _without_casts(value)
        parts = [value.a, value.b] if isinstance(value, tirx.BitwiseAnd) else []
        masks = [x for x in map(ir.static_int, parts) if x is not None]
        if len(masks) != 1 or masks[0] <= 0 or masks[0] & (masks[0] + 1):
            return None
        (mask,), (rest,) = masks, (x for x in parts if ir.static_int(x) is None)
        rest, more = _without_casts(rest)
        moved = isinstance(rest, tirx.RShift)
        word, shift = (rest.a, rest.b) if moved else (rest, tirx.const(0, "int32"))
        shift = analyzer.simplify(_without_casts(shift)[0])
        load = word.value if isinstance(word, tirx.Cast) and moved else word
        is_held = all(mask <= _MOST.get(x, 0) for x in (*types, *more))
        end = shift + mask.bit_length()
        if not is_held or not _is_word(load, word) or not analyzer.can_prove(end <= WORD_BITS):
            return None
        indices = [ir.simplify(x, analyzer) for x in load.indices]
        one: Any = tirx.BufferLoad(load.source, indices)
        return cls(one if ir.dtype_of(one) == "uint32" else tirx.Cast("uint32", one), shift, mask)

    @property
    def moved(self) -> Any:
        """The word with the field's lowest bit first."""
        shift = tirx.Cast("uint32", self.shift)
        return self.word if ir.is_const(self.shift, 0) else tirx.shift_right(self.word, shift)

    @property
    def value(self) -> Any:
        """The field, as a uint32."""
        return tirx.bitwise_and(self.moved, tirx.const(self.mask, "uint32"))


def _most(zero: Any) -> int:
    """Return the largest number that a zero point may be: a constant, or a field."""
    known = ir.static_int(zero)
    return int(zero.b) if known is None else known


def is_apart(first: Field, second: Field, analyzer: sym.Analyzer) -> bool:
    """Tell two nibbles at the same place of the lower and of the upper half of a word."""
    is_nibble = first.mask == second.mask == (1 << NIBBLE_BITS) - 1
    step, start = analyzer.simplify(second.shift - first.shift), first.shift
    is_even = (
        int(analyzer.modular_set(start).coeff) % 4 == int(analyzer.modular_set(start).base) % 4 == 0
    )
    is_low = analyzer.can_prove(start < WORD_BITS // 2)
    same = tvm_ffi.structural_equal(first.word, second.word)
    return bool(is_nibble and is_even and is_low and same and ir.is_const(step, WORD_BITS // 2))


def _is_word(load: Any, word: Any) -> bool:
    """Tell an integer from memory that is widened to at most 32 bits, or not at all."""
    if not isinstance(load, ir.TensorLoad) or "int" not in ir.dtype_of(load):
        return False
    sizes = [DTYPES[ir.dtype_of(x)].num_bytes for x in (load, word)]
    return sizes == sorted(sizes) and sizes[1] <= WORD_BYTES


def in_32_bits(value: Any, analyzer: sym.Analyzer) -> Any:
    """Compute integers of 64 bits in 32 where these hold them, as places in a tile."""

    def read(node: Any, mutator: Any) -> Any:
        new = mutator.default_mutate(node)
        if ir.dtype_of(new) != "int64":
            return new
        parts = [_narrow(new.a), _narrow(new.b)]
        bound = analyzer.const_int_bound(node)
        fits = -(2**31) < int(bound.min_value) <= int(bound.max_value) < 2**31
        if not fits or any(x is None for x in parts):
            return new
        return tirx.Cast("int64", type(new)(*parts))

    return ir.mutate(value, [(kind, read) for kind in _INTEGER])


def _narrow(value: Any) -> Any:
    """Return an integer of 64 bits in 32, None if it is not known to be one."""
    if isinstance(value, tirx.Cast):
        return value.value if ir.dtype_of(value.value) == "int32" else None
    known = ir.static_int(value)
    return None if known is None or abs(known) >= 2**31 else tirx.IntImm("int32", known)


def _without_casts(value: Any) -> tuple[Any, list[str]]:
    """Return what casts are of, and their types."""
    types = []
    while isinstance(value, tirx.Cast):
        types.append(ir.dtype_of(value))
        value = value.value
    return value, types
