"""From a captured graph to a Relax module: TVM's importer of ATen operators, with PyTorch's types.

    view = aten.view(x, [2 * s0, 64]); y = aten.addmm(bias, view, permute(weight))   float16
  ->
    def main(x: R.Tensor((2, s0, 64), "float16"), weight: ..., bias: ...):
        y = R.astype(R.add(R.matmul(..., out_dtype="float32"), bias), "float16")

Weights are parameters like all inputs. A result of the importer with another type than PyTorch's,
as products have, is cast. A tensor that lies permuted in memory is a parameter in the order of the
memory, and is permuted in the graph, where products and convolutions read it as it lies.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_dtypes
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupport
from tvm import relax, tirx
from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

WIDE = "float32"  # the importer's sums of products
BIAS = {"addmm.default": 0, "baddbmm.default": 0, "convolution.default": 2}  # its argument
CALL = "call_function"
SYMBOL = re.compile(r"[A-Za-z_]\w*")
NUMBER_FUNCTIONS: dict[str, Any] = {"Max": max, "Min": min}


@dataclass(frozen=True)
class GraphInput:
    """How one tensor of a graph is passed: permuted by views, and copied if `must_copy`."""

    place: int
    order: tuple[int, ...] | None = None
    must_copy: bool = False


@dataclass(frozen=True)
class ImportedGraph:
    """A Relax module and how its function "main" is called.

    - `sizes` (dict of str to int): symbols and places of the graph's numbers, which are one shape
      in front.
    - `outputs` (tuple of int, str or None): for each result of the graph its place among those of
      the function, or a number as an expression of symbols; None: the graph returns None there.
    """

    mod: Any
    sizes: dict[str, int]
    arguments: tuple[GraphInput, ...]
    outputs: tuple[int | str | None, ...]


class CannotImport(Exception):
    """A graph has something that TVM's importer lacks; the text names it."""


def import_graph(graph: fx.GraphModule) -> ImportedGraph:
    """Return the Relax module of a graph of ATen operators.

    - raises CannotImport: an operator or a type is unknown.
    """
    importer = _Importer()
    symbols = _Symbols()
    params: list[Any] = []
    sizes: dict[str, int] = {}
    arguments: list[GraphInput] = []
    permuted: dict[fx.Node, list[int]] = {}
    inputs = [x for x in graph.graph.nodes if x.op == "placeholder"]
    for place, node in enumerate(inputs):
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt):
            importer.env[node] = symbols.variable(value)
            sizes.setdefault(str(value.node.expr), place)
        elif isinstance(value, torch.Tensor):
            argument = _argument(place, value)
            shape = [symbols.extent(x) for x in value.shape]
            order = argument.order
            stored = shape if order is None else [shape[i] for i in order]
            var = relax.Var(node.name, relax.TensorType(stored, _dtype(importer, value)))
            params.append(var)
            arguments.append(argument)
            importer.env[node] = var
            if order is not None:
                permuted[node] = [order.index(i) for i in range(len(order))]
        else:
            raise CannotImport(f"an input of type {type(value).__name__}")
    variables = [importer.env[inputs[i]] for i in sizes.values()]
    if variables:
        params.insert(0, relax.Var("sizes", relax.ShapeType(variables)))
    outputs = importer.translate(graph, params, permuted)
    for expression in (x for x in outputs if isinstance(x, str)):
        if not {*SYMBOL.findall(expression)} <= {*sizes, *NUMBER_FUNCTIONS}:
            raise CannotImport(f"a result that is the number {expression}")
    return ImportedGraph(importer.module, sizes, tuple(arguments), outputs)


class _Symbols:
    """Names of PyTorch's symbolic sizes as variables of TIR."""

    def __init__(self) -> None:
        self.known: dict[str, Any] = {}

    def variable(self, value: Any) -> Any:
        name = str(value.node.expr)
        if not name.isidentifier():
            raise CannotImport(f"an input that is the number {name}")
        return self.known.setdefault(name, tirx.Var(name, "int64"))

    def extent(self, value: Any) -> Any:
        if not isinstance(value, torch.SymInt):
            return int(value)
        return self._expression(value.node.expr)

    def _expression(self, expr: Any) -> Any:
        if expr.is_Integer:
            return tirx.IntImm("int64", int(expr))
        if expr.is_Symbol:
            return self.known.setdefault(str(expr), tirx.Var(str(expr), "int64"))
        if not (expr.is_Add or expr.is_Mul):
            raise CannotImport(f"an extent {expr}")
        first, *rest = (self._expression(x) for x in expr.args)
        for x in rest:
            first = first + x if expr.is_Add else first * x
        return first


def _type_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _dtype(importer: Any, value: Any) -> str:
    try:
        return str(importer._convert_data_type(_type_name(value.dtype)))
    except Exception as error:
        raise CannotImport(f"type {value.dtype}") from error


