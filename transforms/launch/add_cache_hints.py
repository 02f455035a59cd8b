"""Add L1 and L2 cache hints to the vectors that a thread loads and stores.

    for v in vectorized(8):
        with sblock("X_local", annotations={"tvm_hopper.load_hint": "evict_last"}):
            X_local[c, v] = X[row, c * 1024 + tx * 8 + v]
  ->
    words = decl_buffer((16,), "uint32", data=X_local.data)
    ld.global.L1::evict_last.L2::cache_hint.v4.b32(words[c * 4], .., words[c * 4 + 3],
                                                   address_of(X[..]), policy)

An H200 copies 1 to 3% faster if L2 evicts loaded data last and stored data first
(docs/memory_bound.md). What is read a second time waits in L1 and is given up first then.

With `tvm_hopper.kept_end` = n on the loop over thread blocks it is the other way round in the last
n of them: L2 evicts their loads first and their stores last. So the end of the result is there for
whoever reads it, and is not written to memory while the kernel still waits for that.

    policy = bx >= extent - n ? evict_first : evict_last                    of loads
    st.global.L2::cache_hint.v4.b32(address_of(Y[..]), words[0], .., words[3],
                                    bx >= extent - n ? evict_last : evict_normal)

Before: vectors have no tails.  After: no block has such
a hint; one policy for each kind is at the kernel's start.
Not here: vectors of less than 8 bytes and single elements, which are loaded and stored without.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.codegen_patches.ptx import cache
from tvm_hopper.errors import cannot_lower
from tvm_hopper.facts.dtypes import dtype_bytes
from tvm_hopper.requests.keys import KEPT_END, LOAD_HINT
from tvm_hopper.transforms.common.explain_notes import Note, RemarkNote
from tvm_hopper.transforms.kernel_pass import function_pass, map_noted

from .l2_eviction_policies import STORES, create_policies, kept_end

WORD = 4  # bytes
WORDS = (2, 4)  # of a vector with a hint


@dataclass(frozen=True)
class HintedVector:
    """A vector access, its condition and its cache hint.

    `hint` is the word of a load, or STORES.
    """

    loop: ir.For
    predicate: Any
    store: ir.BufferStore
    hint: str

    @property
    def registers(self) -> ir.Var:
        """The array on whose side of the access the thread is."""
        return self.store.value.source if self.hint == STORES else self.store.buffer

    @property
    def num_words(self) -> int:
        """Words of 32 bits that it has."""
        return int(self.loop.extent) * dtype_bytes(ir.dtype_of(self.registers)) // WORD


def plan_hints(kernel: ir.For) -> tuple[HintedVector, ...]:
    """Find the vectors that have a hint; refuse loads that do not go to registers."""
    for block in ir.find_blocks(kernel, LOAD_HINT):
        store = block.body
        if not isinstance(store, ir.BufferStore) or str(store.buffer.scope()) != "local":
            raise cannot_lower(
                f"block {block.name_hint}, {LOAD_HINT}",
                "a block that does not load into registers",
                "one that stores what it loads to a local buffer",
            )
    keeps_end = kept_end(kernel) is not None
    found = []
    for loop in ir.find_all(kernel, ir.For, lambda x: x.kind == ir.ForKind.VECTORIZED):
        realize = loop.body
        if not isinstance(realize, ir.SBlockRealize):
            continue
        block, store = realize.block, realize.block.body
        if not isinstance(store, ir.BufferStore) or not isinstance(store.value, ir.TensorLoad):
            continue
        hint = block.annotations.get(LOAD_HINT)
        if hint is None and not (keeps_end and _leaves_registers(store)):
            continue
        vector = HintedVector(loop, realize.predicate, store, STORES if hint is None else str(hint))
        if vector.num_words in WORDS:
            found.append(vector)
    return tuple(found)


def _leaves_registers(store: ir.BufferStore) -> bool:
    scopes = str(store.value.source.scope()), str(store.buffer.scope())
    return scopes[0] == "local" and scopes[1] in ("", "global")


def rewrite_hints(kernel: ir.For, plan: tuple[HintedVector, ...]) -> Any:
    """Access by instructions with a policy; take the hints off all blocks."""
    policies = {
        hint: ir.new_buffer(f"policy_{hint}", (1,), "uint64", "local")
        for hint in sorted({x.hint for x in plan})
    }
    start, more = create_policies(policies, kernel)
    changed = {
        x.loop: (_store if x.hint == STORES else _load)(x, policies[x.hint][0]) for x in plan
    }
    kernel = ir.replace_nodes(kernel, ir.For, changed)

    def plain(node: Any, key: str, make: Any) -> Any:
        if key not in node.annotations:
            return node
        return make({k: v for k, v in node.annotations.items() if k != key})

    kernel = ir.replace(
        kernel,
        ir.SBlock,
        lambda x: plain(x, LOAD_HINT, lambda rest: ir.with_block(x, annotations=rest)),
    )
    kernel = ir.replace(
        kernel,
        ir.For,
        lambda x: plain(x, KEPT_END, lambda rest: ir.with_body(x, x.body, annotations=rest)),
    )
    if not policies:
        return kernel
    outer = ir.find_all(kernel, ir.SBlock)[0]
    with_policies = ir.with_block(
        outer,
        body=ir.seq(*start, outer.body),
        alloc_buffers=[*outer.alloc_buffers, *policies.values(), *more],
    )
    return ir.replace_nodes(kernel, ir.SBlock, {outer: with_policies})


def _words(vector: HintedVector) -> tuple[ir.Var, list[Any], dict[ir.Var, int]]:
    """Return the registers of a vector as words, and those that it has of them."""
    first = {vector.loop.loop_var: 0}
    kept = vector.registers
    indices = vector.store.value.indices if vector.hint == STORES else vector.store.indices
    total = 1
    for extent in kept.shape:
        total *= int(extent)
    size = dtype_bytes(ir.dtype_of(kept))
    words = ir.new_buffer(f"{kept.name}_words", (total * size // WORD,), "uint32", "local")
    place: Any = 0
    for index, extent in zip(indices, kept.shape, strict=True):
        place = place * int(extent) + ir.substitute(index, first)
    word = ir.simplify(place * size // WORD)
    return words, [tirx.BufferLoad(words, [word + i]) for i in range(vector.num_words)], first


def _guarded(vector: HintedVector, words: ir.Var, access: Any) -> ir.Stmt:
    body = ir.seq(tirx.DeclBuffer(words, data=vector.registers.data), access)
    predicate = vector.predicate
    return body if ir.is_const(predicate, 1) else ir.IfThenElse(predicate, body, None)


def _load(vector: HintedVector, policy: Any) -> ir.Stmt:
    """Load one vector into the words of its registers."""
    words, targets, first = _words(vector)
    value = vector.store.value
    loaded = [ir.simplify(ir.substitute(x, first)) for x in value.indices]
    source = tirx.address_of(tirx.BufferLoad(value.source, loaded))
    return _guarded(vector, words, cache.load_hinted(targets, source, vector.hint, policy))


def _store(vector: HintedVector, policy: Any) -> ir.Stmt:
    """Store one vector from the words of its registers."""
    words, values, first = _words(vector)
    stored = [ir.simplify(ir.substitute(x, first)) for x in vector.store.indices]
    target = tirx.address_of(tirx.BufferLoad(vector.store.buffer, stored))
    return _guarded(vector, words, cache.store_hinted(target, values, policy))


def _remark(kernel: ir.For, count: int) -> RemarkNote:
    extent = ir.static_int(ir.thread_axes(kernel)["blockIdx.x"].extent)
    which = "all" if extent == count else f"the last {count}"
    return RemarkNote(f"L2 evicts last what {which} of the thread blocks store")


def _hint_vectors(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Lower the hints of one function's kernels."""

    def hint(kernel: ir.For, notes: list[Note]) -> Any:
        if kept_end(kernel) is None and not ir.find_blocks(kernel, LOAD_HINT):
            return kernel
        plan = plan_hints(kernel)
        if (count := kept_end(kernel)) and any(x.hint == STORES for x in plan):
            notes += [_remark(kernel, count)]
        after = rewrite_hints(kernel, plan)
        assert not plan_hints(after), "AddCacheHints left a hint"
        return after

    return map_noted(func, hint)


AddCacheHints = function_pass("AddCacheHints", _hint_vectors)
