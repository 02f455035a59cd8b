"""One matmul: built through the package's front door, fed, and judged against float64.

Every tensor lies inside a larger buffer filled with a NaN pattern: a read outside an input shows in
the result, a write outside the output in the margins, an element never written as NaN.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

MARGIN = 4096  # elements of poison before and after each tensor; keeps the alignment
POISON = {"float16": 0x7E5A, "bfloat16": 0x7FA5, "float32": 0x7FC0A5A5}  # NaNs, recognisable
TARGET = "nvidia/nvidia-h200"
# Relative Frobenius error for normal inputs: float32 sums, then one rounding to the output type.
TOLERANCE = {"float32": 2e-5, "float16": 5e-4, "bfloat16": 4e-3}


@dataclass(frozen=True)
class Case:
    """A problem and how to schedule it. `m` None: a symbolic extent, run at each of `sizes`.

    `form` holds further arguments of `workloads.matmul`: how the program is written, its epilogue.
    """

    m: int | None
    n: int
    k: int
    layout: str = "NT"
    dtype: str = "float16"
    out_dtype: str = "float32"
    config: dict[str, Any] = field(default_factory=dict, hash=False)
    form: dict[str, Any] = field(default_factory=dict, hash=False)
    sizes: tuple[int, ...] = ()
    expect_refusal: bool = False
    classes: tuple[int, ...] | None = None  # bounds; None: by the model

    @property
    def name(self) -> str:
        """A text that tells the case from every other."""
        config = ",".join(
            f"{k}={_short(v)}" for k, v in sorted({**self.config, **self.form}.items())
        )
        m = "m" if self.m is None else self.m
        shape = f"{m}x{self.n}x{self.k}"
        return f"{shape} {self.layout} {self.dtype}->{self.out_dtype} {config or 'default'}"

    def as_dict(self) -> dict[str, Any]:
        """Fields as plain values."""
        return dataclasses.asdict(self)


def _short(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return ("x" if all(isinstance(v, int) for v in value) else "+").join(map(str, value))
    if isinstance(value, dict):
        return "+".join(f"{k}:{v}" for k, v in value.items() if v is not None)
    return str(value)


def build(case: Case) -> Any:
    """Schedule and compile a case; returns TVM's executable.

    Raises
    ------
    tvm_hopper.errors.HopperError
        The case cannot be served; the text says why.
    """
    import tvm
    from tvm import s_tir

    import tvm_hopper.testing.workloads as workloads
    from tvm_hopper import schedule as hs

    register()
    mod = workloads.matmul(
        "m" if case.m is None else case.m,
        case.n,
        case.k,
        case.layout,
        case.dtype,
        case.out_dtype,
        **case.form,
    )
    sch = s_tir.Schedule(mod)
    hs.matmul(sch, "C", configuration(case), classes=case.classes)
    return tvm.compile(sch.mod, target=TARGET)


def configuration(case: Case) -> Any:
    """Return the fields that the case names as a configuration; the package chooses the others."""
    from tvm_hopper.meta_schedule.configurations import as_value
    from tvm_hopper.schedule import MatmulConfig

    if not case.config:
        return None
    fields = {k: tuple(v) if isinstance(v, list) else v for k, v in case.config.items()}
    return MatmulConfig(**{name: as_value(name, value) for name, value in fields.items()})


def register() -> None:
    """Put the package's gate in place where it runs from a checkout, without an entry point."""
    from tvm_hopper.integration import autoload

    autoload.register()


