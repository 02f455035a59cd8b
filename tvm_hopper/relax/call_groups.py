"""Groups of calls that become one function.

    t = R.call_tir(f, (x, y), R.Tensor((rows, N)))
    u = R.call_tir(g, (t, w), R.Tensor((rows,)))                      t is read elsewhere, too
  ->
    v = R.call_tir(fused_f_g, (x, y, w), [R.Tensor((rows, N)), R.Tensor((rows,))])
    t, u = v[0], v[1]

TVM's FuseOps stops at a reduction and at a tensor of several readers. Here a group is any convex
set of calls: no value leaves it and comes back.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx, topi
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.tirx import IterVar

from tvm_hopper import ir

from .flatten_batch import CALL_TIR, SUFFIX, is_plain

NAME_LENGTH = 200  # characters of a fused function's name


@dataclass(frozen=True)
class CallGroup:
    """Calls that become one.

    - `calls` (tuple of VarBinding): in the order of the block.
    - `outputs` (tuple of Var): results of calls that something outside of the group reads.
    """

    calls: tuple[Any, ...]
    outputs: tuple[Any, ...]

    @cached_property
    def inputs(self) -> tuple[Any, ...]:
        """Arguments that none of the calls computes, each once."""
        made = {x.var for x in self.calls}
        found: list[Any] = []
        for x in (y for call in self.calls for y in _arguments(call)):
            if x not in made and not any(x.same_as(y) for y in found):
                found.append(x)
        return tuple(found)

    @cached_property
    def name(self) -> str:
        """Name of the function, as TVM would choose it: fused_add_rms_norm, in rows."""
        names = [_callee(x) for x in self.calls if not is_view(x)]
        plain = [x.removeprefix("fused_").removesuffix(SUFFIX) for x in names]
        end = SUFFIX if names[-1].endswith(SUFFIX) else ""
        return "_".join(["fused", *plain])[: NAME_LENGTH - len(end)] + end

    @cached_property
    def key(self) -> tuple[Any, ...]:
        """Equal for groups that one function serves."""
        dims, values = _Dims(), [*self.inputs, *(x.var for x in self.calls)]

        def place(x: Any) -> int:
            return next(i for i, y in enumerate(values) if x.same_as(y))

        calls = tuple((_callee(x), *map(place, _arguments(x))) for x in self.calls)
        types = tuple((str(x.ty.dtype), dims.places(x.ty.shape.values)) for x in values)
        return calls, types, tuple(map(place, self.outputs))


class _Dims:
    """Extents of a function of its own: constants stay, each other extent becomes a variable."""

    def __init__(self) -> None:
        self.found: list[tuple[Any, tirx.Var]] = []

    def of(self, extent: Any) -> Any:
        if ir.static_int(extent) is not None:
            return extent
        for known, var in self.found:
            if tvm_ffi.structural_equal(known, extent):
                return var
        name = str(extent.name) if isinstance(extent, tirx.Var) else "rows"
        if any(str(var.name) == name for _, var in self.found):
            name += str(len(self.found))
        self.found.append((extent, tirx.Var(name, ir.dtype_of(extent))))
        return self.found[-1][1]

    def places(self, shape: Iterable[Any]) -> tuple[Any, ...]:
        """Return a shape by numbers of variables, comparable between functions."""
        dims = [(ir.static_int(x), self.of(x)) for x in shape]
        variables = [var for _, var in self.found]
        return tuple(n if n is not None else f"n{variables.index(var)}" for n, var in dims)

    def type_of(self, x: Any) -> relax.TensorType:
        """Return a tensor's type by the variables."""
        return relax.TensorType([self.of(y) for y in x.shape.values], x.dtype)


def fuse_group(mod: tvm.IRModule, group: CallGroup) -> tirx.PrimFunc:
    """Let TVM fuse the functions of a group into one.

    - `mod`: of the functions.
    - `group`: calls of them.
    - returns: its parameters are the group's inputs and outputs.
    """
    dims, builder = _Dims(), relax.BlockBuilder()
    callees = {x.value.args[0] for x in group.calls if not is_view(x)}
    added = {x: builder.add_func(mod[x], x.name_hint) for x in callees}
    types = [dims.type_of(x.ty) for x in group.inputs]
    params = [relax.Var(f"p{i}", x) for i, x in enumerate(types)]
    with builder.function(group.name, params, attrs={"Primitive": True}, private=True):
        with builder.dataflow():
            values = list(zip(group.inputs, params, strict=True))

            def value_of(x: Any) -> Any:
                return next(new for old, new in values if x.same_as(old))

            for call in group.calls:
                args, out = [value_of(x) for x in _arguments(call)], dims.type_of(call.var.ty)
                if is_view(call):
                    made = builder.call_te(topi.reshape, *args, list(out.shape.values))
                else:
                    made = relax.call_tir(added[call.value.args[0]], args, out)
                values.append((call.var, builder.emit(made)))
            outs = [value_of(x) for x in group.outputs]
            out = builder.emit_output(outs[0] if len(outs) == 1 else relax.Tuple(outs))
        builder.emit_func_output(out)
    gv = builder.get().get_global_var(group.name)
    given = [relax.Var(f"x{i}", x) for i, x in enumerate(types)]
    with builder.function("main", given):
        with builder.dataflow():
            out = builder.emit_output(builder.emit(relax.Call(gv, given)))
        builder.emit_func_output(out)
    return relax.transform.FuseTIR()(builder.finalize())[group.name]


