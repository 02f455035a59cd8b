"""Load what a choice reads from memory before it.

    y[v] = T.Select(mask[v], x[v] * scale[c], z[v])               scale in memory
  ->
    y[v] = T.Let(T.Select(mask[v], x[v] * loaded, z[v]), where={loaded: scale[c]})

TVM's RewriteUnsafeSelect makes a branch of a choice that loads, and the threads of each side would
wait for memory in turn. What lies in its tensor for every thread can be loaded in any case; what
may not, as `T.Select(i > 0, x[i - 1], 0)`, stays for the branch.

Part of LegalizeVectors.

Before: elements are dealt out to threads.  After: outside of vectors, a choice loads from memory
only what may lie outside of its tensor.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import sym, tirx

from tvm_hopper import ir
from tvm_hopper.requests.bodies import is_memory_bound
from tvm_hopper.transforms.kernel_pass import kernel_step


def plan_choices(kernel: ir.For) -> tuple[ir.BufferStore, ...]:
    """Return the stores whose values choose between what is loaded, and can be before."""
    ranges = _ranges(kernel)
    vectors = ir.find_all(kernel, ir.For, lambda x: x.kind == ir.ForKind.VECTORIZED)
    kept = [store for loop in vectors for store in ir.find_all(loop, ir.BufferStore)]
    return tuple(
        x
        for x in ir.find_all(kernel, ir.BufferStore)
        if _loads(x.value, ranges) and not any(x.same_as(y) for y in kept)
    )


def _ranges(kernel: ir.For) -> sym.Analyzer:
    ranges = sym.Analyzer()
    for loop in ir.find_all(kernel, ir.For):
        ranges.bind(loop.loop_var, ir.range_of(loop))
    return ranges


def _loads(value: Any, ranges: sym.Analyzer) -> list[Any]:
    """Return what selects of a value load from memory, in any case from inside of its tensor."""
    found: list[Any] = []

    def load(node: Any, mutator: Any) -> Any:
        if str(node.source.scope()) == "global" and _is_inside(node, ranges):
            found.append(node)
        return node

    def call(node: Any, mutator: Any) -> Any:
        return node if ir.is_choice(node) else mutator.default_mutate(node)

    callbacks = [(ir.TensorLoad, load), (ir.Call, call), (tirx.Let, lambda node, _: node)]
    for choice in _outer_choices(value):
        for side in (choice.true_value, choice.false_value):
            tvm_ffi.structural_mutate(side, callbacks)
    return found


def _is_inside(load: Any, ranges: sym.Analyzer) -> bool:
    """Tell whether a load is of an element that there is, whatever the conditions around it."""
    for index, extent in zip(load.indices, load.source.shape, strict=True):
        size, bound = ir.static_int(extent), ranges.const_int_bound(index)
        if size is None or int(bound.min_value) < 0 or int(bound.max_value) >= size:
            return False
    return True


def _outer_choices(value: Any) -> list[Any]:
    found: list[Any] = []

    def note(node: Any, _: Any) -> Any:
        found.append(node)
        return node

    def call(node: Any, mutator: Any) -> Any:
        return node if ir.is_choice(node) else mutator.default_mutate(node)

    callbacks = [(tirx.Select, note), (ir.Call, call), (tirx.Let, lambda node, _: node)]
    tvm_ffi.structural_mutate(value, callbacks)
    return found


def rewrite_choices(kernel: ir.For, plan: tuple[ir.BufferStore, ...]) -> Any:
    """Name what is loaded in front of each value."""
    ranges = _ranges(kernel)

    def changed(store: ir.BufferStore) -> ir.BufferStore:
        names: list[tuple[Any, ir.Var]] = []

        def named(node: Any, mutator: Any) -> Any:
            for old, name in names:
                if tvm_ffi.structural_equal(old, node):
                    return name
            if not any(node.same_as(x) for x in loads):
                return mutator.default_mutate(node)
            names.append((node, ir.Var("loaded", ir.dtype_of(node))))
            return names[-1][1]

        loads = _loads(store.value, ranges)
        value = tvm_ffi.structural_mutate(store.value, [(ir.TensorLoad, named)])
        for load, name in reversed(names):
            value = tirx.Let(name, load, value)
        return ir.BufferStore(store.buffer, value, list(store.indices))

    return ir.replace_nodes(kernel, ir.BufferStore, {x: changed(x) for x in plan})


load_before_choice = kernel_step(plan_choices, rewrite_choices, when=is_memory_bound)
