"""A product on parts and views of tensors, or in another form, judged against the plain program.

The plain program runs on the CPU, as it was written. Every tensor lies inside poison, gaps between
its rows included, and comes back whole: what the program leaves alone has to be as it was.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .matmul_case import TARGET, TOLERANCE, register


@dataclass(frozen=True)
class FormCase:
    """One of `tvm_hopper.testing.forms.FORMS` at one size."""

    form: str
    m: int
    n: int
    k: int
    dtype: str = "float16"
    expect_refusal: bool = False

    @property
    def name(self) -> str:
        """A text that tells the case from every other."""
        return f"{self.form} {self.m}x{self.n}x{self.k} {self.dtype}"


def program(case: FormCase) -> Any:
    """Return the plain program."""
    from tvm_hopper.testing.forms import FORMS

    return FORMS[case.form](case.m, case.n, case.k, case.dtype)


def build(case: FormCase) -> Any:
    """Schedule and compile a case; returns TVM's executable."""
    import tvm
    from tvm import s_tir

    from tvm_hopper import schedule as hs

    register()
    sch = s_tir.Schedule(program(case))
    hs.matmul(sch, "C")
    return tvm.compile(sch.mod, target=TARGET)


def check(case: FormCase, run: Any, seed: int = 0) -> dict[str, float]:
    """Run a built case on integers, bit for bit, and on normal inputs; returns relative errors."""
    import tvm

    plain = tvm.compile(program(case), target="llvm")
    return {kind: _check_one(case, run, plain, kind, seed) for kind in ("integer", "normal")}


def _check_one(case: FormCase, run: Any, plain: Any, kind: str, seed: int) -> float:
    import numpy as np
    import tvm_ffi

    from tvm_hopper.testing.tensors import Tensor, places

    rng = np.random.default_rng(seed)
    want: dict[str, Tensor] = {}
    for name, place in places(program(case)["main"]).items():
        values = (
            rng.integers(-2, 3, place.shape)
            if kind == "integer"
            else rng.standard_normal(place.shape)
        )
        want[name] = Tensor.make(place, values)
    on_device = {name: DeviceTensor.of(tensor) for name, tensor in want.items()}
    run(*(x.view for x in on_device.values()))
    got = {name: x.back() for name, x in on_device.items()}
    plain["main"](*(tvm_ffi.from_dlpack(dlpack(x)) for x in want.values()))
    worst = 0.0
    for name, tensor in want.items():
        where = f"{case.name}, {name}, {kind} inputs"
        mine, right = got[name].astype("float64"), tensor.memory.astype("float64")
        if kind == "integer":
            wrong = np.flatnonzero(mine != right)
            assert not len(wrong), (
                f"{where}: found {len(wrong)} of {len(mine)} elements wrong, poison and gaps "
                f"counted, first at {wrong[0]}: {mine[wrong[0]]}; need {right[wrong[0]]}"
            )
            continue
        error = float(np.linalg.norm(mine - right) / np.linalg.norm(right))
        limit = TOLERANCE[tensor.place.dtype]
        assert error < limit, f"{where}: found relative error {error:.2e}; need below {limit:.0e}"
        worst = max(worst, error)
    return worst


def dlpack(tensor: Any) -> Any:
    """Return an array that DLPack can take: bfloat16 goes by way of PyTorch."""
    import torch

    if tensor.place.dtype != "bfloat16":
        return tensor.view
    flat = torch.from_numpy(tensor.memory.view("uint16")).view(torch.bfloat16)
    return _strided(flat, tensor.place)


def _strided(flat: Any, place: Any) -> Any:
    import torch

    from tvm_hopper.testing.tensors import MARGIN

    return torch.as_strided(flat, place.shape, place.strides, MARGIN)


@dataclass(frozen=True)
class DeviceTensor:
    """A tensor and its surroundings on the GPU."""

    flat: Any
    view: Any
    dtype: Any

    @staticmethod
    def of(tensor: Any) -> DeviceTensor:
        """Copy a tensor with all of its memory."""
        import torch
        import tvm_ffi

        memory = tensor.memory
        if tensor.place.dtype == "bfloat16":
            flat = torch.from_numpy(memory.view("uint16")).view(torch.bfloat16).cuda()
        else:
            flat = torch.from_numpy(memory).cuda()
        return DeviceTensor(flat, tvm_ffi.from_dlpack(_strided(flat, tensor.place)), memory.dtype)

    def back(self) -> Any:
        """Return all of the memory, after whatever is still running."""
        import torch

        torch.cuda.synchronize()
        if str(self.dtype) == "bfloat16":
            return self.flat.view(torch.uint16).cpu().numpy().view(self.dtype)
        return self.flat.cpu().numpy()
