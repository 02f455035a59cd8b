"""Every form of `mma.sync` and `mma.sp`, and a kernel for each.

The text is the one that TVM prints for `T.ptx.mma...`: its own helper function for the form, called
once a warp between loads of the fragments and stores of the results.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

from tvm.backend.cuda.ptx.render import render_variant
from tvm.backend.cuda.ptx.table import TABLE, mods, operand_layout, variants

from tvm_hopper.sim.ops.mma_forms import FragmentProduct, find_product
from tvm_hopper.sim.ops.sparse_metadata import holders

from ..instructions.forms import HEAD

_C_TYPES = {"f32": "float", "f64": "double"}
_BYTES = {"float": 4, "double": 8, "uint32_t": 4}


@dataclass(frozen=True)
class WarpForm:
    """One combination of modifiers, and of a selector where there is one."""

    name: str
    tokens: tuple[str, ...]
    selector: int = 0

    @property
    def mods(self) -> Mapping[str, str]:
        """The modifiers by slot."""
        found: Mapping[str, str] = mods(TABLE[self.name], self.tokens)
        return found

    @property
    def sparse(self) -> bool:
        """Whether A is."""
        return "spvariant" in self.mods

    @property
    def opcode(self) -> str:
        """The instruction as PTX spells it."""
        text: str = self._rendered[0]
        return f"{text} {self.selector}" if self.sparse else text

    @functools.cached_property
    def _rendered(self) -> tuple[str, str, str]:
        chosen = (str(self.selector),) if self.sparse else None
        found: tuple[str, str, str] = render_variant(TABLE[self.name], self.tokens, imms=chosen)
        return found

    @functools.cached_property
    def product(self) -> FragmentProduct:
        """The simulator's function."""
        chosen = self.mods
        found = find_product(
            chosen["shape"],
            (chosen["alayout"], chosen["blayout"]),
            (chosen["atype"], chosen["btype"], chosen["ctype"]),
            bool(chosen.get("satfinite")),
            d_type=chosen["dtype"],
            bit_operation=chosen.get("bitop", ""),
            rounding=chosen.get("rnd", ""),
            sparse=self.sparse,
        )
        assert found is not None, self.opcode
        return found

    @property
    def registers(self) -> dict[str, tuple[str, int]]:
        """C type and number of the registers of each operand, in order."""
        found, chosen = {}, self.mods
        for slot, _, count in operand_layout(TABLE[self.name], dict(chosen)):
            if slot.kind != "imm":
                found[slot.name] = (self._c_type(slot.name), count)
        return found

    def _c_type(self, operand: str) -> str:
        if operand in ("a", "b"):
            return "double" if self.mods["atype"] == "f64" else "uint32_t"
        return _C_TYPES.get(self.mods.get(f"{operand}type", ""), "uint32_t")

    @property
    def result_bytes(self) -> int:
        """Bytes of D in a lane."""
        kind, count = self.registers["d"]
        return _BYTES[kind] * count

    def source(self, kernel: str) -> str:
        """Return the CUDA text of a kernel: a, b, c, e, d, each lane's registers in a row."""
        _, helper, text = self._rendered
        registers = self.registers
        d_type, num_d = registers["d"]
        params, values = [], [f"r[{i}]" for i in range(num_d)]
        for name, (kind, count) in registers.items():
            if name != "d":
                params.append(f"const {kind}* {name}")
                values += [f"{name}[t * {count} + {i}]" for i in range(count)]
        params += [] if self.sparse else ["const uint32_t*"]
        return "\n".join(
            [
                text.replace(f" {helper}(", f" {kernel}_body("),
                f'extern "C" __global__ void {kernel}({", ".join(params)}, {d_type}* d) {{',
                "  const int t = blockIdx.x * blockDim.x + threadIdx.x;",
                f"  {d_type} r[{num_d}];",
                f"  {kernel}_body({', '.join(values)});",
                f"  for (int i = 0; i < {num_d}; ++i) d[t * {num_d} + i] = r[i];",
                "}",
            ]
        )


def forms(sparse: bool) -> list[WarpForm]:
    """Return every form, a sparse one once for each of its selectors."""
    found = []
    for name, entry in TABLE.items():
        if name != "mma" and not name.startswith("mma_"):
            continue
        for tokens in variants(entry):
            form = WarpForm(name, tokens)
            if form.sparse == sparse:
                count = 4 // holders(form.product.a_type, form.product.depth) if sparse else 1
                found += [WarpForm(name, tokens, selector) for selector in range(count)]
    return found


def text_of(some: list[WarpForm]) -> str:
    """Return one CUDA file with a kernel for each form: form_0, form_1, ..."""
    return HEAD + "\n".join(form.source(f"form_{i}") for i, form in enumerate(some))
