"""Run forms on the GPU: one module for some of them, one launch for each."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from cuda.bindings import driver

from ..layouts.device import Gpu, call
from .forms import HEAD, Form
from .operands import COUNT

BLOCK = 128  # threads, as `Gpu.launch` has it


def text_of(forms: list[Form]) -> str:
    """Return one CUDA file with a kernel for each form: form_0, form_1, ..."""
    return HEAD + "\n".join(form.source(f"form_{i}") for i, form in enumerate(forms))


class FormsOnGpu:
    """Runs the forms of one compiled file: `measure.Run`."""

    def __init__(self, gpu: Gpu, forms: list[Form]) -> None:
        self.gpu, self.module = gpu, gpu.load(text_of(forms))
        self.number = {form: i for i, form in enumerate(forms)}

    def __call__(self, form: Form, columns: list[np.ndarray]) -> list[np.ndarray]:
        """Return the bits of each result."""
        outs = [np.zeros(COUNT, f"uint{8 * np.dtype(dtype).itemsize}") for _, dtype in form.targets]
        pointers: list[Any] = [self.gpu.upload(array) for array in (*columns, *outs)]
        values = [int(pointer) for pointer in pointers]
        types = (ctypes.c_void_p,) * len(pointers)
        name = f"form_{self.number[form]}"
        self.gpu.launch(self.module, name, COUNT // BLOCK, 0, values, types)
        kept = zip(pointers[len(columns) :], outs, strict=True)
        got = [self.gpu.fetch(pointer, out) for pointer, out in kept]
        for pointer in pointers:
            call(driver.cuMemFree(pointer))
        return got
