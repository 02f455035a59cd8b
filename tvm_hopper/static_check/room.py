"""Check a final kernel's shared memory, threads and blocks against launch limits.

Passes of ours plan what hardware copies; what threads copy TVM gives its slots, and merges, so that
the sum is known at the end alone. The driver would refuse the launch, and say neither what is
large nor how much there is; the assembler takes any number of threads.
"""

from __future__ import annotations

from math import prod

from tvm import tirx

from tvm_hopper.errors import cannot_lower
from tvm_hopper.facts.programming_model import MAX_EXTENTS, MAX_THREADS
from tvm_hopper.sim.tir import arch_of_kernel, nodes_in, numpy_dtype, thread_extents


def require_room(
    device_func: tirx.PrimFunc, host_func: tirx.PrimFunc | None = None
) -> tirx.PrimFunc:
    """Return the function, or raise where no thread block of its target has room for it.

    - raises LoweringError: the kernel declares more shared memory than a thread block of its target
      has, or requests more threads or blocks than a launch may have.
    """
    where = f"kernel {(device_func.attrs or {}).get('global_symbol', '')}"
    _check_extents(device_func, where)
    sizes: dict[str, int] = {}
    for buffer in (x.buffer for x in nodes_in(device_func.body, tirx.AllocBuffer)):
        if str(buffer.scope()).startswith("shared"):
            count = prod(int(x) if isinstance(x, tirx.IntImm) else 0 for x in buffer.shape)
            sizes[str(buffer.name)] = count * numpy_dtype(str(buffer.ty.dtype.dtype)).itemsize
    most = arch_of_kernel(device_func).smem_per_block
    if sum(sizes.values()) > most:
        raise cannot_lower(
            where,
            f"shared memory {' + '.join(f'{k} {v}' for k, v in sizes.items())} bytes",
            f"at most {most}",
            "take fewer stages or a smaller tile",
        )
    return device_func


def _check_extents(device_func: tirx.PrimFunc, where: str) -> None:
    """Refuse more threads or blocks than a launch may have, where their number is known."""
    known = {
        tag: int(extent)
        for tag, (_, extent) in thread_extents(device_func).items()
        if isinstance(extent, (int, tirx.IntImm))
    }
    for tag, most in MAX_EXTENTS.items():
        if known.get(tag, 0) > most:
            raise cannot_lower(
                where, f"{tag} of {known[tag]}", f"at most {most}", "split the loop bound to it"
            )
    threads = {tag: extent for tag, extent in known.items() if tag.startswith("threadIdx")}
    if prod(threads.values()) > MAX_THREADS:
        raise cannot_lower(
            where,
            f"{' x '.join(map(str, threads.values()))} threads in a block",
            f"at most {MAX_THREADS}",
            "split the loops bound to them, so that each thread has more of the elements",
        )
