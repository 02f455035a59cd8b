"""Access a thread's elements as vectors, also at a tensor's end and where an index names them.

    rows that do not exist are computed with the last one                      clamp_rows.py
    rows that begin at any element are covered by aligned vectors              align_row_vectors.py
    vectors that may lie across a tensor's end are whole ones or elements     split_vector_tails.py
    vectors that go over the end of a row say where they begin                 join_vector_rows.py
    elements that lie side by side where an index starts are a vector          vectorize_gathers.py
    where elements are loaded one by one, a thread divides once              hoist_index_numbers.py

Before: a thread's registers are its own, conditions stand on blocks.  After: no condition on an
element around a vector, no neighbours that are loaded one by one, in kernels bound by memory.
"""

from __future__ import annotations

from tvm_hopper.transforms.kernel_pass import function_pass

from .align_row_vectors import align_row_vectors
from .clamp_rows import clamp_rows
from .hoist_index_numbers import hoist_index_numbers
from .join_vector_rows import join_vector_rows
from .split_vector_tails import split_vector_tails
from .vectorize_gathers import vectorize_gathers

VectorizeAccesses = function_pass(
    "VectorizeAccesses",
    clamp_rows,
    align_row_vectors,
    split_vector_tails,
    join_vector_rows,
    vectorize_gathers,
    hoist_index_numbers,
)