def _is_number_tensor(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dtype != torch.bool


def _argument(place: int, value: Any) -> GraphInput:
    """Decide how a tensor is passed, by its strides."""
    if value.layout != torch.strided or value.is_quantized:
        raise CannotImport(f"a tensor with layout {value.layout}")
    if 0 in value.shape:  # whose strides TVM's host code refuses
        raise CannotImport("a tensor without elements")
    if value.is_contiguous():
        return GraphInput(place)
    if any(isinstance(x, torch.SymInt) for x in (*value.shape, *value.stride())):
        return GraphInput(place, must_copy=True)
    order = tuple(sorted(range(value.dim()), key=lambda i: (-value.stride(i), -value.shape[i])))
    if value.permute(order).is_contiguous():
        return GraphInput(place, order)
    return GraphInput(place, must_copy=True)


def missing_operators(graph: fx.GraphModule) -> list[str]:
    """Return the names of a graph's operators that TVM's importer lacks."""
    known = _Importer().convert_map
    calls = [x for x in graph.graph.nodes if x.op not in ("placeholder", "output", "get_attr")]
    return sorted({_name(x) for x in calls} - {*known})


def split_graph(graph: fx.GraphModule, missing: list[str]) -> fx.GraphModule:
    """Return a graph that calls submodules of what the importer knows, next to other operators."""

    class InImporter(OperatorSupport):
        def is_node_supported(self, _modules: Any, node: fx.Node) -> bool:
            return node.op == CALL and _name(node) not in missing

    parts = CapabilityBasedPartitioner(graph, InImporter(), allows_single_node_partition=False)
    return parts.partition_and_fuse()


def _name(node: fx.Node) -> str:
    return getattr(node.target, "__name__", str(node.target)) if node.op == CALL else node.op


class _Importer(ExportedProgramImporter):  # type: ignore[misc]
    """Translates nodes one by one, and gives each result PyTorch's type."""

    def __init__(self) -> None:
        super().__init__()
        known: dict[str, Any] = {**self.create_convert_map(), "any.default": self._any}
        self.convert_map = {name: self._typed(convert) for name, convert in known.items()}
        self.module: Any = None

    def _typed(self, convert: Callable[[fx.Node], Any]) -> Callable[[fx.Node], Any]:
        def converted(node: fx.Node) -> Any:
            kept = self._promote(node)
            try:
                made, value = convert(node), node.meta.get("val")
            finally:
                self.env.update(kept)
            is_tensor = isinstance(getattr(made, "ty", None), relax.TensorType)
            if not is_tensor or not isinstance(value, torch.Tensor):
                return made
            sizes = zip(made.ty.shape or value.shape, value.shape, strict=True)
            if any(isinstance(x, tirx.IntImm) and int(x) != n for x, n in sizes):
                found = f"{_name(node)} with shape {made.ty.shape}"
                raise CannotImport(f"an importer's {found}, where PyTorch has {value.shape}")
            return self._cast(made, _dtype(self, value))

        return converted

    def _cast(self, made: Any, dtype: str) -> Any:
        same = str(made.ty.dtype) == dtype
        return made if same else self.block_builder.emit(relax.op.astype(made, dtype))

    def _promote(self, node: fx.Node) -> dict[fx.Node, Any]:
        """Cast tensors of several types, as PyTorch does, and a bias as the sums that it joins.

        - returns (dict): what they were.
        """
        tensors = [x for x in node.args if isinstance(x, fx.Node) and _is_number_tensor(x)]
        if _name(node) in BIAS:
            tensors, dtype = [x for x in tensors if x is node.args[BIAS[_name(node)]]], WIDE
        elif torch.Tag.pointwise not in getattr(node.target, "tags", ()) or not tensors:
            return {}
        else:
            values = (x.meta["val"] for x in tensors)
            kind = ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT
            dtype = _type_name(elementwise_dtypes(*values, type_promotion_kind=kind)[1])
            if len({x.meta["val"].dtype for x in tensors}) < 2:
                return {}
        kept = {x: self.env[x] for x in tensors}
        self.env.update({x: self._cast(made, dtype) for x, made in kept.items()})
        return kept

    def translate(
        self, graph: fx.GraphModule, params: list[Any], permuted: dict[fx.Node, list[int]]
    ) -> tuple[int | str | None, ...]:
        """Build the module, and say where its function has each result of the graph."""
        builder = self.block_builder = relax.BlockBuilder()
        places: list[int | str | None] = []
        results: list[Any] = []
        with builder.function("main", params):
            with builder.dataflow():
                for node, order in permuted.items():
                    self.env[node] = builder.emit(relax.op.permute_dims(self.env[node], order))
                for node in graph.graph.nodes:
                    if node.op == "get_attr":
                        self.env[node] = self._constant(getattr(graph, node.target))
                    elif node.op == CALL:
                        self.env[node] = self.convert_map[node.target.__name__](node)
                    elif node.op == "output":
                        (given,) = node.args
                        many = given if isinstance(given, (list, tuple)) else [given]
                        places = [self._place(x, results) for x in many]
                out = builder.emit_output(relax.Tuple(results))
            builder.emit_func_output(out)
        self.module = builder.get()
        return tuple(places)

    def _constant(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            raise CannotImport(f"an attribute of type {type(value).__name__}")
        return relax.const(self._convert_pytorch_tensor_to_tvm(value.cpu().contiguous()))

    def _place(self, node: Any, results: list[Any]) -> int | str | None:
        """Return where a result is found, and add it to the function's if it is a tensor."""
        value = node.meta.get("val") if isinstance(node, fx.Node) else node
        if value is None:
            return None
        if not isinstance(value, torch.Tensor):
            return str(value.node.expr if isinstance(value, torch.SymInt) else value)
        results.append(self.env[node])
        return len(results) - 1
