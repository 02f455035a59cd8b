"""Writes the text of a module: tensors, blocks in loops, in one type of index.

script = Script("int64")
script.tensor("A", [100, 64], "float16")
script.block("relu", ["i", "j"], [100, 64], ["relu[vi, vj] = T.max(C[vi, vj], T.float32(0))"])
script.program()
"""

from dataclasses import dataclass, field
from typing import Any

from .case import Program, View

HEAD = """\
@I.ir_module
class Module:
    @T.prim_func(s_tir=True)
    def main({parameters}):
        T.func_attr({{"global_symbol": "main", "tirx.noalias": True}})
"""


@dataclass
class Tensor:
    """One tensor: extents are ints or names of symbolic extents."""

    name: str
    shape: list[Any]
    dtype: str
    view: View | None = None
    options: str = ""  # further arguments of match_buffer
    scope: str = "argument"  # or "inside"


@dataclass
class Script:
    """A module in the making."""

    index: str = "int32"
    tensors: list[Tensor] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    scalars: dict[str, int] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)  # fields of Program
    symbols: dict[str, int] = field(default_factory=dict)
    _names: int = 0

    def name(self, word: str) -> str:
        """Return a name that nothing has yet."""
        self._names += 1
        return f"{word}{self._names}"

    def size(self, extent: Any) -> str:
        """Return the text of an extent or of an index, in the script's index type."""
        if isinstance(extent, str):
            return extent
        return f"T.int64({extent})" if self.index == "int64" else str(extent)

    def shape(self, extents: list[Any]) -> str:
        """Return the text of a shape."""
        sizes = [self.size(e) for e in extents]
        return f"({sizes[0]},)" if len(sizes) == 1 else f"({', '.join(sizes)})"

    def tensor(self, name: str, shape: list[Any], dtype: str, **more: Any) -> Tensor:
        """Add a tensor: an argument, or with scope="inside" one of the function's own."""
        made = Tensor(name, list(shape), dtype, **more)
        self.tensors.append(made)
        return made

    def find(self, name: str) -> Tensor:
        """Return a tensor by name."""
        return next(t for t in self.tensors if t.name == name)

    def loops(self, ranges: list[tuple[str, Any, Any]], body: list[str]) -> None:
        """Add loops (name, first, end) around lines."""
        plain = all(first == 0 for _, first, _ in ranges)
        if plain:
            names = ", ".join(name for name, _, _ in ranges)
            sizes = ", ".join(self.size(end) for _, _, end in ranges)
            single = f"range({sizes})" if len(ranges) == 1 else f"T.grid({sizes})"
            self.lines += [f"for {names} in {single}:", *indent(body)]
            return
        for depth, (name, first, end) in enumerate(ranges):
            pad = "    " * depth
            self.lines.append(f"{pad}for {name} in range({self.size(first)}, {self.size(end)}):")
        self.lines += indent(body, len(ranges))

    def block(
        self, name: str, axes: list[str], sizes: list[Any], body: list[str], kinds: str = ""
    ) -> None:
        """Add a block over plain loops `axes`; inside, loop `i` is `vi`."""
        inner = ", ".join(f"v{a}" for a in axes)
        kinds = kinds or "S" * len(axes)
        remap = f'T.axis.remap("{kinds}", [{", ".join(axes)}])'
        if len(axes) == 1:
            kind = "spatial" if kinds == "S" else "reduce"
            remap = f"T.axis.{kind}({self.size(sizes[0])}, {axes[0]})"
        lines = [f'with T.sblock("{name}"):', *indent([f"{inner} = {remap}", *body])]
        self.loops([(a, 0, s) for a, s in zip(axes, sizes, strict=True)], lines)

    def text(self, compact: bool = False) -> str:
        """Return the module; compact: without strides and offsets."""
        arguments = [t for t in self.tensors if t.scope == "argument"]
        parameters = [f"{t.name}_handle: T.handle" for t in arguments]
        parameters += [f"{name}: T.int32" for name in self.scalars]
        lines = [f"{name} = T.{self.index}()" for name in self.symbols]
        for t in arguments:
            more = t.options
            if t.view is not None and not compact:
                more += f", strides=[{', '.join(map(self.size, t.view.strides))}]"
                more += f", elem_offset={self.size(t.view.offset)}" * bool(t.view.offset)
            shape = self.shape(t.shape)
            lines.append(f'{t.name} = T.match_buffer({t.name}_handle, {shape}, "{t.dtype}"{more})')
        for t in self.tensors:
            if t.scope == "inside":
                lines.append(
                    f'{t.name} = T.sblock_alloc_buffer({self.shape(t.shape)}, "{t.dtype}")'
                )
        head = HEAD.format(parameters=", ".join(parameters))
        return head + "\n".join(indent([*lines, *self.lines], 2)) + "\n"

    def program(self) -> Program:
        """Return the finished program."""
        views = {t.name: t.view for t in self.tensors if t.view is not None}
        return Program(
            self.text(),
            self.text(compact=True) if views else "",
            {**self.symbols, **self.scalars},
            views=views,
            **self.facts,
        )


def indent(lines: list[str], depth: int = 1) -> list[str]:
    """Move lines to the right."""
    return ["    " * depth + line for line in lines]
