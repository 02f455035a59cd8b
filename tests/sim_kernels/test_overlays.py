"""Kernels whose shared arrays have no room side by side: what is dead gives its bytes away."""

import functools

import numpy as np
import pytest
import tvm

import tvm_hopper
from tests.sim_kernels.mutate import change
from tests.sim_kernels.ring_kernels import add, block, check, copy, kernel, loop, new, ring
from tvm_hopper.errors import LoweringError
from tvm_hopper.simulation import load, simulate
from tvm_hopper.testing import workloads

H200 = "nvidia/nvidia-h200"
TRIPS = (40, 36)
# Each thread stores a column, where others read the ring, and reads a row: 64 KiB.
STAGING = """\
with T.sblock("staged"):
    T.reads()
    T.writes()
    s = T.sblock_alloc_buffer((128, 128), "float32", scope="shared.dyn")
    for r in range(128):
        s[r, 127 - tx] = acc[0] + T.cast(r, "float32")
    acc[0] = s[tx, tx]
"""
SLOW = pytest.mark.slow


def tiles(x):
    """Return a matrix as tiles of 8 rows, in order, for each of two thread blocks."""
    return x.reshape(2, -1, 8, 128)


def fill(tile: str, source: str, trips: int, stages: int, roles: bool = False) -> str:
    """Return a loop that sums tiles of 4 KiB which a ring brings."""
    k = f"k_{tile}"
    return loop(
        f"for {k} in T.serial({trips}, {ring(stages, 2, roles)})",
        block(new(tile), copy(tile, source, f"(i * {trips} + {k}) * 8"), add(f"{tile}[r, tx]")),
    )


def two_rings(stages: int = 32, around: str = "", persistent: int = 0) -> tvm.IRModule:
    """Return a loop over tiles of A, and one over tiles of B behind it."""
    parts = [fill("a", "A", TRIPS[0], stages), fill("b", "B", TRIPS[1], stages)]
    body = [loop(around, *parts)] if around else parts
    return kernel(*body, rows=(TRIPS[0] * 16, TRIPS[1] * 16), persistent=persistent)


def staged(stages: int = 48, roles: bool = False, persistent: int = 0) -> tvm.IRModule:
    """Return a loop over tiles of A, whose sums the threads exchange in shared memory."""
    return kernel(fill("a", "A", 50, stages, roles), STAGING, rows=(800, 16), persistent=persistent)


def sum_both(a, b):
    return tiles(a).sum((1, 2)) + tiles(b).sum((1, 2))


def sum_reversed(a, b):
    return tiles(a).sum((1, 2))[:, ::-1] + np.arange(128)


def offsets(mod: tvm.IRModule) -> dict[str, int]:
    """Return the offsets of a kernel's shared arrays."""
    (found,) = tvm_hopper.explain(mod, H200).kernels
    return {region.name: region.offset for region in found.smem}


@pytest.mark.parametrize(
    ("times", "persistent"),
    [(2, 0), pytest.param(1, 0, marks=SLOW), pytest.param(2, 1, marks=SLOW)],
    ids=["in a loop", "", "in two loops"],
)
def test_a_ring_behind_a_ring(times, persistent):
    mod = two_rings(around="for n in T.serial(2)" if times == 2 else "", persistent=persistent)
    where = offsets(mod)
    assert where["a"] == where["b"] == 0
    check(mod, lambda a, b: times * sum_both(a, b))


@pytest.mark.parametrize(
    ("roles", "persistent"),
    [(False, 0), pytest.param(False, 1, marks=SLOW), (True, 0)],
    ids=["", "persistent", "producer"],
)
def test_staging_in_the_bytes_of_a_dead_ring(roles, persistent):
    mod = staged(roles=roles, persistent=persistent)
    where = offsets(mod)
    assert where["a"] == where["s"] == 0
    assert "65536 bytes at 0, in bytes of a" in str(tvm_hopper.explain(mod, H200))
    check(mod, sum_reversed)


def test_arrays_with_room_stay_apart():
    assert len(set(offsets(two_rings(stages=4)).values())) == 4  # two rings, barriers of each


at_once = ring(32, 3).replace("[0, 31, 31]", "[0, 0, 31]")


@pytest.mark.parametrize(
    "mod",
    [
        pytest.param(lambda: staged(roles=True, persistent=1), id="a producer runs ahead"),
        pytest.param(
            lambda: kernel(
                loop(
                    f"for k in T.serial(40, {at_once})",
                    block(
                        new("a", "b"),
                        copy("a", "A", "(i * 40 + k) * 8"),
                        copy("b", "B", "(i * 40 + k) * 8"),
                        add("a[r, tx] * b[r, tx]"),
                    ),
                ),
                rows=(640, 640),
            ),
            id="both are read at once",
        ),
    ],
)
def test_what_lives_at_once_is_refused_for_want_of_room(mod):
    with pytest.raises(LoweringError, match=r"need at most 232448; take"):
        tvm_hopper.lower_final(mod(), H200)


BUSY = "RACE_OVERWRITE_BUSY"


def rings_in_a_loop():
    return two_rings(around="for n in T.serial(2)")


def staged_by_roles():
    return staged(roles=True)


@functools.cache
def built(mod):
    """Return the program of a module, and what its first tensors hold."""
    rng = np.random.default_rng(1)
    module = mod()
    shapes = [shape for shape, _ in workloads.argument_types(module)]
    drawn = (rng.integers(-3, 4, shape).astype("float32") for shape in shapes)
    return load(module), dict(zip("AB", drawn, strict=False))


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(
    ("mod", "instruction", "which", "rule"),
    [
        *((rings_in_a_loop, "tvm_storage_sync", n, BUSY) for n in (1, 3)),
        *((rings_in_a_loop, "fence_proxy", n, "PROXY_FENCE_MISSING_WAR") for n in (0, 2)),
        *((staged, "tvm_storage_sync", n, BUSY) for n in (2, 3)),
        *((staged_by_roles, "bar_sync_count", n, BUSY) for n in (0, 1)),
    ],
)
def test_each_sync_in_between_is_needed(mod, instruction, which, rule):
    """In front of the first access under another name, and in front of staging's readers."""
    program, args = built(mod)
    assert rule in simulate(change(program, instruction, which), args, "on_wait", 0).rules
