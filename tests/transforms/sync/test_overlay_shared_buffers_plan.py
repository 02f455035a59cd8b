"""Lifetimes: which shared arrays are never alive at once, by where their accesses stand."""

from __future__ import annotations

import pytest
from tvm import s_tir

import tvm_hopper
from tests.sim_kernels.ring_kernels import add, block, copy, kernel, loop, new, ring
from tvm_hopper import ir, schedule as hs
from tvm_hopper.facts.arch import SM_90A
from tvm_hopper.testing import workloads
from tvm_hopper.transforms.sync.overlay_shared_buffers_plan import plan_overlays

H200 = "nvidia/nvidia-h200"

USE = "acc[0] = s[tx, 127 - tx]\n"


def put(name: str, value: str = "acc[0]") -> str:
    """Return the lines by which each thread stores a column."""
    return f"for r in range(128):\n    {name}[r, tx] = {value}\n"


FILL = put("s")


def big(*names: str) -> str:
    """Return the lines that allocate arrays of 64 KiB."""
    return "".join(
        f'{name} = T.sblock_alloc_buffer((128, 128), "float32", scope="shared.dyn")\n'
        for name in names
    )


def fill(tile: str = "a", stages: int = 48, roles: bool = False, k: str = "k") -> str:
    """Return a loop over a ring of tiles of 4 KiB: 48 of them leave no room for 64 KiB."""
    head = f"for {k} in T.serial(50, {ring(stages, 2, roles)})"
    return loop(
        head, block(new(tile), copy(tile, "A", f"(i * 50 + {k}) * 8"), add(f"{tile}[r, tx]"))
    )


def pairs(*body: str, persistent: int = 0) -> list[tuple[str, str]]:
    """Return the names of the pairs that are to share bytes."""
    mod = kernel(*body, rows=(800, 16), persistent=persistent)
    lowered = tvm_hopper.lower(mod, H200, until="tvm_hopper.ExpandPipeline")
    (found,) = ir.kernels(lowered["main"])
    return [(a.name, b.name) for a, b in plan_overlays(found, SM_90A)]


def in_loop(*parts: str) -> str:
    return loop("for n in T.serial(2)", *parts)


@pytest.mark.parametrize("roles", [False, True])
def test_staging_behind_the_last_use_of_a_ring(roles):
    assert pairs(fill(roles=roles), block(big("s"), FILL, USE)) == [("a", "s")]


def test_nothing_shares_bytes_where_there_is_room():
    assert pairs(fill(stages=4), block(big("s"), FILL, USE)) == []


def test_nothing_is_gained_where_even_that_would_not_do():
    copies = [put(x, "s[r, 127 - tx]") for x in "tuv"]
    sums = [f"acc[0] = acc[0] + {x}[tx, tx]\n" for x in "tuv"]
    assert pairs(fill(), block(big("s", "t", "u", "v"), FILL, *copies, *sums)) == []


def test_an_array_that_is_used_on_both_sides_lives_in_between():
    assert pairs(block(big("s"), FILL, fill(), USE)) == []


def test_an_array_in_front_of_a_ring():
    assert pairs(block(big("s"), FILL, USE), fill()) == [("a", "s")]
    # a producer does not wait for the consumers before it fills the ring
    assert pairs(block(big("s"), FILL, USE), fill(roles=True)) == []


def test_in_a_loop_each_has_to_begin_anew():
    assert pairs(in_loop(fill(), block(big("s"), FILL, USE))) == [("a", "s")]
    # what the first iteration stored is read in the second one
    kept = block(big("s"), FILL, in_loop(fill(), block(USE, FILL)))
    assert pairs(kept) == []
    # a producer goes on to the next iteration
    assert pairs(in_loop(fill(roles=True), block(big("s"), FILL, USE))) == []


def test_output_tiles_are_a_loop():
    staged = block(big("s"), FILL, USE)
    assert pairs(fill(), staged, persistent=1) == [("a", "s")]
    assert pairs(fill(roles=True), staged, persistent=1) == []


def test_a_condition_reads_in_front_of_both_arms():
    branch = loop("if s[0, tx] > T.float32(0)", put("t"), "acc[0] = t[tx, tx]\n")
    assert pairs(block(big("s", "t"), FILL, branch, fill())) == [("a", "s"), ("a", "t")]


def test_an_allocation_goes_to_where_it_is_used():
    """TVM moves it into the loop, so that it begins anew there."""
    assert pairs(block(big("s"), in_loop(fill(), FILL, USE))) == [("a", "s")]


def test_a_pointer_with_a_name_of_its_own_is_followed_no_further():
    named = 'q = T.decl_buffer((128, 128), "float32", data=s.data, scope="shared.dyn")\n'
    assert pairs(block(big("s"), FILL, USE, named, "acc[0] = q[tx, tx]\n"), fill()) == []


def test_descriptors_of_a_multiplication_end_with_it():
    """Both rings of a product may lie under what its registers are stored to."""
    sch = s_tir.Schedule(workloads.matmul(128, 64, 128, out_dtype="float16"))
    hs.matmul(sch, "C", hs.MatmulConfig((128, 64, 64), 9, 2, persistent=0, store="tma"))
    lowered = tvm_hopper.lower(sch.mod, H200, until="tvm_hopper.ExpandPipeline")
    (found,) = ir.kernels(lowered["main"])
    assert [(a.name, b.name) for a, b in plan_overlays(found, SM_90A)] == [
        ("A_shared.dyn", "D_shared.dyn"),
        ("B_shared.dyn", "D_shared.dyn"),
    ]
