"""Small kernels as text: built for the pass over indices, and run thread by thread in Python.

`SmallKernel` holds one text for each statement, which both sides read: `//`, `%`, comparisons and
`and` mean the same in TVMScript and in Python.
"""

import itertools
from dataclasses import dataclass, field

import numpy as np
import tvm

from tvm_hopper.sim.coverage import check_every_cta, check_outputs
from tvm_hopper.sim.launch.tensors import Pointer

ITEMSIZE = 4

HEAD = """
@T.prim_func(s_tir=True, check_well_formed=False)
def main(X_ptr: T.handle("float32", "global"), C_ptr: T.handle("float32", "global"), n: T.int32):
    T.func_attr({{"global_symbol": "main"}})
    X = T.decl_buffer(({x_size},), data=X_ptr)
    C = T.decl_buffer(({c_size},), data=C_ptr)
    bx = T.launch_thread("blockIdx.x", {grid[0]})
    by = T.launch_thread("blockIdx.y", {grid[1]})
    tx = T.launch_thread("threadIdx.x", {block[0]})
    ty = T.launch_thread("threadIdx.y", {block[1]})
"""


@dataclass
class SmallKernel:
    """A kernel that copies elements of X to C.

    Attributes
    ----------
    lets : list of (name, text)
        Definitions, in order, before the loops.
    loops : list of (name, text of the extent)
        Around the store, outermost first.
    inner : list of (name, text)
        Definitions inside the loops.
    guard : str
        Condition of the store, or an empty string.
    store, load : str
        Index into C and into X.
    width : int
        Elements of one access.
    """

    grid: tuple[int, int]
    block: tuple[int, int]
    c_size: int
    x_size: int
    store: str
    load: str
    n: int = 0
    lets: list[tuple[str, str]] = field(default_factory=list)
    loops: list[tuple[str, str]] = field(default_factory=list)
    inner: list[tuple[str, str]] = field(default_factory=list)
    guard: str = ""
    width: int = 1

    def text(self) -> str:
        """Return TVMScript."""
        lines, depth = [], 1

        def line(text: str) -> None:
            lines.append("    " * depth + text)

        for name, value in self.lets:
            line(f"{name}: T.let[T.int32] = {value}")
        for name, extent in self.loops:
            line(f"for {name} in T.serial({extent}):")
            depth += 1
        for name, value in self.inner:
            line(f"{name}: T.let[T.int32] = {value}")
        if self.guard:
            line(f"if {self.guard}:")
            depth += 1
        if self.width == 1:
            line(f"C[{self.store}] = X[{self.load}]")
        else:
            into, source = (f"T.Ramp({at}, 1, {self.width})" for at in (self.store, self.load))
            line(f"C[{into}] = X[{source}]")
        head = HEAD.format(x_size=self.x_size, c_size=self.c_size, grid=self.grid, block=self.block)
        return head + "\n".join(lines) + "\n"

    def verdict(self) -> set[str]:
        """Return the rules that the pass over indices reports."""
        func = tvm.script.from_source(
            self.text().strip().replace("min(", "T.min(").replace("max(", "T.max(")
        )
        setup = {
            "params": {"X_ptr": Pointer("X"), "C_ptr": Pointer("C"), "n": self.n},
            "grid": (*self.grid, 1),
            "block": (*self.block, 1),
            "cluster": (1, 1, 1),
            "dyn_smem_bytes": 0,
        }
        arrays = {
            "X": np.zeros(self.x_size, "float32"),
            "C": np.zeros(self.c_size, "float32"),
        }
        coverage = check_every_cta(func, setup, arrays)
        rules = {f.rule for f in coverage.findings}
        if "OOB_ACCESS" in rules:  # what else is wrong of that tensor is not looked at
            return rules - {"RACE_WRITE_WRITE"}
        uncovered, _ = check_outputs([coverage], ["C"], arrays)
        return rules | {f.rule for f in uncovered}

    def brute_force(self) -> set[str]:
        """Return the rules that some thread breaks."""
        rules, owner = set(), {}
        lets = [(name, compile(v, name, "eval")) for name, v in self.lets]
        inner = [(name, compile(v, name, "eval")) for name, v in self.inner]
        extents = [(name, compile(v, name, "eval")) for name, v in self.loops]
        guard, store, load = (
            compile(t, "text", "eval") for t in (self.guard or "True", self.store, self.load)
        )
        spaces = (range(n) for n in (*self.grid, *self.block))
        functions = {"min": min, "max": max}

        def turn(env, left):
            if left:
                (name, extent), *rest = left
                for i in range(eval(extent, functions, env)):
                    turn({**env, name: i}, rest)
                return
            for name, value in inner:
                env[name] = eval(value, functions, env)
            if not eval(guard, functions, env):
                return
            for at, size in (
                (eval(store, functions, env), self.c_size),
                (eval(load, functions, env), self.x_size),
            ):
                if at < 0 or at + self.width > size:
                    rules.add("OOB_ACCESS")
            first = eval(store, functions, env)
            # a load that is not proved aligned is printed element by element
            if first * ITEMSIZE % min(self.width * ITEMSIZE, 16):
                rules.add("MISALIGNED")
            for element in range(first, first + self.width):
                if owner.setdefault(element, (env["bx"], env["by"])) != (env["bx"], env["by"]):
                    rules.add("RACE_WRITE_WRITE")

        for bx, by, tx, ty in itertools.product(*spaces):
            env = {"bx": bx, "by": by, "tx": tx, "ty": ty, "n": self.n}
            for name, value in lets:
                env[name] = eval(value, functions, env)
            turn(env, extents)
        if "OOB_ACCESS" in rules:
            return rules - {"RACE_WRITE_WRITE"}
        if len([e for e in owner if 0 <= e < self.c_size]) < self.c_size:
            rules.add("OUTPUT_COVERAGE")
        return rules
