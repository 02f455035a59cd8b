"""Compile CUDA text with NVRTC and run it through the driver."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from cuda.bindings import driver, nvrtc

from .instruction import BLOCK_SOURCE, IMAGE_BYTES, THREADS, Instruction


def call(result: Any) -> Any:
    """Return what a driver or NVRTC call gave.

    Raises
    ------
    RuntimeError
        It answered with an error code.
    """
    code, *values = result
    if int(code):
        raise RuntimeError(f"CUDA answers {code!r}")
    return values[0] if len(values) == 1 else values


def compile_text(text: str) -> bytes:
    """Return the cubin for sm_90a; needs no GPU.

    Raises
    ------
    RuntimeError
        NVRTC refuses the text; its log is the message.
    """
    program = call(nvrtc.nvrtcCreateProgram(text.encode(), b"layouts.cu", 0, [], []))
    options = [b"--gpu-architecture=sm_90a"]
    if int(nvrtc.nvrtcCompileProgram(program, len(options), options)[0]):
        log = b" " * call(nvrtc.nvrtcGetProgramLogSize(program))
        call(nvrtc.nvrtcGetProgramLog(program, log))
        raise RuntimeError(log.decode())
    cubin = b" " * call(nvrtc.nvrtcGetCUBINSize(program))
    call(nvrtc.nvrtcGetCUBIN(program, cubin))
    return cubin


def text_of(instructions: list[Instruction]) -> str:
    """Return one CUDA file with a kernel for each instruction."""
    different = {instruction.name: instruction for instruction in instructions}
    return "\n".join([BLOCK_SOURCE, *(i.source() for i in different.values())])


class Gpu:
    """The first GPU of the machine."""

    def __init__(self) -> None:
        call(driver.cuInit(0))
        self.device = call(driver.cuDeviceGet(0))
        call(driver.cuCtxSetCurrent(call(driver.cuDevicePrimaryCtxRetain(self.device))))

    def describe(self) -> dict[str, str]:
        """Return the chip's and the driver's names."""
        name = call(driver.cuDeviceGetName(80, self.device)).decode().strip("\0 ")
        return {"chip": name, "CUDA of the driver": str(call(driver.cuDriverGetVersion()))}

    def load(self, text: str) -> Any:
        """Compile a text and return its module."""
        return call(driver.cuModuleLoadData(compile_text(text)))

    def upload(self, array: np.ndarray) -> Any:
        """Copy an array to the device."""
        pointer = call(driver.cuMemAlloc(max(array.nbytes, 16)))
        call(driver.cuMemcpyHtoD(pointer, array.ctypes.data, array.nbytes))
        return pointer

    def launch(self, module: Any, name: str, grid: int, smem: int, values: Any, types: Any) -> None:
        """Launch blocks of 128 threads and wait for their end."""
        function = call(driver.cuModuleGetFunction(module, name.encode()))
        limit = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        call(driver.cuFuncSetAttribute(function, limit, smem))
        config = (grid, 1, 1, THREADS, 1, 1, smem, 0)
        call(driver.cuLaunchKernel(function, *config, (tuple(values), tuple(types)), 0))
        call(driver.cuCtxSynchronize())

    def fetch(self, pointer: Any, like: np.ndarray) -> np.ndarray:
        """Copy device memory into a new array of that shape."""
        out = np.empty_like(like)
        call(driver.cuMemcpyDtoH(out.ctypes.data, pointer, out.nbytes))
        return out


class WgmmaOnGpu:
    """Runs instructions of one compiled file: `probes.Run`."""

    def __init__(self, gpu: Gpu, instructions: list[Instruction]) -> None:
        self.gpu, self.module = gpu, gpu.load(text_of(instructions))

    def __call__(
        self,
        instruction: Instruction,
        images: np.ndarray,
        blocks: np.ndarray,
        fragments: np.ndarray,
    ) -> np.ndarray:
        """Run each block; return accumulators, uint32 (blocks, 128, registers)."""
        out = np.full((len(blocks), THREADS, instruction.registers), 0xFFFFFFFF, np.uint32)
        arrays = (images, blocks, np.ascontiguousarray(fragments), out)
        pointers = [self.gpu.upload(array) for array in arrays]
        types = (ctypes.c_void_p,) * len(pointers)
        values = [int(pointer) for pointer in pointers]
        self.gpu.launch(self.module, instruction.name, len(blocks), IMAGE_BYTES, values, types)
        got = self.gpu.fetch(pointers[-1], out)
        for pointer in pointers:
            call(driver.cuMemFree(pointer))
        return got
