"""`cache_loops`: what a kernel of TVM's paged KV cache computes, as plain loops.

    for b in range(batch_size):
        for i, h in grid(q_indptr[b + 1] - q_indptr[b], 32):
            for e in range(page_indptr[b + 1] - page_indptr[b]):
                for r, d in grid(16, 128):
                    S[q_indptr[b] + i, h, page_indptr[b] + e, r] += q[...] * pages[...]
    ...

Loops say what tables and lengths may hold: `verify` draws them.
"""

from __future__ import annotations

import math

import tvm
from tvm import tirx
from tvm.script import tirx as T

from tvm_hopper import ir
from tvm_hopper.errors import cannot_schedule

from .cache_arguments import DECODE, RAGGED, CacheArguments
from .cache_kernels import NO_KEY

SCALE = f"(sm_scale * T.float32({math.log2(math.e)!r}))"


def cache_loops(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return the plain loops that a kernel of TVM's paged KV cache stands for.

    Parameters
    ----------
    func : PrimFunc
        TVM's kernel, as for `paged_attention`.

    Returns
    -------
    func : PrimFunc
        With the same parameters and name, for `verify(..., against=...)`. Keys are not rotated. A
        row that sees no key has the result 0 and the log-sum-exp -5e4.

    Raises
    ------
    ScheduleError
        The function is no such kernel.
    """
    args = CacheArguments.of(func)
    if args is None:
        need = "a function with the parameters of a kernel of TVM's paged cache"
        raise cannot_schedule("cache_loops", f"{type(func).__name__}", need)
    args.check()
    made = tvm.script.from_source(_Loops(args).text(), extra_vars={"T": T})
    return made.with_attr("global_symbol", str(func.attrs["global_symbol"]))


class _Loops:
    """Prints the loops of one kernel."""

    def __init__(self, args: CacheArguments) -> None:
        self.args = args
        self.names = {role: str(x.name) for role, x in args.by_name.items()}
        q = args["q"]
        self.dtype, self.total, self.heads = ir.dtype_of(q), str(q.shape[0]), int(q.shape[1])
        self.depth, self.columns = int(q.shape[2]), int(args["output"].shape[2])
        offsets = "kv_indptr" if args.kind == RAGGED else "page_indptr"
        self.begin, self.count = self._span(offsets)
        self.page = 1 if args.kind == RAGGED else int(args["pages"].shape[3])
        self.rows = "1" if args.kind == DECODE else self._span("q_indptr")[1]
        self.row = "b" if args.kind == DECODE else f"{self.names['q_indptr']}[b] + i"
        self.batch = str(ir.simplify(args[offsets].shape[0] - 1))
        self.entries = str(args["k" if args.kind == RAGGED else "page_values"].shape[0])

    def _span(self, role: str) -> tuple[str, str]:
        name = self.names[role]
        return f"{name}[b]", f"({name}[b + 1] - {name}[b])"

    def text(self) -> str:
        """Return the function."""
        states = f"({self.total}, {self.heads})"
        scores = f"({self.total}, {self.heads}, {self.entries}, {self.page})"
        score = f"S[vi, vh, ve, vr] * {SCALE}"
        weight = f'T.Cast("float32", T.Cast("{self.dtype}", E[vi, vh, ve, vr]))'
        product = f"{self._float(self.names['q'], 'vi, vh, vd')} * {self._key('k', 'vd')}"
        every = (
            self._nest("S", True, "d", "S[vi, vh, ve, vr] = S[vi, vh, ve, vr] + " + product,
                       "S[vi, vh, ve, vr] = T.float32(0)"),
            self._nest("M", False, "", f"M[vi, vh] = T.float32({NO_KEY})"),
            self._nest("M_1", True, "", f"M[vi, vh] = T.max(M[vi, vh], {score})"),
            self._nest("E", True, "", f"E[vi, vh, ve, vr] = T.exp2({score} - M[vi, vh])"),
            self._nest("N", False, "", f"N[vi, vh] = T.exp2(T.float32({NO_KEY}) - M[vi, vh])"),
            self._nest("N_1", True, "", "N[vi, vh] = N[vi, vh] + E[vi, vh, ve, vr]"),
            self._nest("O", False, "c", "O[vi, vh, vc] = T.float32(0)"),
            self._nest("O_1", True, "c", f"O[vi, vh, vc] = O[vi, vh, vc] + {weight} * "
                       + self._key("v", "vc")),
            self._nest("out", False, "c", f'{self.names["output"]}[vi, vh, vc] = T.Cast('
                       f'"{self.dtype}", O[vi, vh, vc] / N[vi, vh])'),
            self._nest("lse", False, "", f"{self.names['lse']}[vi, vh] = M[vi, vh] + "
                       "T.log2(N[vi, vh])"),
        )  # fmt: skip
        head = ["@T.prim_func(s_tir=True)", f"def main({', '.join(self._parameters())}):"]
        head += [f'    {x} = T.sblock_alloc_buffer({scores}, "float32")' for x in "SE"]
        head += [f'    {x} = T.sblock_alloc_buffer({states}, "float32")' for x in "MN"]
        sums = f"({self.total}, {self.heads}, {self.columns})"
        head.append(f'    O = T.sblock_alloc_buffer({sums}, "float32")')
        return "\n".join(head) + "\n" + "".join(every)

    def _parameters(self) -> list[str]:
        found = []
        for x in self.args.func.params:
            if tirx.is_buffer_var(x):
                shape = "".join(
                    f"{n}, " if ir.static_int(n) is not None else f'"{n}", ' for n in x.shape
                )
                found.append(f'{x.name}: T.Buffer(({shape}), "{ir.dtype_of(x)}")')
            else:
                found.append(f"{x.name}: T.{ir.dtype_of(x)}")
        return found

    def _float(self, name: str, at: str) -> str:
        return f'T.Cast("float32", {name}[{at}])'

    def _key(self, role: str, along: str) -> str:
        """Return an element of a key, or of its value."""
        group = f"vh // {self.args.group}"
        if self.args.kind == RAGGED:
            return self._float(role, f"ve, {group}, {along}")
        page = f"{self.names['page_values']}[ve]"
        return self._float("pages", f"{page}, {int(role == 'v')}, {group}, vr, {along}")

    def _nest(self, block: str, keys: bool, axis: str, body: str, init: str = "") -> str:
        """Return the loops around a statement: over rows and heads, and over keys."""
        loops = [("b", self.batch), ("i", self.rows), ("h", str(self.heads))]
        if keys:
            loops += [("e", self.count), ("r", str(self.page))]
        if axis:
            loops.append((axis, str(self.depth if axis == "d" else self.columns)))
        lines = [f"{' ' * n}for {x} in range({y}):" for n, (x, y) in enumerate(loops, 4)]
        inner = [f'with T.sblock("{block}"):', f" vi = T.axis.spatial({self.total}, {self.row})"]
        inner.append(f" vh = T.axis.spatial({self.heads}, h)")
        if keys:
            kind = "spatial" if block in "SE" else "reduce"
            inner += [f" ve = T.axis.{kind}({self.entries}, {self.begin} + e)"]
            inner += [f" vr = T.axis.{kind}({self.page}, r)"]
        if axis:
            kind = "reduce" if axis == "d" else "spatial"
            inner.append(f" v{axis} = T.axis.{kind}({loops[-1][1]}, {axis})")
        if keys:
            inner.append(f" T.where({' and '.join(self._conditions())})")
        if init:
            inner.append(f" with T.init(): {init}")
        inner.append(f" {body}")
        return "\n".join(lines + [" " * (4 + len(loops)) + x for x in inner]) + "\n"

    def _conditions(self) -> list[str]:
        """Return when a row sees a key."""
        last = f"{self.rows} - 1 - i"
        if self.args.kind == RAGGED:
            return [f"e < {self.count} - T.if_then_else(causal > 0, {last}, 0)"]
        lengths = self.names["length_info"]
        at = "0, b" if self.args.slides else "b"
        place = f"e * {self.page} + r"
        found = [f"r < T.if_then_else(e + 1 < {self.count}, {self.page}, {lengths}[{at}])"]
        every = f"({self.count} - 1) * {self.page} + {lengths}[{at}]"
        if self.args.slides:
            start, sink = f"{lengths}[1, b]", f"{lengths}[2, b]"
            found.append(f"({place} < {sink} or {start} <= {place})")
            place = f"T.if_then_else({place} < {sink}, {place}, {place} + {sink} - {start})"
            every = f"{every} - {start} + {sink}"
        if self.args.kind == DECODE:
            return found
        if self.args.slides and self.args.window:
            past = f"T.max({self.args.window - 1} - i, 0)"
            return [*found, f"(causal <= 0 or {every} - {past} <= {place})"]
        return [*found, f"{place} < {every} - T.if_then_else(causal > 0, {last}, 0)"]
