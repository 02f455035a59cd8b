"""Problem classes: a function's legal configurations, features and time bound.

One file for each kind of kernel: `matmul_problems.py`, `memory_problems.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.target import Target

from tvm_hopper import ir
from tvm_hopper.facts.devices import Chip
from tvm_hopper.facts.dtypes import dtype_bytes
from tvm_hopper.requests.targets import chip_of_target

from .configurations import Configuration, kind_of
from .scheduling import schedule_with
from .versions import part

Floats = np.ndarray[Any, np.dtype[np.float64]]

MEMORY_BYTES_PER_US = 4.8e6  # of an H200
MULTIPLY_ADDS_PER_CYCLE = 2048  # of an SM, of 16-bit values
CACHE_BYTES = 50 << 20  # of the L2 cache: what fits may be there when a kernel is measured
LAUNCH_US = 1.5  # that no kernel is below


@dataclass(frozen=True, eq=False)
class Problem:
    """A static function in plain loops, and the target that it is tuned for.

    - `mod`: the function alone, called main, see `scheduling.canonical`.
    - `form`: kind, types and layouts. Configurations of problems of one form may be tried on each
      other.
    - `extents`: what distinguishes problems of one form.
    - `moved_bytes`: bytes of all tensors: what at least is read or written.
    - `multiply_adds`: of the tensor cores.
    """

    mod: tvm.IRModule
    target: Target
    form: str
    extents: tuple[int, ...]
    moved_bytes: int
    multiply_adds: int

    @property
    def key(self) -> str:
        """The name of the function on its target, in records."""
        return key_of(self.mod, self.target)

    @property
    def chip(self) -> Chip:
        """The chip of the target."""
        return chip_of_target(self.target)

    @property
    def bound_us(self) -> float:
        """Microseconds that no configuration can be below."""
        chip = self.chip
        rate = MULTIPLY_ADDS_PER_CYCLE * chip.tensor_rate * chip.num_sms * chip.megahertz
        beyond = max(0, self.moved_bytes - CACHE_BYTES)
        memory = beyond / (MEMORY_BYTES_PER_US * chip.memory_rate)
        return max(LAUNCH_US, self.multiply_adds / rate, memory)

    def schedule(self, config: Configuration) -> s_tir.Schedule:
        """Schedule the function; the schedule carries the configuration.

        - raises ScheduleError: the configuration does not fit.
        """
        with self.target:
            return schedule_with(self.mod, config)

    def built_in(self) -> Configuration:
        """Return the configuration that leaves all choices to the package."""
        raise NotImplementedError

    def resolved(self, config: Configuration) -> Configuration:
        """Return a configuration with what it leaves open, as far as that is known beforehand."""
        raise NotImplementedError

    def configurations(self) -> list[Configuration]:
        """List what is worth a trial; a few of them may still be refused by `schedule`."""
        raise NotImplementedError

    def estimates(self, configs: list[Configuration]) -> Floats:
        """Return the time of each by the package's own model, in microseconds."""
        raise NotImplementedError

    def shape_of(self, config: Configuration) -> Any:
        """Return what of a configuration the estimate may be wrong about as a whole."""
        return kind_of(config)

    def features(self, configs: list[Configuration]) -> Floats:
        """Return what a cost model sees of each: a row of numbers around 0, of a spread of 1."""
        raise NotImplementedError


def key_of(mod: tvm.IRModule, target: Target) -> str:
    """Name a function and the part that it is for: by structure, so the same in every process."""
    number = int(tvm_ffi.structural_hash(mod)) & (1 << 64) - 1
    return "-".join([f"{number:016x}", *map(str, part(target).values())])


def bytes_of(func: tirx.PrimFunc) -> int:
    """Return the bytes of all tensors among the arguments of a static function."""
    total = 0
    for param in func.params:
        if tirx.is_buffer_var(param):
            count = prod(ir.static_int(x) or 1 for x in param.ty.shape)
            total += count * dtype_bytes(ir.dtype_of(param))
    return total
