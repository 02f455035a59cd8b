"""Load what a choice reads from memory before it.

    y[v] = T.Select(mask[v], x[v] * scale[c], z[v])               scale in memory
  ->
    y[v] = T.Let(T.Select(mask[v], x[v] * loaded, z[v]), where={loaded: scale[c]})

A `Select` has both of its values. TVM's RewriteUnsafeSelect makes a branch of one that loads, and
the threads of each side would wait for memory in turn. Registers are read in any case.

Part of LegalizeVectors.

Before: elements are dealt out to threads.  After: no choice outside of vectors loads from memory.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.requests.bodies import is_memory_bound
from tvm_hopper.transforms.kernel_pass import kernel_step


def plan_choices(kernel: ir.For) -> tuple[ir.BufferStore, ...]:
    """Return the stores whose values choose between what is loaded."""
    vectors = ir.find_all(kernel, ir.For, lambda x: x.kind == ir.ForKind.VECTORIZED)
    kept = [store for loop in vectors for store in ir.find_all(loop, ir.BufferStore)]
    return tuple(
        x
        for x in ir.find_all(kernel, ir.BufferStore)
        if _loads(x.value) and not any(x.same_as(y) for y in kept)
    )


def _loads(value: Any) -> list[Any]:
    """Return what selects of a value load from memory, but not under a condition inside."""
    found: list[Any] = []

    def load(node: Any, mutator: Any) -> Any:
        if str(node.source.scope()) == "global":
            found.append(node)
        return node

    def call(node: Any, mutator: Any) -> Any:
        return node if ir.is_choice(node) else mutator.default_mutate(node)

    callbacks = [(ir.TensorLoad, load), (ir.Call, call), (tirx.Let, lambda node, _: node)]
    for choice in _outer_choices(value):
        for side in (choice.true_value, choice.false_value):
            tvm_ffi.structural_mutate(side, callbacks)
    return found


def _outer_choices(value: Any) -> list[Any]:
    found: list[Any] = []

    def note(node: Any, _: Any) -> Any:
        found.append(node)
        return node

    def call(node: Any, mutator: Any) -> Any:
        return node if ir.is_choice(node) else mutator.default_mutate(node)

    tvm_ffi.structural_mutate(value, [(tirx.Select, note), (ir.Call, call)])
    return found


def rewrite_choices(kernel: ir.For, plan: tuple[ir.BufferStore, ...]) -> Any:
    """Name what is loaded in front of each value."""

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

        loads = _loads(store.value)
        value = tvm_ffi.structural_mutate(store.value, [(ir.TensorLoad, named)])
        for load, name in reversed(names):
            value = tirx.Let(name, load, value)
        return ir.BufferStore(store.buffer, value, list(store.indices))

    return ir.replace_nodes(kernel, ir.BufferStore, {x: changed(x) for x in plan})


load_before_choice = kernel_step(plan_choices, rewrite_choices, when=is_memory_bound)
