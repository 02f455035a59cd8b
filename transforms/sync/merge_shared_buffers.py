"""Merge the dynamic shared arrays of a kernel into one allocation with final offsets.

    ring = alloc((32768,), "float16", "shared.dyn", align=1024)
    full = alloc((4,), "uint64", "shared.dyn")
    ... ring[i], &full[s], ring.data ...
  ->
    dyn_smem = alloc((65568,), "uint8", "shared.dyn", align=1024)
    ring = decl_buffer(float16, data=dyn_smem); full = decl_buffer(uint64, data=dyn_smem)
    ... ring[i], &full[8192 + s], &ring[0] ...

Two buffers overlap only where an `overlay` statement allows it: what has to be waited for in
between is in the kernel already. TVM's own passes merge by straight-line liveness: they ignore
copies and multiplications in flight, drop buffers used only by address, and align the base to 64
bytes only.

Before: buffers are flat, right before StorageRewrite.  After: one dynamic shared allocation, at
which stock merging has nothing left to do.
Not here: which buffers may overlap (overlay_shared_buffers.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.errors import cannot_lower
from tvm_hopper.facts.arch import Arch
from tvm_hopper.facts.dtypes import dtype_bytes
from tvm_hopper.requests.targets import arch_of
from tvm_hopper.transforms.common.explain_notes import SmemNote, note_kernels
from tvm_hopper.transforms.common.overlay_pairs import find_overlays, parse_overlay
from tvm_hopper.transforms.common.shared_memory_size import (
    TILE_ALIGNMENT,
    SharedArray,
    SharedMemory,
    shared_array,
)
from tvm_hopper.transforms.kernel_pass import function_pass

NAME = "dyn_smem"


@dataclass(frozen=True)
class SharedPlacement:
    """One buffer at its offset."""

    buffer: ir.Var
    offset_bytes: int

    @property
    def element_bytes(self) -> int:
        """Size of an element."""
        return dtype_bytes(ir.dtype_of(self.buffer))

    @property
    def num_bytes(self) -> int:
        """Size of the buffer."""
        return prod(int(x) for x in self.buffer.shape) * self.element_bytes

    @property
    def offset(self) -> int:
        """Offset in elements."""
        return self.offset_bytes // self.element_bytes


@dataclass(frozen=True)
class SharedPlan:
    """The shared memory of one kernel."""

    kernel: Any  # the outermost thread_extent attribute
    buffers: tuple[ir.Var, ...]
    memory: SharedMemory  # of `buffers`, in the same order
    arch: Arch

    def __post_init__(self) -> None:
        if not self.memory.fits_on(self.arch):
            sizes = " + ".join(f"{p.buffer.name} {p.num_bytes}" for p in self.placements)
            raise cannot_lower(
                "shared memory",
                f"{sizes} = {self.num_bytes} bytes with alignment",
                f"at most {self.arch.smem_per_block}",
                "take fewer stages or a smaller tile",
            )

    @property
    def num_bytes(self) -> int:
        """Size of the allocation."""
        return self.memory.num_bytes

    @property
    def placements(self) -> tuple[SharedPlacement, ...]:
        """Each buffer at its offset, in order."""
        offsets = self.memory.offsets
        return tuple(SharedPlacement(self.buffers[i], offsets[i]) for i in self.memory.order)


def plan_shared(func: tirx.PrimFunc) -> tuple[SharedPlan, ...]:
    """Place the dynamic shared buffers of each kernel of ours, the most aligned first."""
    plans = []
    for kernel in filter(ir.is_ours, ir.outermost_thread_extents(func.body)):
        allocations = ir.find_all(
            kernel,
            tirx.AllocBuffer,
            lambda x: x.buffer.scope() == "shared.dyn" and not x.buffer.name.startswith(NAME),
        )
        if allocations:
            buffers = tuple(x.buffer for x in allocations)
            memory = SharedMemory(tuple(_array(x) for x in allocations), _overlays(kernel, buffers))
            plans.append(SharedPlan(kernel, buffers, memory, arch_of(func)))
    return tuple(plans)


def _overlays(kernel: Any, buffers: tuple[ir.Var, ...]) -> frozenset[frozenset[int]]:
    """Return the pairs of positions that may lie in the same bytes."""
    numbers = {buffer: i for i, buffer in enumerate(buffers)}
    return frozenset(frozenset(numbers[x] for x in pair) for pair in find_overlays(kernel))


def _array(allocation: Any) -> SharedArray:
    """Describe an allocation by what it takes."""
    buffer = allocation.buffer
    if any(ir.static_int(extent) is None for extent in buffer.shape):
        raise cannot_lower(
            f"shared buffer {buffer.name}", f"shape {list(buffer.shape)}", "a static shape"
        )
    noted = int(allocation.annotations.get("buffer_data_alignment", 0))
    return shared_array(buffer, noted)


def rewrite_shared(func: tirx.PrimFunc, plans: tuple[SharedPlan, ...]) -> tirx.PrimFunc:
    """Put one allocation at the top of each kernel and move every access to it."""
    planned = {plan.kernel: _rewrite_kernel(plan) for plan in plans}
    return func.with_body(ir.replace_nodes(func.body, tirx.AttrStmt, planned))


def _rewrite_kernel(plan: SharedPlan) -> ir.Stmt:
    dtype = _allocated_type(plan)
    shape = (plan.num_bytes // dtype_bytes(dtype),)
    merged = ir.new_buffer(_name(dtype), shape, dtype, "shared.dyn", TILE_ALIGNMENT)
    views = {p.buffer: (_view(p.buffer), p.offset) for p in plan.placements}

    def load(node: ir.TensorLoad, mutator: Any) -> ir.TensorLoad:
        node = mutator.default_mutate(node)
        if node.source not in views:
            return node
        view, offset = views[node.source]
        return tirx.BufferLoad(view, [node.indices[0] + offset])

    def store(node: ir.BufferStore, mutator: Any) -> ir.BufferStore:
        node = mutator.default_mutate(node)
        if node.buffer not in views:
            return node
        view, offset = views[node.buffer]
        return ir.BufferStore(view, node.value, [node.indices[0] + offset])

    def call(node: ir.Call, mutator: Any) -> Any:
        if parse_overlay(node) is not None:
            return tirx.IntImm("int32", 0)
        buffer = ir.pointer_of(node)
        if buffer is not None and buffer in views:
            view, offset = views[buffer]
            return tirx.address_of(tirx.BufferLoad(view, [offset]))
        if node.op.name == ir.ACCESS_PTR and (buffer := ir.pointer_of(node.args[1])) in views:
            view, offset = views[buffer]  # TVM looks through it, and refuses a pointer to bytes
            return tirx.address_of(tirx.BufferLoad(view, [mutator.mutate(node.args[2]) + offset]))
        return mutator.default_mutate(node)

    def allocation(node: Any, mutator: Any) -> Any:
        return ir.seq() if node.buffer in views else mutator.default_mutate(node)

    kernel = plan.kernel
    body = ir.mutate(
        kernel.body,
        [
            (tirx.AllocBuffer, allocation),
            (ir.TensorLoad, load),
            (ir.BufferStore, store),
            (ir.Call, call),
        ],
    )
    declared = [tirx.DeclBuffer(view, data=merged.data) for view, _ in views.values()]
    return tirx.AttrStmt(
        kernel.node, kernel.attr_key, kernel.value, ir.seq(tirx.AllocBuffer(merged), declared, body)
    )


def _name(dtype: str) -> str:
    """Return the allocation's name: CUDA takes one type for a name, in all kernels of a text."""
    return NAME if dtype == "uint8" else f"{NAME}_{dtype}"


