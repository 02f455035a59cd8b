"""Random products of every type, with any axes, scales and outputs: `random_products --forms`.

Operands are small integers, whose sums every type holds exactly. Scales are powers of two, or zero,
huge, infinite or NaN at places. So each result is one number, and the kernel must give it bit for
bit. Tensors lie in memory that is filled with poison.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from .form_population import _even_in_logarithm
from .matmul_case import TARGET, register

MARGIN, POISON = 4096, 0x7F  # bytes around each tensor, and what each of them holds
HALVES, FP8 = ("float16", "bfloat16"), ("float8_e4m3fn", "float8_e5m2")
ANY_MAJOR = (  # of 16-bit operands
    "mk,nk->mn", "mk,kn->mn", "km,nk->mn", "km,kn->mn", "bmk,bnk->bmn", "bmk,bkn->bmn",
)  # fmt: skip
FORMULAS = (  # rows of both operands along k
    "mk,nk->mn", "mk,nk->mn", "bmk,bnk->bmn", "bmk,nk->bmn", "mk,bnk->bmn", "bmhk,bnhk->bhmn",
    "bhmk,bhnk->bmhn", "bmk,bnk->mnb", "bshk,nhk->bsn", "imk,jnk->ijmn", "hmk,bhnk->bhmn",
    "bk,bnk->bn", "bmk,k->bm",
)  # fmt: skip
LARGEST = 1 << 30  # multiply-adds
SPECIAL = {"zero": 0.0, "huge": 2.0**127, "infinite": float("inf"), "nan": float("nan")}
LARGEST_FP8 = {"float8_e4m3fn": 448.0, "float8_e5m2": 57344.0}


@dataclass(frozen=True)
class FormsCase:
    """One product, as plain values."""

    formula: str
    extents: dict[str, int]
    dtypes: tuple[str, str]
    out_dtype: str
    scales: dict[str, str] = field(default_factory=dict)  # names, and the axes of each
    special: str = ""  # of `SPECIAL`: what some scales are
    relu: bool = False
    symbolic: bool = False  # whether m is known at the call alone
    config: dict[str, Any] = field(default_factory=dict)

    @property
    def sum_dtype(self) -> str:
        """Type of the sum."""
        return "int32" if "int" in self.dtypes[0] else "float32"

    @property
    def work(self) -> int:
        """Multiply-adds."""
        found = 1
        for extent in self.extents.values():
            found *= extent
        return found

    @property
    def kind(self) -> str:
        """The group that the summary counts it in."""
        return self.dtypes[0] + (", a batch" if self.formula[0] in "bhi" else "")


def draw(rng: random.Random) -> FormsCase:
    """Draw a problem, and for half of them a part of a configuration."""
    pairs = [(x, x) for x in HALVES] + [(x, y) for x in FP8 for y in FP8]
    pairs += [(x, y) for x in ("int8", "uint8") for y in ("int8", "uint8")] + [("float32",) * 2] * 2
    dtypes = rng.choice(pairs)
    step = 8 if dtypes[0] in HALVES else 16
    formula = rng.choice((*FORMULAS, *ANY_MAJOR) if dtypes[0] in HALVES else FORMULAS)
    extents = {}
    while not extents or FormsCase(formula, extents, dtypes, "").work > LARGEST:
        for axis in dict.fromkeys(x for x in formula if x.isalpha()):
            most = {"m": 2048, "n": 2048, "k": 4096, "s": 256}.get(axis, 8)
            extents[axis] = _even_in_logarithm(rng, 1, most, step if axis == "k" else 1)
        for operand in formula.split("->")[0].split(","):  # rows of multiples of 16 bytes
            extents[operand[-1]] = -(-extents[operand[-1]] // step) * step
    out = formula.partition("->")[2]
    finite = ("float32", *HALVES) if dtypes[0] not in ("int8", "uint8") else ("int32", "float32")
    out_dtype = rng.choice(finite)
    scales: dict[str, str] = {}
    special = ""
    if rng.random() < 0.6:
        scales = rng.choice(({"S": "1"}, {"S": out[-2:-1]}, {"T": out[-1]}, {"S": "1", "T": "1"},
                             {"S": out[-2:-1], "T": out[-1]}, {"S": "1", "R": out}))  # fmt: skip
        out_dtype = rng.choice(("float32", *HALVES, *FP8, "int8"))
        if out_dtype != "int8" and rng.random() < 0.3:
            special = rng.choice(tuple(SPECIAL))
    relu = bool(scales) and special != "nan" and special != "infinite" and rng.random() < 0.3
    config = draw_config(rng)
    may = "m" in out and formula[0] != "k"
    symbolic = may and rng.random() < 0.15
    return FormsCase(formula, extents, dtypes, out_dtype, scales, special, relu, symbolic, config)


def draw_config(rng: random.Random) -> dict[str, Any]:
    """Draw fields of a `MatmulConfig`."""
    if rng.random() < 0.5:
        return {}
    return rng.choice(
        (
            {"batch_invariant": True},
            {"form": "transposed"},
            {"store": "tma"},
            {"split_k": {"parts": 2, "mode": rng.choice(("cluster", "workspace", "serial"))}},
            {"split_k": {"parts": rng.randint(2, 6), "mode": "caller"}},
            {"split_k": "stream"},
            {"cluster": rng.choice(((1, 2), (2, 1), (2, 2)))},
            {"schedule": "pingpong", "persistent": -1, "consumers": rng.choice((2, 3))},
            {"tile": (rng.choice((64, 128, 192)), rng.randrange(8, 257, 8), 128)},
        )
    )


def build(case: FormsCase) -> Any:
    """Schedule and compile a case; returns TVM's executable."""
    import tvm
    from tvm import s_tir
    from tvm.target import Target

    from tvm_hopper import schedule as hs
    from tvm_hopper.meta_schedule.configurations import as_value
    from tvm_hopper.testing.contractions import contraction

    register()
    extents: dict[str, Any] = dict(case.extents)
    if case.symbolic:
        extents["m"] = "ms"
    epilogue = _epilogue(case) if case.scales or case.out_dtype != case.sum_dtype else None
    mod = contraction(
        case.formula, extents, case.dtypes, case.sum_dtype, epilogue, dict(case.scales)
    )
    fields = {name: as_value(name, value) for name, value in case.config.items()}
    if case.dtypes[0] == "float32":
        fields["operands"] = "tf32"
    sch = s_tir.Schedule(mod)
    with Target(TARGET):
        hs.matmul(sch, "C", hs.MatmulConfig(**fields) if fields else None)
    return tvm.compile(sch.mod, target=TARGET)


