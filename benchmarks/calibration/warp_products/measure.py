"""Run forms on the GPU: a module for some of them, a launch for each."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from . import forms, judge, movement
from .operands import Fragments

AT_ONCE = 50  # forms of one file
WARPS_OF_A_BLOCK = 4


def _launch(gpu: Any, module: Any, name: str, warps: int, arrays: list[np.ndarray]) -> list[Any]:
    """Launch a kernel on arrays; return the pointers, which the caller frees."""
    pointers = [gpu.upload(np.ascontiguousarray(array)) for array in arrays]
    types = (ctypes.c_void_p,) * len(pointers)
    gpu.launch(module, name, warps // WARPS_OF_A_BLOCK, 0, [int(p) for p in pointers], types)
    return pointers


class ProductsOnGpu:
    """Runs the forms of one compiled file: `judge.rows_of`."""

    def __init__(self, gpu: Any, some: list[forms.WarpForm]) -> None:
        self.gpu, self.module = gpu, gpu.load(forms.text_of(some))
        self.number = {form: i for i, form in enumerate(some)}

    def __call__(self, form: forms.WarpForm, given: Fragments) -> np.ndarray:
        """Return D, uint8 (warps, 32, bytes of a lane)."""
        warps = len(given.a)
        out = np.full((warps, 32, form.result_bytes), 0xCD, np.uint8)
        name = f"form_{self.number[form]}"
        arrays = [given.a, given.b, given.c, given.words, out]
        pointers = _launch(self.gpu, self.module, name, warps, arrays)
        found: np.ndarray = self.gpu.fetch(pointers[-1], out)
        _free(pointers)
        return found


class MovementsOnGpu:
    """Runs matrix movement: `movement.rows_of`."""

    def __init__(self, gpu: Any, some: list[movement.Movement]) -> None:
        self.gpu, self.module = gpu, gpu.load(movement.text_of(some))
        self.number = {form: i for i, form in enumerate(some)}

    def __call__(
        self, form: movement.Movement, given: movement.MovementInput
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return registers and shared memory after the instruction."""
        out, after = np.zeros_like(given.registers), np.zeros_like(given.image)
        name = f"form_{self.number[form]}"
        arrays = [given.image, given.offsets, given.registers, out, after]
        pointers = _launch(self.gpu, self.module, name, movement.WARPS, arrays)
        found = (self.gpu.fetch(pointers[3], out), self.gpu.fetch(pointers[4], after))
        _free(pointers)
        return found


def _free(pointers: list[Any]) -> None:
    from cuda.bindings import driver

    from ..layouts.device import call

    for pointer in pointers:
        call(driver.cuMemFree(pointer))


def measure_part(gpu: Any, part: str) -> list[dict[str, Any]]:
    """Run "mma", "mma.sp" or "matrices"; return a row a form."""
    if part == "matrices":
        some = movement.movements()
        return movement.rows_of(MovementsOnGpu(gpu, some), some)
    rows, all_ = [], forms.forms(sparse=part == "mma.sp")
    for start in range(0, len(all_), AT_ONCE):
        few = all_[start : start + AT_ONCE]
        rows += judge.rows_of(ProductsOnGpu(gpu, few), few)
    return rows