class CallGraph:
    """The calls of one dataflow block, and the groups that they are in.

    - `func`, `block` (Function, DataflowBlock): whose bindings these are.
    """

    def __init__(self, func: relax.Function, block: Any) -> None:
        self.bindings = list(block.bindings)
        place = {x.var: i for i, x in enumerate(self.bindings)}
        self.needs = [_places_in(x.value, place) for x in self.bindings]
        shape = -1  # binding that defines symbols
        for i, binding in enumerate(self.bindings):
            if shape >= 0:
                self.needs[i].add(shape)
            if isinstance(binding, relax.MatchCast):
                self.needs[i] |= set(range(i))
                shape = i
        self.readers: list[set[int]] = [set() for _ in self.bindings]
        for i, some in enumerate(self.needs):
            for j in some:
                self.readers[j].add(i)
        kept = _places_in(func.body.body, place)
        self.leaves = [
            i in kept or not isinstance(x.var, relax.DataflowVar)
            for i, x in enumerate(self.bindings)
        ]
        self.members = [{i} for i in range(len(self.bindings))]  # of the group of each binding

    def group(self, places: set[int]) -> CallGroup:
        """Return the group of some calls."""
        order = sorted(places)
        outputs = [i for i in order if self.leaves[i] or self.readers[i] - places]
        of = self.bindings
        return CallGroup(tuple(of[i] for i in order), tuple(of[i].var for i in outputs))

    def is_convex(self, places: set[int]) -> bool:
        """Tell whether no value leaves these calls and comes back to them, through groups too."""
        seen: set[int] = set(places)
        todo = [j for i in places for j in self.readers[i] - places]
        while todo:
            i = todo.pop()
            if i in seen:
                continue
            seen |= self.members[i]
            after = {k for j in self.members[i] for k in self.readers[j]}
            if after & places:
                return False
            todo += after - seen
        return True

    def join(self, places: set[int]) -> None:
        """Make some calls one group."""
        for i in places:
            self.members[i] = places

    def grow(
        self,
        is_member: Callable[[Any], bool],
        accepts: Callable[[CallGroup], bool],
        takes_views: bool = False,
    ) -> None:
        """Join each call with those that compute its arguments, as long as one function takes them.

        - `is_member` (callable): which bindings may be in a group.
        - `accepts`: whether a group may become one function.
        - `takes_views`: whether reshapes between two calls join them.
        """
        able = [is_member(x) for x in self.bindings]

        def maker(j: int) -> set[int]:
            if able[j]:
                return {j}
            is_between = takes_views and is_view(self.bindings[j])
            made = set().union(*map(maker, self.needs[j])) if is_between else set()
            return {j, *made} if made else set()

        for i in (i for i, x in enumerate(able) if x):
            before = [x for j in sorted(self.needs[i], reverse=True) if (x := maker(j))]
            attempts = [before, *([x] for x in before)] if len(before) > 1 else [before]
            for some in attempts:
                places = self.members[i].union(*(self.members[j] for x in some for j in x))
                is_new = places != self.members[i]
                if is_new and self.is_convex(places) and accepts(self.group(places)):
                    self.join(places)

    def groups(self) -> list[CallGroup]:
        """List the groups of two and more calls."""
        several = {min(x): x for x in self.members if len(x) > 1}
        return [self.group(x) for _, x in sorted(several.items())]

    def order(self) -> list[Any]:
        """Return groups and single bindings so that each value is made before it is read."""
        heads = [max(x) for x in self.members]  # stands for the group
        left: dict[int, set[int]] = {i: set() for i in heads}
        for i, some in enumerate(self.needs):
            left[heads[i]] |= {heads[j] for j in some} - {heads[i]}
        ready = [i for i, some in left.items() if not some]
        heapq.heapify(ready)
        found = []
        while ready:
            i = heapq.heappop(ready)
            several = len(self.members[i]) > 1
            found.append(self.group(self.members[i]) if several else self.bindings[i])
            for j in {heads[k] for m in self.members[i] for k in self.readers[m]} - {i}:
                left[j].discard(i)
                if not left[j]:
                    heapq.heappush(ready, j)
        return found


def is_view(binding: Any) -> bool:
    """Tell a reshape of one tensor."""
    is_reshape = isinstance(binding, relax.VarBinding) and isinstance(binding.value, relax.Call)
    is_reshape = is_reshape and str(getattr(binding.value.op, "name", "")) == "relax.reshape"
    return is_reshape and isinstance(binding.value.args[0], relax.Var)


