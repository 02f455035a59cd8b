"""TVM's own annotations in our functions: supported ones are read, others are errors.

A kernel of ours is rebuilt: its loops become thread axes, rings and instructions, and what stood on
them is gone. Of TVM's annotations the pipeline's three are read, on the loop around copies and
product. Other annotations for TVM's passes, and unrolled, vectorised or parallel loops, would be
lost. Kernels of the same function without our annotations go through TVM's passes; only misspelt
keys are checked there.
"""

from __future__ import annotations

from collections.abc import Mapping

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.errors import cannot_lower
from tvm_hopper.requests import keys, options, spelling

# Annotations of blocks that stock passes act on, in the order in which they run.
_BLOCK_KEYS = (
    "tirx.manifest_shared_memory_local_stage",
    keys.DIM_ALIGN,
    "auto_copy",
    "local_stage",
    "vector_bytes",
    "permuted_layout",
    "double_buffer_scope",
    "warp_execution",
    *keys.PIPELINE_KEYS,
)
_PRAGMA = "pragma_"


def check_function(name: str, func: tirx.PrimFunc) -> None:
    """Refuse what a function of ours asks of TVM and would not get, or cannot be read."""
    if keys.FAST_MATH in func.attrs:
        raise cannot_lower(
            f"{name}, attribute",
            f"{keys.FAST_MATH}, which TVM reads from the PassContext alone",
            "it there",
            f'PassContext(config={{"{keys.FAST_MATH}": True}})',
        )
    for key in map(str, func.attrs.keys()):
        if key in keys.PIPELINE_KEYS or spelling.is_misspelt_pipeline_key(key):
            raise cannot_lower(
                f"{name}, attribute",
                f"{key} on a function",
                "it on the serial loop around the copies of a kernel and what reads them",
                "remove it here",
            )
    for block in ir.find_all(func.body, ir.SBlock, lambda x: bool(x.annotations)):
        _check_spelling(f"{name}, block {block.name_hint}", block.annotations)
        _check_pragmas(f"{name}, block {block.name_hint}", block.annotations)
        _check_block(name, block, keys.PIPELINE_KEYS)
    for loop in ir.find_all(func.body, ir.For, lambda x: bool(x.annotations)):
        _check_spelling(_where(name, loop), loop.annotations)
        for key in keys.PIPELINE_KEYS:
            if key in loop.annotations:
                _check_list(name, loop, key)
    kernels = [kernel for kernel in ir.kernels(func) if _ours(kernel)]
    for kernel in kernels:
        for block in ir.find_all(kernel, ir.SBlock):
            _check_block(name, block)
        for loop in ir.find_all(kernel, ir.For):
            _check_loop(name, loop, kernel)
    for loop in ir.find_all(func.body, ir.For, lambda x: x.kind != ir.ForKind.THREAD_BINDING):
        if any(ir.uses_node(loop.body, kernel) for kernel in kernels):
            _check_pipeline(name, loop, legal=False)


def _check_pragmas(where: str, annotations: Mapping[str, object]) -> None:
    """Refuse pragmas of a block: TVM hears none in a kernel, and fails on odd values outside."""
    for key in map(str, annotations):
        if key.startswith(_PRAGMA):
            raise cannot_lower(
                where, f"{key} on a block", "none there", "remove it, or put it on a loop"
            )


def _check_spelling(where: str, annotations: Mapping[str, object]) -> None:
    for key in map(str, annotations):
        if spelling.is_misspelt_pipeline_key(key):
            near = spelling.closest_pipeline_key(key)
            raise cannot_lower(
                where,
                f"unknown key {key}",
                "one of " + ", ".join(keys.PIPELINE_KEYS),
                f"did you mean {near}?",
            )


def _check_list(function: str, loop: ir.For, key: str) -> None:
    """Refuse what is no list of integers: 1.5 or "2" would be cut or read as one."""
    value = options.plain(loop.annotations[key])
    if not isinstance(value, list) or any(type(x) is not int for x in value):
        raise cannot_lower(_where(function, loop), f"{key} = {value!r}", "a list of integers")


