"""The Relax pipeline by its name: what is registered when TVM is imported, and what that calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tvm

NAME = "tvm_hopper"


def register_model_pipeline() -> None:
    """Let `relax.build(..., relax_pipeline="tvm_hopper")` find it, which imports nothing yet."""
    from tvm.relax import pipeline

    if NAME not in pipeline.PIPELINE_MAP:
        pipeline.register_pipeline(NAME)(make_pipeline)


def make_pipeline(**options: Any) -> tvm.transform.Pass:
    """Import the pipeline and make it with options."""
    from tvm_hopper.relax.lowering import model_pipeline

    return model_pipeline(**options)
