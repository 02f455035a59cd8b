"""Kernels of TVM's paged KV cache, by their parameters.

`vm.builtin.paged_attention_kv_cache_create` calls them by position, so that a kernel in their place
has the same ones. Their names tell which kernel a function is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tvm import sym, tirx

from tvm_hopper import ir
from tvm_hopper.errors import cannot_schedule
from tvm_hopper.facts.dtypes import HALF_DTYPES, dtype_bytes

CHUNK_BYTES = 16  # what cp.async copies at a time
RAGGED, PREFILL, DECODE = "ragged prefill", "paged prefill", "paged decode"
_END = ("rotary_mode", "rope_scale", "rope_theta", "sm_scale")
_PAGED_END = ("k_rope_pos_offset", "q_rope_position", "output", "lse")
# By kernel: TVM's names of its parameters, and the role of each that attention reads or writes.
PARAMETERS = {
    RAGGED: (
        *("q", "q_indptr", "k", "v", "kv_indptr", "q_rope_position", "k_rope_pos_offset"),
        *("output", "lse", "causal", *_END),
    ),
    PREFILL: (
        *("q", "q_indptr", "pages", "page_indptr", "page_values", "length_info"),
        *(*_PAGED_END, "causal", *_END),
    ),
    DECODE: (
        *("Q", "pages", "page_table_indptr", "page_table_values", "length_info"),
        *(*_PAGED_END, *_END),
    ),
}
_ROLES = {"Q": "q", "page_table_indptr": "page_indptr", "page_table_values": "page_values"}


@dataclass(frozen=True)
class CacheArguments:
    """The parameters of one of these kernels.

    q and output are (rows, heads, d) in 16 bits, lse (rows, heads) in float32; k and v (rows,
    kv_heads, d), pages (pages, 2, kv_heads, page_size, d); offsets and tables int32.

    - `kind`: which kernel it is.
    - `func`: as TVM makes it.
    - `by_name`: the parameters in their order, those of the decode kernel by the names of the
      prefill kernel's. Pages begin at a multiple of 16 bytes, which a call checks.
    """

    kind: str
    func: tirx.PrimFunc
    by_name: Mapping[str, Any]

    @staticmethod
    def of(func: Any) -> CacheArguments | None:
        """Read a function; None if it is no kernel of a cache."""
        if not isinstance(func, tirx.PrimFunc):
            return None
        names = tuple(str(x.name) for x in func.params)
        kind = next((x for x, known in PARAMETERS.items() if known == names), None)
        if kind is None:
            return None
        params = [_aligned(x) if str(x.name) == "pages" else x for x in func.params]
        found = {_ROLES.get(x, x): y for x, y in zip(names, params, strict=True)}
        return CacheArguments(kind, func, found)

    @property
    def params(self) -> list[Any]:
        """The parameters of a kernel in its place."""
        return list(self.by_name.values())

    def __getitem__(self, name: str) -> Any:
        return self.by_name[name]

    @property
    def slides(self) -> bool:
        """Whether sequences have a sliding window: lengths are (3, sequences) then."""
        return self.kind != RAGGED and len(self["length_info"].shape) == 2

    @property
    def group(self) -> int:
        """Heads of queries that share one of keys."""
        keys = self["k"].shape[1] if self.kind == RAGGED else self["pages"].shape[2]
        return int(self["q"].shape[1]) // int(keys)

    @property
    def window(self) -> int | None:
        """Keys of a window, a number inside of TVM's paged prefill; None if there is no such one.

        Its mask shows row i of a sequence the last `max(window - i - 1, 0)` keys.
        """
        found = {_window_of(x.a.b) for x in ir.find_all(self.func.body, tirx.Max, _is_first_key)}
        return found.pop() if len(found) == 1 else None

    def check(self) -> None:
        """Refuse what kernels of ours do not compute."""
        where = f"attention of the cache, {self.kind}"
        dtype = ir.dtype_of(self["q"])
        if dtype not in HALF_DTYPES:
            raise cannot_schedule(where, f"q of {dtype}", " or ".join(HALF_DTYPES))
        for name in {"k", "v", "pages", "output"} & set(self.by_name):
            found = ir.dtype_of(self[name])
            if found != dtype:
                found = f"{name} of {found} with q of {dtype}"
                raise cannot_schedule(where, found, "one type", "leave it to TVM's kernel")
        if self.kind == PREFILL and self.slides and self.window is None:
            need = "TVM's mask of one, max(window - row - 1, 0) of the keys before the last"
            raise cannot_schedule(where, "a sliding window", need, "leave it to TVM's kernel")


def _aligned(buffer: Any) -> Any:
    """Return a tensor whose first element is at a multiple of what one copy moves."""
    kind = buffer.ty
    return tirx.decl_buffer(
        kind.shape,
        ir.dtype_of(buffer),
        name=buffer.name,
        elem_offset=kind.elem_offset,
        offset_factor=CHUNK_BYTES // dtype_bytes(ir.dtype_of(buffer)),
        layout=None,
    )


def _is_first_key(expr: Any) -> bool:
    """Tell whether it is max(keys - max(window - row - 1, 0), 0)."""
    return isinstance(expr.a, tirx.Sub) and _window_of(expr.a.b) is not None


def _window_of(expr: Any) -> int | None:
    """Return the window of max(window - row - 1, 0), None of any other expression."""
    if not isinstance(expr, tirx.Max) or not ir.is_const(expr.b, 0):
        return None
    rows = ir.once(ir.find_all(expr.a, ir.Var))
    parts = sym.detect_linear_equation(expr.a, rows) if len(rows) == 1 else []
    if len(parts) != 2 or ir.static_int(parts[0]) != -1:
        return None
    seen = ir.static_int(parts[1])
    return None if seen is None else seen + 1
