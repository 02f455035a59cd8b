"""Whether a final kernel's shared memory is as much as a thread block may have.

Passes of ours plan what hardware copies; what threads copy TVM gives its slots, and merges, so that
the sum is known at the end alone. The driver would refuse the launch, and say neither what is
large nor how much there is.
"""

from __future__ import annotations

import tvm_ffi
from tvm import tirx

from tvm_hopper.errors import cannot_lower
from tvm_hopper.sim.tir import arch_of_kernel, numpy_dtype


def require_room(
    device_func: tirx.PrimFunc, host_func: tirx.PrimFunc | None = None
) -> tirx.PrimFunc:
    """Return the function, or raise where its shared memory is too large.

    Raises
    ------
    LoweringError
        The kernel declares more than a thread block of its target has.
    """
    sizes: dict[str, int] = {}

    def visit(node: tirx.AllocBuffer) -> None:
        buffer = node.buffer
        if str(buffer.scope()).startswith("shared"):
            count = 1
            for extent in buffer.shape:
                count *= int(extent) if isinstance(extent, tirx.IntImm) else 0
            size = count * numpy_dtype(str(buffer.ty.dtype.dtype)).itemsize
            sizes[str(buffer.name)] = size

    tvm_ffi.structural_walk(device_func.body, (tirx.AllocBuffer, visit))
    most = arch_of_kernel(device_func).smem_per_block
    if sum(sizes.values()) > most:
        raise cannot_lower(
            f"kernel {(device_func.attrs or {}).get('global_symbol', '')}",
            f"shared memory {' + '.join(f'{k} {v}' for k, v in sizes.items())} bytes",
            f"at most {most}",
            "take fewer stages or a smaller tile",
        )
    return device_func
