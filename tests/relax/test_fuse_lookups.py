"""FuseLookups: matrices that a table names are read where they lie."""

import pytest
from tvm import relax
from tvm.target import Target

from tests.relax import models
from tvm_hopper.relax.keep_records import records_of
from tvm_hopper.relax.records import OURS
from tvm_hopper.testing.relax_forms import model_of

op = relax.op


def build(compute, dtype="float16", tokens=4, rows=16):
    tensors = ((tokens, rows, 64), dtype), ((3, 40, 64), dtype), ((tokens,), "int32")
    return model_of(compute, *tensors, num_input=1)


def experts(x, w, e):
    return op.nn.relu(op.matmul(x, op.permute_dims(op.take(w, e, axis=0), (0, 2, 1))))


def read_twice(x, w, e):
    chosen = op.take(w, e, axis=0)
    return op.add(op.sum(op.matmul(x, op.permute_dims(chosen, (0, 2, 1)))), op.sum(chosen))


@pytest.mark.parametrize(
    ("compute", "dtype", "count"),
    [
        (experts, "float16", 1),
        (experts, "float32", 2),  # no tensor cores: TVM has both
        (read_twice, "float16", None),  # what is chosen is needed in memory
    ],
)
def test_functions(compute, dtype, count):
    mod = build(compute, dtype)
    with Target(models.H200):
        found = models.plain_functions(mod)
    assert any("take" in x and "matmul" in x for x in found) == (count == 1)
    assert count is None or len(found) == count


@pytest.mark.parametrize(("tokens", "rows", "sorted_rows"), [(4, 16, False), (32, 1, True)])
def test_values(tokens, rows, sorted_rows):
    """Of many tokens, rows of each expert are one group: it is read once."""
    mod = build(experts, tokens=tokens, rows=rows)
    scheduled = models.schedule(mod)
    (record,) = records_of(scheduled)
    assert record.computed_by == OURS
    assert ("order = T.sblock_alloc_buffer" in scheduled.script()) == sorted_rows
    assert models.check_values(scheduled, models.plain_functions(mod), (16,)) == 1
