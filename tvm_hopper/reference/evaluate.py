"""Evaluate a plain program on boxes of its outputs, with an error bound for each element."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import ir, tirx

from tvm_hopper.facts.arch import FLOAT8_SUM_BITS
from tvm_hopper.facts.dtypes import DTYPES

from .emit import ReferenceEmitter, build, carrier_dtype
from .float8_sums import NUM_CUTS, sum_of_cuts
from .plain import PlainProgramError, dtype_of, pick_function, read, variables
from .reductions import added_term, integral_buffers
from .regions import Box, Interval, Needs, deciding_buffers, index_of, infer, interval, loaded
from .rounding import FORMATS

MAX_WORK = 1 << 34  # stores of one evaluation
MAX_BYTES = 4 << 30  # of boxes
CONFIDENCE = 6.0  # standard deviations, see `Reference.evaluate`


class TooMuchWork(PlainProgramError):
    """A part of an output that needs more of the program than can be computed here."""


@dataclass(frozen=True)
class Expected:
    """The expected values of one output box.

    - `value` (numpy.ndarray): float64 for floats, else of the output's type.
    - `error` (numpy.ndarray): float64: how far an element may be from its value; 0: not at all; inf
      or NaN: nothing is known.
    """

    box: Box
    value: np.ndarray
    error: np.ndarray


@dataclass(frozen=True)
class Outside:
    """An index from memory that leads the program outside of a tensor.

    - `axis`, `index`, `extent`: where, by which index, and what the axis has.
    - `sources`: tensors that the index is read from.
    """

    tensor: str
    axis: int
    index: int
    extent: int
    sources: tuple[str, ...]


class Reference:
    """A plain program, ready to be evaluated.

    - `outside` (list of Outside): what the evaluations so far have met.
    - `plain` (IRModule, PrimFunc or Schedule): loops and stores, scheduled or not; loops that are
      bound to threads are run one by one.
    - `name`: the function, if there are several.
    - `tf32`: whether a kernel may multiply float32 by the 10 highest bits of its fraction.
    - `float8`: whether a kernel may sum products of float8 as WGMMA does (`float8_sums`).
    - `moved_roundings`: whether a kernel may round what the program rounds to 16 bits in between at
      another scale, as attention does with weights before their sum is known.
    - raises PlainProgramError: the program has a statement whose meaning is not known here.
    """

    def __init__(
        self,
        plain: Any,
        name: str | None = None,
        tf32: bool = False,
        float8: bool = False,
        moved_roundings: bool = False,
    ) -> None:
        self.function = pick_function(plain, name)
        self.program = read(self.function)
        self.emitter = ReferenceEmitter(self.program, tf32, float8, moved_roundings)
        self.outside: list[Outside] = []
        self.call = build(self.emitter.function)

    @property
    def params(self) -> list[Any]:
        """Parameters, in order."""
        return self.program.params

    @property
    def output_places(self) -> list[int]:
        """Positions of the parameters that the program stores to."""
        return [i for i, p in enumerate(self.params) if p in self.program.outputs]

    @property
    def positions(self) -> list[int]:
        """Positions of the parameters that indices, extents or conditions depend on."""
        deciding: set[Any] = set()
        for place in self.program.places:
            deciding |= deciding_buffers(place)
        return [i for i, p in enumerate(self.params) if p in deciding]

    def legal_indices(self, arguments: Sequence[Any]) -> dict[int, int]:
        """Return how many indices from 0 are legal, of parameters that are nothing but indices."""
        known = {var: (size, size) for var, size in self.sizes(arguments).items()}
        found: dict[Any, int] = {}
        for load, axis in self.emitter.checks:
            source, extent = index_of(load, axis), interval(load.source.shape[axis], known)
            if source is not None and extent is not None:
                found[source] = min(found.get(source, extent[0]), extent[0])
        for place in self.program.places:
            for buffer in deciding_buffers(place, indices=False) & found.keys():
                del found[buffer]
        return {i: found[p] for i, p in enumerate(self.params) if p in found}

    def one_element(self, arguments: Sequence[Any]) -> Needs:
        """Return what an element in the middle of each output needs."""
        return self._needs(arguments, lambda size: (size // 2, size // 2))

    def everything(self, arguments: Sequence[Any]) -> Needs:
        """Return what all outputs need: a sum that elements share counts once."""
        return self._needs(arguments, lambda size: (0, size - 1))

    def _needs(self, arguments: Sequence[Any], part: Callable[[int], Interval]) -> Needs:
        boxes = {}
        for place in self.output_places:
            shape = arguments[place].shape
            if math.prod(shape):
                boxes[self.params[place]] = tuple(map(part, shape))
        return infer(self.program, self.sizes(arguments), boxes, self._given(arguments))

    def sums(self, arguments: Sequence[Any]) -> list[tuple[int, int]]:
        """Return precision and length of each sum of floats."""
        lengths = self.sum_lengths(self.one_element(arguments))
        return [(self._precision(buffer), length) for buffer, length in lengths.items()]

    def _precision(self, buffer: Any) -> int:
        """Return how many bits of a sum are kept."""
        if buffer in self.emitter.cut_sums:
            return FLOAT8_SUM_BITS + 1
        return FORMATS[dtype_of(buffer)].precision

    def sizes(self, arguments: Sequence[Any]) -> dict[Any, int]:
        """Return the variables that arguments give a value: scalars, extents, strides, offsets.

        - raises ValueError: an argument has another type, rank or extent than its parameter.
        """
        if len(arguments) != len(self.params):
            raise ValueError(
                f"against: found {len(self.params)} parameters of {self.program.name}, and "
                f"{len(arguments)} arguments of the kernel; need the same, in the same order"
            )
        sizes: dict[Any, int] = {}
        for param, argument in zip(self.params, arguments, strict=True):
            if not tirx.is_buffer_var(param):
                if dtype_of(param) not in FORMATS:
                    sizes[param] = int(argument)
                continue
            self._check(param, argument)
            for extent, size in zip(param.shape, argument.shape, strict=True):
                if isinstance(extent, ir.Var) and sizes.setdefault(extent, size) != size:
                    raise self._mismatch(param, argument)
                if isinstance(extent, tirx.IntImm) and int(extent) != size:
                    raise self._mismatch(param, argument)
        return sizes

    def _given(self, arguments: Sequence[Any]) -> dict[Any, np.ndarray]:
        """Return the tensors of integers that stay as they are."""
        return {
            param: argument
            for param, argument in zip(self.params, arguments, strict=True)
            if isinstance(argument, np.ndarray)
            and argument.dtype.kind in "iu"
            and param not in self.program.outputs
        }

    def _check(self, param: Any, argument: Any) -> None:
        dtype = dtype_of(param)
        same = isinstance(argument, np.ndarray) and argument.ndim == len(param.shape)
        if not same or dtype not in DTYPES or argument.dtype != DTYPES[dtype].numpy:
            raise self._mismatch(param, argument)

    def _mismatch(self, param: Any, argument: Any) -> ValueError:
        shape = "x".join(str(x) for x in param.shape) or "no axes"
        found = f"{argument.dtype} {argument.shape}" if hasattr(argument, "shape") else argument
        return ValueError(
            f"against: found {param.name}, {dtype_of(param)} of {shape}, in {self.program.name}, "
            f"where the kernel has {found}; need the same type and shape"
        )

    def evaluate(self, arguments: Sequence[Any], wanted: Mapping[int, Box]) -> dict[int, Expected]:
        """Evaluate the program on boxes of its outputs.

        Values are those of float64 intermediate results, rounded where the program converts. The
        error of an element bounds what a kernel may be off that sums in another order and in the
        program's own types:

        * each operation adds u |result|, unless it is exact; what comes in is passed on (`lift`);
        * a sum of n terms adds min(n, c sqrt(n)) u sum |term|, with u = 2 ** -precision of its
          type. n u sum |term| holds for every order (Higham, 4.2); c sqrt(n) with c = 6 is what
          holds with probability 1 - 2 exp(-c**2 / 2) if roundings are independent (Higham and
          Mary, A new approach to probabilistic rounding error analysis, 2019, theorem 2.4);
        * nothing at all for a sum of integers whose sum |term| is below 2 ** precision.

        It says nothing about an element whose error is not finite, and cannot see a wrong term that
        is smaller than the error.

        - `arguments` (sequence): numpy arrays and numbers, as the program has before it runs.
        - `wanted`: boxes by the parameter's place; both ends of each interval are included.
        - raises TooMuchWork: the boxes need more than can be computed here.
        """
        sizes = self.sizes(arguments)
        boxes = {self.params[place]: box for place, box in wanted.items()}
        needs = infer(self.program, sizes, boxes, self._given(arguments))
        self._check_cost(needs)
        arrays = self._arrays(arguments, needs)
        meta = self._meta(needs, sizes)
        reals = self._reals(arguments, needs)
        flat = [x for x in self._flatten(arrays)]
        outside = np.zeros(max(2 * len(self.emitter.checks), 1), np.int64)
        tensors = [tvm.runtime.tensor(x) for x in (meta, reals, outside, *flat)]
        self.call(*tensors)
        results = iter(tensors[3:])
        self._note_outside(tensors[2].numpy(), sizes)
        found: dict[Any, dict[str, np.ndarray]] = {}
        for buffer, parts in arrays.items():
            found[buffer] = {
                what: next(results).numpy().reshape(part.shape) for what, part in parts.items()
            }
        return {
            place: self._expected(self.params[place], box, needs, found, reals)
            for place, box in wanted.items()
        }

    def _note_outside(self, outside: np.ndarray, sizes: Mapping[Any, int]) -> None:
        for number, (load, axis) in enumerate(self.emitter.checks):
            left, index = (int(x) for x in outside[2 * number : 2 * number + 2])
            if left:
                known = {var: (size, size) for var, size in sizes.items()}
                extent = interval(load.source.shape[axis], known) or (0, 0)
                names = dict.fromkeys(str(x.name) for x in loaded(load.indices[axis]))
                found = Outside(str(load.source.name), axis, index, extent[0], tuple(names))
                if found not in self.outside:
                    self.outside.append(found)

    def _check_cost(self, needs: Needs) -> None:
        size = 8 * sum(math.prod(h - low + 1 for low, h in box) for box in needs.boxes.values())
        if needs.work > MAX_WORK or size > MAX_BYTES:
            raise TooMuchWork(
                f"against: function {self.program.name}: a part of its outputs needs about "
                f"{needs.work:.1e} steps and {size >> 20} MiB of buffers; {MAX_WORK:.1e} and "
                f"{MAX_BYTES >> 20} are what is computed here"
            )

    def _arrays(self, arguments: Sequence[Any], needs: Needs) -> dict[Any, dict[str, np.ndarray]]:
        given = dict(zip(self.params, arguments, strict=True))
        arrays = {}
        for buffer, carrier in self.emitter.carriers.items():
            box = needs.boxes.get(buffer, tuple((0, -1) for _ in buffer.shape))
            shape = tuple(high - low + 1 for low, high in box)
            dtype = DTYPES[carrier_dtype(dtype_of(buffer))].numpy
            if buffer in given:
                part = given[buffer][tuple(slice(low, high + 1) for low, high in box)]
                part = np.moveaxis(part, carrier.fast, -1) if part.ndim else part
                value = np.ascontiguousarray(part, dtype).reshape(part.shape)  # of no axis, too
            else:
                value = np.zeros(shape, dtype)
            parts = {"value": value}
            if carrier.error is not None:
                parts["error"] = np.zeros(shape)
            if carrier.terms is not None:
                parts["terms"] = np.abs(value)
            if carrier.cuts is not None:
                parts["cuts"] = np.zeros((*shape, NUM_CUTS))
            arrays[buffer] = parts
        return arrays

    @staticmethod
    def _flatten(arrays: Mapping[Any, Mapping[str, np.ndarray]]) -> Any:
        return (part.reshape(-1) for parts in arrays.values() for part in parts.values())

    def _meta(self, needs: Needs, sizes: Mapping[Any, int]) -> np.ndarray:
        numbers: dict[Any, int] = {(var, "is"): size for var, size in sizes.items()}
        for loop, (low, high) in needs.ranges.items():
            numbers[loop, "low"], numbers[loop, "count"] = low, high - low + 1
        for buffer, box in needs.boxes.items():
            step = 1
            fast = self.emitter.carriers[buffer].fast
            for axis in [fast, *(i for i in reversed(range(len(box))) if i != fast)] if box else []:
                low, high = box[axis]
                numbers[buffer, ("low", axis)] = low
                numbers[buffer, ("size", axis)] = high - low + 1
                numbers[buffer, ("step", axis)] = step
                step *= high - low + 1
        meta = np.zeros(max(len(self.emitter.meta), 1), np.int64)
        for key, place in self.emitter.meta.items():
            meta[place] = numbers.get(key, 0)
        return meta

    def _reals(self, arguments: Sequence[Any], needs: Needs) -> np.ndarray:
        given = dict(zip(self.params, arguments, strict=True))
        integral = integral_buffers(self.program, given)
        lengths = self.sum_lengths(needs)
        numbers: dict[Any, float] = {}
        for buffer, length in lengths.items():
            fmt = FORMATS[dtype_of(buffer)]
            twice = 2 if dtype_of(buffer) == "float64" else 1  # the values are float64 themselves
            scale = min(length, CONFIDENCE * math.sqrt(length)) * fmt.roundoff * twice
            numbers[buffer, "scale"] = scale
            whole = buffer in integral
            numbers[buffer, "limit"] = 2.0 ** self._precision(buffer) if whole else -1.0
        for param, argument in given.items():
            if (param, "is") in self.emitter.reals:
                numbers[param, "is"] = float(argument)
        reals = np.zeros(max(len(self.emitter.reals), 1))
        for key, place in self.emitter.reals.items():
            reals[place] = numbers.get(key, 0.0)
        return reals

    def sum_lengths(self, needs: Needs) -> dict[Any, int]:
        """Return how many terms go into one element of each sum, at most."""
        lengths: dict[Any, int] = dict.fromkeys(self.emitter.sums, 0)
        for place in self.program.places:
            if added_term(place.store) is None:
                continue
            count = 1
            for loop in place.loops:
                if loop in needs.ranges and loop.var not in variables(*place.store.indices):
                    low, high = needs.ranges[loop]
                    count *= high - low + 1
            lengths[place.store.buffer] += count
        return lengths

    def _expected(
        self,
        buffer: Any,
        box: Box,
        needs: Needs,
        found: Mapping[Any, Mapping[str, np.ndarray]],
        reals: np.ndarray,
    ) -> Expected:
        parts = found[buffer]
        value = parts["value"]
        error = parts.get("error", np.zeros(value.shape))
        if "terms" in parts:
            scale, limit = (reals[self.emitter.reals[buffer, x]] for x in ("scale", "limit"))
            terms, largest = parts["terms"], FORMATS[dtype_of(buffer)].largest
            own = terms * scale
            if "cuts" in parts:
                own = own + sum_of_cuts(np.moveaxis(parts["cuts"], -1, 0), np.abs, np.sqrt)
            error = error + np.where(terms > limit, own, 0)
            error = np.where((terms > largest) & np.isfinite(terms), np.inf, error)
        inside = tuple(
            slice(low - first, high - first + 1)
            for (low, high), (first, _) in zip(box, needs.boxes[buffer], strict=True)
        )
        return Expected(box, value[inside], error[inside])