def shapes(case: Case, m: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the shapes of A and B."""
    a = (m, case.k) if case.layout[0] == "N" else (case.k, m)
    b = (case.k, case.n) if case.layout[1] == "N" else (case.n, case.k)
    return a, b


def poisoned(shape: tuple[int, ...], dtype: str) -> tuple[Any, Any]:
    """Return a buffer of poison on the GPU and the tensor of `shape` in its middle."""
    import math

    import torch

    count = math.prod(shape)
    integer = torch.int32 if dtype == "float32" else torch.int16
    raw = torch.full((count + 2 * MARGIN,), POISON[dtype], dtype=integer, device="cuda")
    buffer = raw.view(getattr(torch, dtype))
    return raw, buffer[MARGIN : MARGIN + count].view(shape)


def inputs(case: Case, m: int, kind: str, seed: int) -> tuple[Any, ...]:
    """Return A, B and the epilogue's operands, "integer" values in -2..2 or "normal" ones.

    All of them lie inside poison.
    """
    import torch

    generator = torch.Generator(device="cuda").manual_seed(seed)
    made = []
    lead = (1,) if case.form.get("batch") else ()
    a, b = shapes(case, m)
    for shape in ((*lead, *a), b, *(shape for _, shape in epilogue_operands(case, m))):
        _, tensor = poisoned(shape, case.dtype)
        if kind == "integer":
            values = torch.randint(-2, 3, shape, generator=generator, device="cuda")
        else:
            values = torch.randn(shape, generator=generator, device="cuda")
        made.append(tensor.copy_(values))
    return tuple(made)


def epilogue_operands(case: Case, m: int) -> list[tuple[str, tuple[int, ...]]]:
    """Return the name and the shape of each operand that the epilogue reads."""
    kinds = {"bias_row": (m,), "bias_col": (case.n,), "residual": (m, case.n)}
    lead = (1,) if case.form.get("batch") else ()
    return [
        (name, (*lead, *kinds[name]) if name == "residual" else kinds[name])
        for name in case.form.get("epilogue", ())
        if name in kinds
    ]


INEXACT = ("gelu", "silu")  # steps that do not keep integers


def reference(case: Case, a: Any, b: Any, *operands: Any) -> Any:
    """Return the result in float64, before its rounding to the output type."""
    import torch

    left = a.double() if case.layout[0] == "N" else a.double().mT
    value = left @ (b.double() if case.layout[1] == "N" else b.double().t())
    rest = iter(operands)
    steps = {
        "relu": torch.relu,
        "gelu": torch.nn.functional.gelu,
        "silu": torch.nn.functional.silu,
        "scale": lambda x: x * 0.125,
        "bias_col": lambda x: x + next(rest).double(),
        "bias_row": lambda x: x + next(rest).double()[:, None],
        "residual": lambda x: x + next(rest).double(),
    }
    for name in case.form.get("epilogue", ()):
        value = steps[name](value)
    return value


def check(case: Case, run: Any, seed: int = 0) -> dict[str, float]:
    """Run a built case on integer and on normal inputs; returns the relative errors by size.

    Raises
    ------
    AssertionError
        An output is wrong, or something outside it was written.
    """
    errors = {}
    for m in case.sizes or (case.m,):
        for kind in ("integer", "normal"):
            errors[f"m={m} {kind}"] = _check_one(case, run, m, kind, seed)
    return errors


def _check_one(case: Case, run: Any, m: int, kind: str, seed: int) -> float:
    import torch

    given = inputs(case, m, kind, seed)
    lead = (1,) if case.form.get("batch") else ()
    raw, out = poisoned((*lead, m, case.n), case.out_dtype)
    run(*given, out)
    torch.cuda.synchronize()
    where = f"{case.name}, m={m}, {kind} inputs"
    margins = torch.cat([raw[:MARGIN], raw[raw.numel() - MARGIN :]])
    touched = int((margins != POISON[case.out_dtype]).sum())
    assert not touched, f"{where}: found {touched} elements written outside the output; need none"
    if not m:
        return 0.0
    want = reference(case, *given)
    if kind == "integer" and not set(INEXACT) & set(case.form.get("epilogue", ())):
        rounded = want.to(out.dtype)
        wrong = int((out != rounded).sum())  # NaN differs from everything
        first = (out != rounded).nonzero()[0].tolist() if wrong else None
        assert not wrong, (
            f"{where}: found {wrong} of {out.numel()} elements wrong, first at {first}: "
            f"{out[tuple(first)].item()}; need {rounded[tuple(first)].item()}"
        )
        return 0.0
    error = float((out.double() - want).norm() / want.norm())
    limit = TOLERANCE[case.out_dtype]
    assert error < limit, f"{where}: found relative error {error:.2e}; need below {limit:.0e}"
    return error
