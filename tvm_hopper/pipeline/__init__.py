"""The lowering pipeline: TVM's pass list with our passes inserted."""

from .passes import full_list
from .run import Lowered, leave_refused, lower, lower_final, lower_to_hook, run, stock_finalizers

__all__ = [
    "Lowered",
    "full_list",
    "leave_refused",
    "lower",
    "lower_final",
    "lower_to_hook",
    "run",
    "stock_finalizers",
]