def _epilogue(case: FormsCase) -> Any:
    from tvm import te

    def element(total: Any, *at: Any, **scales: Any) -> Any:
        value = total(*at)
        if case.scales:
            value = value.astype("float32")
        place = dict(zip(case.formula.partition("->")[2], at, strict=True)) | {"1": 0}
        for name, axes in case.scales.items():
            other = scales[name](*(place[x] for x in axes))
            value = value + other if name == "R" else value * other
        if case.relu:
            value = te.max(value, te.const(0.0, "float32"))
        if case.out_dtype == "int8":
            value = te.max(te.min(te.round(value), te.const(127.0)), te.const(-128.0))
        return value.astype(case.out_dtype)

    return element


def check(case: FormsCase, run: Any, seed: int) -> None:
    """Run a case on inputs of a seed.

    Raises
    ------
    AssertionError
        An element differs from the one right number, or something was written beside the output.
    """
    import torch

    from .forms import as_argument

    torch.manual_seed(seed)
    inputs, out = case.formula.split("->")
    memory: list[Any] = []

    def placed(values: Any) -> Any:
        """Copy a tensor into memory of its own between poison."""
        count = values.numel() * values.element_size()
        memory.append(torch.full((count + 2 * MARGIN,), POISON, dtype=torch.uint8, device="cuda"))
        inside = memory[-1][MARGIN : MARGIN + count].view(values.dtype).view(values.shape)
        inside.copy_(values)
        return inside

    operands = []
    for axes, dtype in zip(inputs.split(","), case.dtypes, strict=True):
        low = 0 if dtype == "uint8" else -2
        shape = [case.extents[x] for x in axes]
        values = torch.randint(low, 3, shape, device="cuda").float()
        operands.append(placed(values.to(getattr(torch, dtype))))
    want = torch.einsum(case.formula, *(x.double() for x in operands))
    want = want.to(getattr(torch, case.sum_dtype))
    scales = []
    for name, axes in case.scales.items():
        shape = [1 if x == "1" else case.extents[x] for x in axes]
        values = 2.0 ** torch.randint(-2, 2, shape, device="cuda").float()
        if case.special and name != "R":
            flat = values.view(-1)
            flat[:: max(1, flat.numel() // 3)] = SPECIAL[case.special]
        scales.append(placed(values))
        want = want.float()
        wide = values.view([case.extents[x] if x in axes else 1 for x in out])
        want = want + wide if name == "R" else want * wide
    if case.relu:
        want = want.clamp_min(0)
    if case.out_dtype == "int8":
        want = want.round().clamp(-128, 127)
    if most := LARGEST_FP8.get(case.out_dtype):
        want = want.clamp(-most, most)
    want = want.to(getattr(torch, case.out_dtype))
    result = placed(torch.zeros_like(want))
    result.view(torch.uint8).fill_(POISON)
    run(*map(as_argument, (*operands, *scales, result)))
    torch.cuda.synchronize()
    equal = (result.double() == want.double()) | (result.double().isnan() & want.double().isnan())
    wrong = int((~equal).sum())
    assert not wrong, f"{wrong} of {want.numel()} elements differ"
    for raw in memory:
        beside = torch.cat((raw[:MARGIN], raw[-MARGIN:]))
        assert bool((beside == POISON).all()), "memory beside a tensor was written"
