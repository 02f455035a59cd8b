"""Products on the tensor cores of TVM's tests, at a size to simulate (testing/ampere_products)."""

from __future__ import annotations

import tvm

from tvm_hopper.testing import ampere_products

from .pipelines import Notes

SHAPE = (128, 128, 192)


def product(outer: Notes, inner: Notes | None = None) -> tvm.IRModule:
    """Schedule C = A B, float16 to float32, its loop over tiles and that over steps pipelined."""
    return ampere_products.schedule(SHAPE, (outer, inner or {}))


def plain() -> tvm.IRModule:
    """Return the same product, not scheduled."""
    return ampere_products.product(*SHAPE)
