"""Relax models: the pipeline "tvm_hopper", a switch for plain `relax.build`, the report.

ex = relax.build(mod, target="nvidia/nvidia-h200", relax_pipeline="tvm_hopper")
print(tvm_hopper.relax.report(ex))
"""

from .hoist_weights import hoist_weights
from .join_products import join_products
from .lowering import model_pipeline, prepare
from .model_report import ModelReport, report
from .nvtx import nvtx_ranges
from .options import ModelOptions
from .switch import disable, enable
from .to_half import cast_weights, to_half

__all__ = [
    "ModelOptions",
    "ModelReport",
    "cast_weights",
    "disable",
    "enable",
    "hoist_weights",
    "join_products",
    "model_pipeline",
    "nvtx_ranges",
    "prepare",
    "report",
    "to_half",
]
