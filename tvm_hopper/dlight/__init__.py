"""dlight schedule rules for `ApplyDefaultSchedule`: ours first, then TVM's.

dl.ApplyDefaultSchedule(
    tvm_hopper.dlight.Matmul(),
    tvm_hopper.dlight.RowReduction(),
    tvm_hopper.dlight.ColumnReduction(),
    tvm_hopper.dlight.Pointwise(),
    *tvm_hopper.dlight.stock(),
)(mod)
"""

from .attention import AttentionRule as Attention
from .collection import rules, stock
from .decisions import Decision, by_name
from .memory_bound import (
    ColumnReductionRule as ColumnReduction,
    PointwiseRule as Pointwise,
    RowReductionRule as RowReduction,
)
from .product import MatmulRule as Matmul

__all__ = [
    "Attention",
    "ColumnReduction",
    "Decision",
    "Matmul",
    "Pointwise",
    "RowReduction",
    "by_name",
    "rules",
    "stock",
]
