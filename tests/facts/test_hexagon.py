"""Hexagon's limits, against TVM's own target tags and the sources of its runtime."""

import pytest
from tvm.target import Target, list_tags

from tvm_hopper.facts.arch import ARCHS
from tvm_hopper.facts.hexagon import HEXAGONS

MIB = 1 << 20


@pytest.mark.parametrize("name", HEXAGONS)
def test_vtcm_is_what_tvm_s_tag_says(name):
    target = Target(f"qcom/hexagon-{name.removeprefix('hexagon')}")
    assert target.attrs["mcpu"] == name
    assert HEXAGONS[name].vtcm_bytes == HEXAGONS[name].tile_bytes == target.attrs["vtcm-capacity"]


def test_every_tag_with_user_dma_has_a_row():
    """The instructions came with v68."""
    versions = [int(tag[-2:]) for tag in list_tags() if tag.startswith("qcom/hexagon-v")]
    assert sorted(HEXAGONS) == [f"hexagonv{n}" for n in sorted(versions) if n >= 68]


def test_figures():
    v68 = HEXAGONS["hexagonv68"]
    assert (v68.vtcm_bytes, HEXAGONS["hexagonv75"].vtcm_bytes) == (4 * MIB, 8 * MIB)
    assert v68.max_copy_bytes == 0xFFFFFF  # DESC_LENGTH_MASK
    assert v68.max_copies_in_flight == 100  # MAX_DMA_DESCRIPTORS
    assert (v68.async_ops, v68.proxies) == (("dma_load",), ("generic",))


def test_only_gpus_have_threads():
    assert [x.has_threads for x in (*ARCHS.values(), *HEXAGONS.values())] == [True] * 2 + [
        False
    ] * 4
    assert ARCHS["sm_90a"].tile_bytes == ARCHS["sm_90a"].smem_per_block