def _allocated_type(plan: SharedPlan) -> str:
    """Return the type of all buffers, or bytes.

    TVM gives an allocation the one type of its accesses, and does not count its elements again.
    """
    dtypes = {ir.dtype_of(buffer) for buffer in plan.buffers}
    return dtypes.pop() if len(dtypes) == 1 else "uint8"


def _view(buffer: ir.Var) -> ir.Var:
    shape = tuple(int(extent) for extent in buffer.shape)
    return ir.new_buffer(
        buffer.name, shape, ir.dtype_of(buffer), "shared.dyn", int(buffer.ty.data_alignment)
    )


def _merge_shared(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Merge the shared buffers of one function's kernels."""
    if not (plans := plan_shared(func)):
        return func
    after = rewrite_shared(func, plans)
    assert not plan_shared(after), "MergeSharedBuffers left an allocation after"
    notes = {
        number: _facts(plan)
        for number, kernel in enumerate(ir.outermost_thread_extents(func.body))
        for plan in plans
        if plan.kernel.same_as(kernel)
    }
    return note_kernels(after, notes)


MergeSharedBuffers = function_pass("MergeSharedBuffers", _merge_shared)


def _facts(plan: SharedPlan) -> list[SmemNote]:
    """Return what `explain` says of shared memory."""
    return [SmemNote(p.buffer.name, p.offset_bytes, p.num_bytes) for p in plan.placements]