def _arguments(binding: Any) -> list[Any]:
    """Return the tensors that a call or a view reads."""
    args = binding.value.args
    return [args[0]] if is_view(binding) else list(args[1].fields)


def _callee(binding: Any) -> str:
    return "reshape" if is_view(binding) else str(binding.value.args[0].name_hint)


def _places_in(value: Any, place: dict[Any, int]) -> set[int]:
    """Return the bindings whose results an expression reads."""
    found: set[int] = set()

    def look(node: Any) -> None:
        if isinstance(node, relax.Var) and node in place:
            found.add(place[node])

    relax.analysis.post_order_visit(value, look)
    return found


def is_plain_call(mod: tvm.IRModule, binding: Any) -> bool:
    """Tell a call of one function in plain loops with one output, and tensors alone."""
    call = binding.value
    return (
        isinstance(binding, relax.VarBinding)
        and isinstance(call, relax.Call)
        and call.op == CALL_TIR
        and len(call.args) == 2
        and isinstance(call.ty_args[0], relax.TensorType)
        and isinstance(mod[call.args[0]], tirx.PrimFunc)
        and is_plain(mod[call.args[0]])
        and all(map(tirx.is_buffer_var, mod[call.args[0]].params))
    )


def reduces(func: tirx.PrimFunc) -> bool:
    """Tell whether a function sums, or has another reduction."""
    blocks = ir.find_all(func.body, ir.SBlock)
    return any(x.iter_type == IterVar.CommReduce for block in blocks for x in block.iter_vars)


def rewrite_groups(
    mod: tvm.IRModule,
    grow: Callable[[CallGraph], None],
    functions: dict[tuple[Any, ...], tirx.PrimFunc],
) -> tvm.IRModule:
    """Group the calls of each dataflow block and call one function for each group.

    - `mod`: a model.
    - `grow`: joins the calls of a graph, and puts the function of each group into `functions`.
    - `functions` (dict of tuple to PrimFunc): by the group's key. A parameter of another rank than
      its argument is a view of it.
    """
    rewriter = _GroupRewriter(mod, functions)
    for gv, func in mod.functions.items():
        if not isinstance(func, relax.Function) or not isinstance(func.body, relax.SeqExpr):
            continue
        graphs = {}
        for block in func.body.blocks:
            if isinstance(block, relax.DataflowBlock) and len(block.bindings) > 1:
                graph = CallGraph(func, block)
                grow(graph)
                if graph.groups():
                    graphs[block.bindings[0].var] = graph
        if graphs:
            rewriter.enter(gv, func, graphs)
    return rewriter.builder_.get()


@mutator
class _GroupRewriter(PyExprMutator):  # type: ignore[misc]
    """Emits one call for each group."""

    def __init__(self, mod: tvm.IRModule, functions: dict[tuple[Any, ...], Any]) -> None:
        super().__init__(mod)
        self.functions = functions
        self.added: dict[tuple[Any, ...], Any] = {}
        self.graphs: dict[Any, CallGraph] = {}

    def enter(self, gv: Any, func: relax.Function, graphs: dict[Any, CallGraph]) -> None:
        """Rewrite one function."""
        self.graphs = graphs
        self.builder_.update_func(gv, self.visit_expr(func))

    def visit_dataflow_block_(self, block: Any) -> Any:
        """Emit the block's groups and other bindings in an order in which values are known."""
        graph = self.graphs.get(block.bindings[0].var) if len(block.bindings) else None
        if graph is None:
            return super().visit_dataflow_block_(block)
        self.builder_._begin_dataflow_block()
        for x in graph.order():
            if isinstance(x, CallGroup):
                self._emit(x)
            else:
                self.visit_binding(x)
        return self.builder_._end_block()

    def _emit(self, group: CallGroup) -> None:
        made = self.functions[group.key]
        if group.key not in self.added:
            self.added[group.key] = self.builder_.add_func(made, group.name)
        args = []
        for x, param in zip(map(self.visit_expr, group.inputs), made.params, strict=False):
            shape = list(param.ty.shape)
            is_view = len(shape) != len(x.ty.shape.values)
            args.append(self.builder_.emit(relax.op.reshape(x, shape)) if is_view else x)
        types = [x.var.ty for x in group.calls if x.var in group.outputs]
        call = relax.call_tir(self.added[group.key], args, types if len(types) > 1 else types[0])
        whole = self.builder_.emit(call) if len(types) > 1 else None
        for i, var in enumerate(group.outputs):
            value = call if whole is None else relax.TupleGetItem(whole, i)
            is_inner = isinstance(var, relax.DataflowVar)
            emit = self.builder_.emit if is_inner else self.builder_.emit_output
            self.set_var_remap(var, emit(value))
