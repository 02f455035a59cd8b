"""Which keys claim to be ours, and which one a misspelt key was meant to be."""

from __future__ import annotations

import pytest

from tvm_hopper.requests import keys, spelling

MISSPELT = [
    *("TVM_HOPPER.wgmma", "Tvm_Hopper.wgmma", "tvm_hopper_wgmma", "tvm_hopper:wgmma"),
    *("tvm.hopper.wgmma", "hopper.wgmma", "tvmhopper.wgmma", "tvm-hopper.wgmma"),
    *("tvm_hoper.wgmma", "tvm_hooper.wgmma", "tmv_hopper.wgmma", "tvm_hopperr.wgmma"),
    *(" tvm_hopper.wgmma", "tvm_hopper .wgmma", "tvm_hopper.WGMMA", "tvm_hoper_wgmma"),
    *("tvm_hopper/wgmma", "Hopper.WGMMA", "tvm_hopper.wgma", "hopper.wgma"),
]
FOREIGN = [
    *("tirx.noalias", "global_symbol", "target", "tirx.is_scheduled", "meta_schedule.vectorize"),
    *("hopper_attention.wgmma", "tvm_hop.wgmma", "tvm_hopper2.wgmma", "tvm_hopper_extra.wgmma"),
    *("my_tvm_hopper.wgmma", "grasshopper.wgmma", "tl_hopper.wgmma", "shopper.verify"),
    *("hopper", "hopper.", "hopper.attention_mask", "hopper_wgmma", "tvm.target", "", ".", "_"),
    *("pragma_auto_unroll_max_step", "software_pipeline_stage", "mykey"),
]


@pytest.mark.parametrize("name", MISSPELT)
def test_a_key_that_can_only_be_meant_for_us_claims(name: str) -> None:
    assert spelling.claims_to_be_ours(name)
    assert spelling.closest(name) == keys.WGMMA


@pytest.mark.parametrize("name", [*keys.KEYS, "tvm_hopper", "tvm_hopper.", "tvm_hopper.zzz"])
def test_our_prefix_claims_whatever_stands_behind_it(name: str) -> None:
    assert spelling.claims_to_be_ours(name)
    assert spelling.closest(name) == (name if name in keys.KEYS else "")


@pytest.mark.parametrize("name", FOREIGN)
def test_another_projects_key_does_not_claim(name: str) -> None:
    assert not spelling.claims_to_be_ours(name)
    assert not spelling.claims_to_be_ours(name, beside_ours=True)


def test_a_vague_key_claims_only_beside_one_of_ours() -> None:
    assert not spelling.claims_to_be_ours("hopper.pending")
    assert spelling.claims_to_be_ours("hopper.pending", beside_ours=True)


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("tvm_hopper.stages", keys.STAGE),
        ("tvm_hopper.fast_math", keys.FAST_MATH),
        ("tvm_hopper.async_stages", keys.ASYNC_STAGES),
        ("tvm_hopper.strikt", keys.STRICT),
    ],
)
def test_the_closest_key_may_be_tvms(name: str, near: str) -> None:
    assert spelling.closest(name) == near


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("sofware_pipeline_stage", keys.STAGE),
        ("software_pipeline_stages", keys.STAGE),
        ("Software_Pipeline_Order", keys.ORDER),
        ("software_pipeline_async_stage", keys.ASYNC_STAGES),
        ("software_pipeline_async_producers", keys.ASYNC_STAGES),
    ],
)
def test_misspelt_pipeline_keys(name: str, near: str) -> None:
    assert spelling.is_misspelt_pipeline_key(name)
    assert spelling.closest_pipeline_key(name) == near


@pytest.mark.parametrize("name", [*keys.PIPELINE_KEYS, "pipeline", "stage", "pragma_unroll"])
def test_other_keys_are_no_misspelt_pipeline_keys(name: str) -> None:
    assert not spelling.is_misspelt_pipeline_key(name)
