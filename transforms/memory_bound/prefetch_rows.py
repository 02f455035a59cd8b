"""Bring the rows of later iterations closer, as far as the chip can.

    rows that no bulk copy can stage are read from memory          unstage_rows.py
    the next row's scalars wait in registers                       prefetch_row_scalars.py
    rows of the next iterations wait in shared memory              stage_rows_in_shared.py
    or in L2, where registers and shared memory have no room       prefetch_rows_to_l2.py

Before: loads of rows are blocks that copy elements into registers, each with its condition.
After: no `stage_rows` and no `prefetch_rows` is left.
"""

from __future__ import annotations

from tvm_hopper.transforms.kernel_pass import function_pass

from .prefetch_row_scalars import prefetch_row_scalars
from .prefetch_rows_to_l2 import prefetch_rows_to_l2
from .stage_rows_in_shared import stage_rows_in_shared
from .unstage_rows import unstage_rows

# scalars first: loops that ask for rows still say so
PrefetchRows = function_pass(
    "PrefetchRows", unstage_rows, prefetch_row_scalars, stage_rows_in_shared, prefetch_rows_to_l2
)
