"""Make the kernels of split-K modes that take more than one.

    by caller      a branch on the host: a workspace if the call brings an allocator, else a
                   cluster                                 dispatch_split_k_by_allocator.py
    by atomics     a kernel in front sets the output to zero          split_k_by_atomics.py

Before: kernels are not numbered yet, copies are requests.  After: each sum meets in one way; those
that LowerSplitK makes kernels of are left.
"""

from __future__ import annotations

from tvm_hopper.transforms.kernel_pass import function_pass

from .dispatch_split_k_by_allocator import dispatch_split_k_by_allocator
from .split_k_by_atomics import split_k_by_atomics

MakeSplitKKernels = function_pass(
    "MakeSplitKKernels", dispatch_split_k_by_allocator, split_k_by_atomics
)