def _check_block(function: str, block: ir.SBlock, unheard: tuple[str, ...] = _BLOCK_KEYS) -> None:
    for key in map(str, block.annotations):
        if key in unheard:
            raise cannot_lower(
                f"{function}, block {block.name_hint}",
                f"{key} in a kernel of tvm_hopper, which decides layouts and copies itself",
                "none there",
                "remove it",
            )


def _check_loop(function: str, loop: ir.For, kernel: ir.For) -> None:
    if loop.kind in _unheard(kernel, loop) and keys.STAGE not in loop.annotations:
        kind = ir.ForKind(loop.kind).name.lower()
        raise cannot_lower(
            _where(function, loop),
            f"a loop of kind {kind} in a kernel of tvm_hopper, which distributes its loops itself",
            "serial loops, and loops bound to thread axes",
            f"leave {_PRIMITIVE[loop.kind]} away",
        )
    for key in map(str, loop.annotations):
        if key.startswith(_PRAGMA) and loop.same_as(kernel):  # UnrollLoop hears the outermost one's
            value = options.plain(loop.annotations[key])
            if type(value) not in (int, bool):
                raise cannot_lower(_where(function, loop), f"{key} = {value!r}", "an integer")
        elif key.startswith(_PRAGMA):
            raise cannot_lower(
                _where(function, loop),
                f"{key} in a kernel of tvm_hopper, which unrolls its loops itself",
                "none there",
                "remove it, or put it on the kernel's outermost loop",
            )
    legal = _holds_pipeline(loop) or _is_inner_pipeline(kernel, loop)
    _check_pipeline(function, loop, legal=legal)


def _unheard(kernel: ir.For, loop: ir.For) -> tuple[ir.ForKind, ...]:
    """Return the kinds that nothing would come of; plain loops on tiles stay as scheduled."""
    if ir.find_blocks(kernel, keys.WGMMA):
        return (ir.ForKind.PARALLEL, ir.ForKind.VECTORIZED, ir.ForKind.UNROLLED)
    return (ir.ForKind.PARALLEL,)


def _check_pipeline(function: str, loop: ir.For, legal: bool) -> None:
    for key in keys.PIPELINE_KEYS:
        if key in loop.annotations and not legal:
            raise cannot_lower(
                _where(function, loop),
                f"{key} on a loop that is not around the copies of a kernel and what reads them",
                "it on the serial loop around both",
                "remove it here",
            )


_PRIMITIVE = {
    ir.ForKind.PARALLEL: "Schedule.parallel",
    ir.ForKind.VECTORIZED: "Schedule.vectorize",
    ir.ForKind.UNROLLED: "Schedule.unroll",
}


def _holds_pipeline(loop: ir.For) -> bool:
    """Tell whether a loop holds a block with a key of ours, and another block or statement."""
    parts = ir.statements(ir.peel_blocks(loop.body))
    several = len(parts) > 1 or len(ir.find_all(loop.body, ir.SBlock)) > 1
    return loop.kind != ir.ForKind.THREAD_BINDING and several and _ours(loop)


def _is_inner_pipeline(kernel: ir.For, loop: ir.For) -> bool:
    """Tell a pipeline of threads alone inside of one with copies, where its parts are stages."""
    around = ir.find_all(
        kernel,
        ir.For,
        lambda x: keys.STAGE in x.annotations and not x.same_as(loop) and ir.uses_node(x, loop),
    )
    is_plain = not _ours(loop) and keys.ASYNC_STAGES not in loop.annotations
    return loop.kind == ir.ForKind.SERIAL and is_plain and any(map(_ours, around))


def _ours(root: ir.For) -> bool:
    blocks = ir.find_all(root, ir.SBlock)
    return any(key in block.annotations for block in blocks for key in keys.KEYS)


def _where(function: str, loop: ir.For) -> str:
    blocks = ir.find_all(loop.body, ir.SBlock)
    block = f" of block {blocks[0].name_hint}" if len(blocks) == 1 else ""
    return f"{function}, loop {loop.loop_var.name}{block}"
