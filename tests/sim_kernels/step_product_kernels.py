"""Schedule a product step by step, verify it, and compare with the plain program."""

from tvm_hopper.simulation import load, verify
from tvm_hopper.testing import step_products, workloads
from tvm_hopper.testing.step_products import ProductTiling


def check(problem: tuple[int, int, int], tiling: ProductTiling, layout: str = "NT") -> None:
    """Verify a product in every schedule of the model, and its values."""
    mod = workloads.matmul(*problem, layout)
    report = verify(load(step_products.schedule(mod, tiling)), against=mod).require_clean()
    assert "values compared" in str(report)
