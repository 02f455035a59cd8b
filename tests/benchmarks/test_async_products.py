"""The benchmark of products by mma.sync: its schedule builds in every way, untouched."""

import pytest

from benchmarks import async_products
from tests.upstream.products import by_call, index_maps

SHAPE = (256, 256, 256)


@pytest.mark.parametrize("pipeline", async_products.NOTES)
def test_every_way_builds(pipeline):
    with index_maps():
        kernels, errors = async_products.build(SHAPE, async_products.NOTES[pipeline], by_call())
    assert errors == {}
    assert list(kernels) == list(async_products.WAYS)


def test_an_error_leaves_the_other_ways():
    kernels, errors = async_products.build(
        (256, 256, 100), async_products.NOTES["simple"], by_call()
    )
    assert kernels == {}
    assert list(errors) == list(async_products.WAYS)
