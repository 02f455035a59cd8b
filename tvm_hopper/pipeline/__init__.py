"""The lowering pipeline: TVM's pass list with our passes inserted."""

from .cached import (
    Remembered as Remembered,
    remember as remember,
    remember_half as remember_half,
)
from .passes import full_list as full_list
from .run import (
    Lowered as Lowered,
    leave_refused as leave_refused,
    lower as lower,
    lower_final as lower_final,
    lower_to_hook as lower_to_hook,
    run as run,
    stock_finalizers as stock_finalizers,
)
