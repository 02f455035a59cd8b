"""Tell the caches what to do with the vectors that a thread loads.

    for v in vectorized(8):
        with sblock("X_local", annotations={"tvm_hopper.load_hint": "evict_last"}):
            X_local[c, v] = X[row, c * 1024 + tx * 8 + v]
  ->
    words = decl_buffer((16,), "uint32", data=X_local.data)
    ld.global.L1::evict_last.L2::cache_hint.v4.b32(words[c * 4], .., words[c * 4 + 3],
                                                   address_of(X[..]), policy)

An H200 copies 1 to 3% faster where L2 is told to give up last what was loaded, and with it first
what was stored (docs/memory_bound.md).  What is read a second time waits in L1 and is given up
first then.

Before: vectors have no tails, and their tensors' alignment is asked for.  After: no block has such
a hint; one policy for each kind stands at the kernel's start.
Not here: vectors of less than 8 bytes and single elements, which are loaded without.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.tirx.transform import prim_func_pass

from tvm_hopper import ir
from tvm_hopper.codegen_patches.ptx import cache
from tvm_hopper.errors import cannot_lower
from tvm_hopper.facts.dtypes import dtype_bytes
from tvm_hopper.requests.keys import LOAD_HINT

WORD = 4  # bytes
WORDS = (2, 4)  # of a vector with a hint


@dataclass(frozen=True)
class HintedLoad:
    """A vector, the condition of its load, and what the caches are told."""

    loop: ir.For
    predicate: Any
    store: ir.BufferStore
    hint: str

    @property
    def num_words(self) -> int:
        """Words of 32 bits that it has."""
        return int(self.loop.extent) * dtype_bytes(ir.dtype_of(self.store.buffer)) // WORD


def plan_hints(kernel: ir.For) -> tuple[HintedLoad, ...]:
    """Find the vectors that are loaded with a hint; refuse those that do not go to registers."""
    for block in ir.find_blocks(kernel, LOAD_HINT):
        store = block.body
        if not isinstance(store, ir.BufferStore) or str(store.buffer.scope()) != "local":
            raise cannot_lower(
                f"block {block.name_hint}, {LOAD_HINT}",
                "a block that does not load into registers",
                "one that stores what it loads to a local buffer",
            )
    found = []
    for loop in ir.find_all(kernel, ir.For, lambda x: x.kind == ir.ForKind.VECTORIZED):
        realize = loop.body
        if not isinstance(realize, ir.SBlockRealize):
            continue
        block, store = realize.block, realize.block.body
        hint = block.annotations.get(LOAD_HINT)
        if hint is None or not isinstance(store, ir.BufferStore):
            continue
        load = HintedLoad(loop, realize.predicate, store, str(hint))
        if isinstance(store.value, ir.TensorLoad) and load.num_words in WORDS:
            found.append(load)
    return tuple(found)


def rewrite_hints(kernel: ir.For, plan: tuple[HintedLoad, ...]) -> Any:
    """Load by instructions with a policy; take the hints off all blocks."""
    policies = {
        hint: ir.new_buffer(f"policy_{hint}", (1,), "uint64", "local")
        for hint in sorted({x.hint for x in plan})
    }
    kernel = ir.replace_nodes(kernel, ir.For, {x.loop: _emit(x, policies[x.hint]) for x in plan})

    def plain(block: ir.SBlock) -> ir.SBlock:
        if LOAD_HINT not in block.annotations:
            return block
        rest = {k: v for k, v in block.annotations.items() if k != LOAD_HINT}
        return ir.with_block(block, annotations=rest)

    kernel = ir.replace(kernel, ir.SBlock, plain)
    if not policies:
        return kernel
    outer = ir.find_all(kernel, ir.SBlock)[0]
    start = [ir.seq(cache.create_policy(x[0], hint)) for hint, x in policies.items()]
    more = ir.with_block(
        outer,
        body=ir.seq(*start, outer.body),
        alloc_buffers=[*outer.alloc_buffers, *policies.values()],
    )
    return ir.replace_nodes(kernel, ir.SBlock, {outer: more})


def _emit(load: HintedLoad, policy: ir.Var) -> ir.Stmt:
    """Load one vector into the words of its registers."""
    store, first = load.store, {load.loop.loop_var: 0}
    kept = store.buffer
    total = 1
    for extent in kept.shape:
        total *= int(extent)
    size = dtype_bytes(ir.dtype_of(kept))
    words = ir.new_buffer(f"{kept.name}_words", (total * size // WORD,), "uint32", "local")
    place: Any = 0
    for index, extent in zip(store.indices, kept.shape, strict=True):
        place = place * int(extent) + ir.substitute(index, first)
    word = ir.simplify(place * size // WORD)
    loaded = [ir.simplify(ir.substitute(x, first)) for x in store.value.indices]
    source = tirx.address_of(tirx.BufferLoad(store.value.source, loaded))
    targets = [tirx.BufferLoad(words, [word + i]) for i in range(load.num_words)]
    taken = cache.load_hinted(targets, source, load.hint, policy[0])
    body = ir.seq(tirx.DeclBuffer(words, data=kept.data), taken)
    return body if ir.is_const(load.predicate, 1) else ir.IfThenElse(load.predicate, body, None)


@prim_func_pass(opt_level=0, name="tvm_hopper.HintLoads")
class HintLoads:
    """See the module's docstring for the rewrite."""

    def transform_function(self, func, mod, ctx):
        """Lower the hints of one function's kernels."""

        def hint(kernel: ir.For) -> Any:
            if not ir.find_blocks(kernel, LOAD_HINT):
                return kernel
            after = rewrite_hints(kernel, plan_hints(kernel))
            assert not plan_hints(after), "HintLoads left a hint"
            return after

        return ir.map_kernels(func, hint)
