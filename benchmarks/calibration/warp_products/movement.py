"""ldmatrix, stmatrix and movmatrix on random rows of shared memory."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np

from tvm_hopper.sim.layouts.fragments import matrices_of, registers_of

PART = "matrix movement"
WARPS = 32
REGION = 2048  # bytes of shared memory of a warp

_PTX = "{name}.sync.aligned.m8n8.x{number}{trans}.shared.b16"


@dataclass(frozen=True)
class Movement:
    """One form: `name` is ldmatrix, stmatrix or movmatrix."""

    name: str
    number: int
    transposed: bool

    @property
    def opcode(self) -> str:
        """The instruction as PTX spells it."""
        if self.name == "movmatrix":
            return "movmatrix.sync.aligned.m8n8.trans.b16"
        trans = ".trans" if self.transposed else ""
        return _PTX.format(name=self.name, number=self.number, trans=trans)

    def _statement(self) -> str:
        """Return the instruction on r[] and the address p."""
        count = range(self.number)
        if self.name == "movmatrix":
            return f'asm volatile("{self.opcode} %0, %1;" : "=r"(r[0]) : "r"(w[0]));'
        if self.name == "ldmatrix":
            held = ", ".join(f"%{i}" for i in count)
            outs = ", ".join(f'"=r"(r[{i}])' for i in count)
            return (
                f'asm volatile("{self.opcode} {{{held}}}, [%{self.number}];" '
                f': {outs} : "r"(p) : "memory");'
            )
        held = ", ".join(f"%{i + 1}" for i in count)
        ins = ", ".join(f'"r"(w[{i}])' for i in count)
        return f'asm volatile("{self.opcode} [%0], {{{held}}};" :: "r"(p), {ins} : "memory");'

    def source(self, kernel: str) -> str:
        """Return a kernel: image, offsets of rows, registers in -> registers and image out."""
        return f"""
extern "C" __global__ void {kernel}(const unsigned* image, const unsigned* offsets,
        const unsigned* in, unsigned* out, unsigned* after) {{
    __shared__ __align__(128) unsigned tile[4][{REGION // 4}];
    const int t = blockIdx.x * blockDim.x + threadIdx.x, warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32, first = t / 32 * {REGION // 4};
    for (int i = lane; i < {REGION // 4}; i += 32) tile[warp][i] = image[first + i];
    unsigned r[4] = {{0, 0, 0, 0}}, w[4];
    for (int i = 0; i < 4; ++i) w[i] = in[t * 4 + i];
    const unsigned p = (unsigned)__cvta_generic_to_shared(tile[warp]) + offsets[t];
    __syncthreads();
    {self._statement()}
    __syncthreads();
    for (int i = 0; i < 4; ++i) out[t * 4 + i] = r[i];
    for (int i = lane; i < {REGION // 4}; i += 32) after[first + i] = tile[warp][i];
}}"""


def movements() -> list[Movement]:
    """Return every form that Hopper has."""
    several = itertools.product(("ldmatrix", "stmatrix"), (1, 2, 4), (False, True))
    return [*(Movement(*form) for form in several), Movement("movmatrix", 1, True)]


def text_of(some: list[Movement]) -> str:
    """Return one CUDA file with a kernel for each form: form_0, form_1, ..."""
    return "\n".join(form.source(f"form_{i}") for i, form in enumerate(some))


@dataclass(frozen=True)
class MovementInput:
    """Words of shared memory (WARPS, REGION / 4), offsets of rows and registers of lanes."""

    image: np.ndarray
    offsets: np.ndarray
    registers: np.ndarray


def draw(seed: int = 0) -> MovementInput:
    """Draw shared memory, rows that do not overlap, and registers."""
    rng = np.random.default_rng(seed)
    rows = [rng.permutation(REGION // 16)[:32] * 16 for _ in range(WARPS)]
    return MovementInput(
        rng.integers(0, 2**32, (WARPS, REGION // 4)).astype(np.uint32),
        np.array(rows, np.uint32),
        rng.integers(0, 2**32, (WARPS, 32, 4)).astype(np.uint32),
    )


def simulated(form: Movement, given: MovementInput) -> tuple[np.ndarray, np.ndarray]:
    """Return registers (WARPS, 32, 4) and shared memory as the simulator has them after it."""
    out = np.zeros((WARPS, 32, 4), np.uint32)
    after = given.image.copy()
    for warp in range(WARPS):
        held = given.registers[warp].T[: form.number]
        if form.name == "movmatrix":
            out[warp, :, 0] = registers_of(matrices_of(held, False), True)[0]
            continue
        rows = given.offsets[warp, : 8 * form.number].astype(np.int64).reshape(-1, 8, 1)
        cells, places = after[warp].view(np.uint16), rows // 2 + np.arange(8)
        if form.name == "ldmatrix":
            out[warp, :, : form.number] = registers_of(cells[places], form.transposed).T
        else:
            cells[places] = matrices_of(held, form.transposed)
    return out, after


def rows_of(run: Any, some: list[Movement], seed: int = 0) -> list[dict[str, Any]]:
    """Return a row a form: how many warps have every register and byte as simulated.

    Parameters
    ----------
    run : callable
        (form, input) -> registers and shared memory, as `simulated`.
    """
    given, rows = draw(seed), []
    for form in some:
        pairs = zip(simulated(form, given), run(form, given), strict=True)
        same = np.ones(WARPS, bool)
        for mine, theirs in pairs:
            same &= (mine == theirs).reshape(WARPS, -1).all(1)
        row = {"part": PART, "kind": form.opcode, "tried": WARPS, "as decoded": int(same.sum())}
        rows.append(row)
    return rows
