"""Products of one input become one, and their weights are joined by a function of its own."""

import numpy as np
import pytest
import tvm
from tvm import relax

import tvm_hopper
from tests.relax import models
from tvm_hopper.errors import OptionError
from tvm_hopper.relax import join_products, report
from tvm_hopper.relax.join_products import find_gates
from tvm_hopper.relax.records import OURS
from tvm_hopper.testing.llama import SMALL, llama, separate_block
from tvm_hopper.testing.relax_forms import model_of

ROWS = (2, 3)


def weights(mod):
    """Draw the weights of `separate_block`, in its order."""
    return models.inputs_of(mod, "main", {"batch": ROWS[0], "length": ROWS[1]})


def run(mod, name, given):
    given = given if name == "main" else [given]  # a tuple
    return models.on_processor(models.legalized(mod), name, given)


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("params", ["packed", "plain"])
def test_values_are_the_same(params):
    mod = separate_block(SMALL, "float32", params)
    given = weights(mod)
    joined = join_products(mod)
    made = run(joined, "transform_params", given[1:] if params == "plain" else given[1])
    assert len(made) == 9 - 3  # k, v and up went into others
    after = [made] if params == "packed" else made
    for want, got in zip(
        run(mod, "main", given), run(joined, "main", [given[0], *after]), strict=True
    ):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_nothing_is_joined_at_a_call():
    mod = join_products(separate_block())
    text = mod["main"].script()
    assert "R.concat" not in text
    assert "R.permute_dims" not in mod["transform_params"].script()
    found = report(mod, models.H200, classes=(16,))
    products = [x for x in found.functions if x.product]
    wide = SMALL.heads * SMALL.head + 2 * SMALL.kv_heads * SMALL.head
    assert sorted(x.product.columns for x in products) == sorted(
        [wide, SMALL.hidden, 2 * SMALL.inner, SMALL.hidden]
    )
    assert all(x.product.majors == ("k", "k") for x in products)
    assert all(x.computed_by == OURS for x in found.functions)


def test_gates_stay_apart():
    mod = separate_block()
    assert len(find_gates(mod)) == 2
    joined = join_products(mod, gates=False)
    found = report(joined, models.H200, classes=(16,)).functions
    assert sorted(x.product.columns for x in found if x.product).count(SMALL.inner) == 2
    assert any("silu" in x.name and x.product for x in found)
    assert "R.concat" not in joined["main"].script()


def test_a_model_without_such_products():
    mod = llama(SMALL, attention="none")
    assert join_products(mod) is mod


def test_what_is_no_module():
    with pytest.raises(OptionError, match=r"relax\.join_products: found int; need an IRModule"):
        join_products(3)


def test_weights_that_nobody_tells():
    mod = separate_block()
    mod.update_func(mod.get_global_var("main"), mod["main"].without_attr("num_input"))
    with pytest.raises(OptionError, match=r"function main: found products of one input, and no"):
        join_products(mod)


@pytest.mark.parametrize("turned", [False, True])
def test_columns_that_never_were_rows(turned):
    """Weights that lie (depth, columns) are joined as they lie, too."""

    def build(x, one, other):
        left = relax.op.permute_dims(one) if turned else one
        return relax.op.subtract(relax.op.matmul(x, left), relax.op.matmul(x, other))

    tensors = (((n, 32), "float32") for n in (4, 32, 32))
    mod = model_of(build, *tensors, num_input=1)
    given = models.inputs_of(mod, "main", {})
    joined = join_products(mod)
    made = run(joined, "transform_params", given[1:])
    (got,) = run(joined, "main", [given[0], *made])
    np.testing.assert_allclose(got, run(mod, "main", given)[0], rtol=1e-5, atol=1e-5)


def test_a_joined_model_builds():
    pipeline = relax.get_pipeline("tvm_hopper", classes=(16,))
    ex = relax.build(join_products(separate_block()), models.H200, relax_pipeline=pipeline)
    assert isinstance(ex, tvm.relax.VMExecutable)
    assert "transform_params" in {call.caller for x in report(ex).functions for call in x.calls}
    assert tvm_hopper.relax.join_products is join_products
