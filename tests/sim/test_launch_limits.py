"""Launches that the runtime or the driver refuses, and accesses that the hardware does not make."""

import numpy as np
import pytest
from tvm.script import tirx as T

from tvm_hopper.facts.arch import SM_80, SM_90A
from tvm_hopper.sim.launch.limits import check_launch
from tvm_hopper.simulation import simulate, verify

from .hand_threaded import F32, Map, Shared, hand_threaded
from .kernels import lower, rules

X = np.arange(4096, dtype="float32")
IN = {"X": X, "Y": np.zeros(4096, "float32")}


def launched(grid=1, threads=128, cluster=0, num_bytes=1024):
    """Copy some words, in a launch of a given form."""

    @T.prim_func(s_tir=True)
    def main(X: T.Buffer((4096,), "float32"), Y: T.Buffer((4096,), "float32")):
        T.func_attr({"global_symbol": "main"})
        bx = T.launch_thread("blockIdx.x", grid)
        if cluster > 0:
            T.launch_thread("clusterCtaIdx.x", cluster)
        tx = T.launch_thread("threadIdx.x", threads)
        with T.attr(T.int32(0), "hand_threaded", 1):
            smem = T.alloc_buffer((num_bytes,), "uint8", scope="shared.dyn", align=1024)
            tile = T.decl_buffer((num_bytes // 4,), "float32", data=smem.data, scope="shared.dyn")
            if tx < 32:
                tile[tx] = X[bx * 32 + tx]
                Y[bx * 32 + tx] = tile[tx]

    return main


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ({"threads": 2048}, "found 2048 threads in a block; need 1 to 1024"),
        ({"grid": 3, "cluster": 2}, "found a grid of 3 blocks in x with clusters of 2"),
        ({"grid": 32, "cluster": 32}, "found a cluster of 32 thread blocks; need 1 to 16"),
        ({"num_bytes": 300 * 1024}, "found 307200 bytes of shared memory; need at most 232448"),
    ],
)
def test_a_launch_that_the_runtime_refuses(form, message):
    program = lower(launched(**form))
    for result in (verify(program, IN), simulate(program, IN)):
        assert [f.rule for f in result.findings] == ["LAUNCH_LIMITS"]
        assert message in result.findings[0].message
        assert result.verdict == "error"


def test_sm_80_has_no_clusters_and_less_shared_memory():
    setup = {"grid": (4, 1, 1), "block": (128, 1, 1), "dyn_smem_bytes": 170000}

    def messages(arch, cluster):
        found = check_launch("main", {**setup, "cluster": (cluster, 1, 1)}, [], arch)
        return [f.message.partition(": ")[2] for f in found]

    memory = "found 170000 bytes of shared memory; need at most 166912"
    assert messages(SM_90A, 2) == []
    assert messages(SM_80, 1) == [memory]
    assert messages(SM_80, 2) == ["found a cluster of 2 thread blocks; need 1 on sm_80", memory]


def test_all_shared_memory_and_a_cluster_of_eight_are_legal():
    assert verify(lower(launched(grid=8, cluster=8, num_bytes=232448)), IN).verdict == "clean"


def test_a_cluster_of_sixteen_is_not_portable():
    """Of 78 SMs, spread over eight GPCs, as few as ten may be together."""
    report = verify(lower(launched(grid=16, cluster=16)), IN, num_sms=78)
    assert report.verdict == "review"
    assert [f.rule for f in report.findings] == ["CLUSTER_NOT_PORTABLE"]
    assert "of 78 SMs 10 are sure to be together" in report.findings[0].message
    assert verify(lower(launched(grid=10, cluster=10)), IN, num_sms=78).verdict == "clean"


def test_a_cluster_of_sixteen_runs_where_so_many_sms_are_together():
    """The runtime allows the size, and of 132 SMs one GPC has 17 or more: the launch is legal."""
    report = verify(lower(launched(grid=16, cluster=16)), IN)
    assert report.verdict == "clean", report.findings
    assert "clusters of 16 thread blocks, which a device of 132 SMs can hold" in str(report)
    assert "clusters of" not in str(verify(lower(launched(grid=8, cluster=8)), IN))


def test_the_target_may_name_a_smaller_part():
    setup = {**SETUP, "grid": (16, 1, 1), "cluster": (16, 1, 1)}
    assert not check_launch("k", setup, [])
    (found,) = check_launch("k", setup, [], sure_sms=78)
    assert found.rule == "CLUSTER_NOT_PORTABLE"


SETUP = {"grid": (1, 1, 1), "block": (32, 1, 1), "cluster": (1, 1, 1), "dyn_smem_bytes": 0}


@pytest.mark.parametrize(
    ("change", "shared", "message"),
    [
        ({"dyn_smem_bytes": 100}, [("a", "shared.dyn", 128, 16)], "found 100 bytes of dynamic"),
        ({}, [("a", "shared", 232449, 16)], "found 232449 bytes of shared memory"),
        ({"grid": (1, 65536, 1)}, [], "found a grid of 65536 blocks in y; need at most 65535"),
        ({"grid": (3, 0, 1)}, [], "found a grid of 0 blocks in y; need 1 or more"),
        ({"block": (1, 1, 128)}, [], "found a block of 128 threads in z; need at most 64"),
        ({"block": (0, 1, 1)}, [], "found 0 threads in a block"),
    ],
)
def test_rules_of_a_launch(change, shared, message):
    (found,) = check_launch("k", {**SETUP, **change}, shared)
    assert message in found.message


def mapped(box, stride):
    """Encode a tensor map that no copy uses."""

    @hand_threaded(32)
    def main(
        X: F32[4096], Y: F32[4096], x_map: Map("X", (32, 64), (box, 8), 3, strides=(stride,)), tx,
    ):  # fmt: skip
        T.ptx.prefetch.tensormap(T.address_of(x_map))
        Y[tx] = X[tx]

    return main


@pytest.mark.parametrize(
    ("box", "stride", "message"),
    [(64, 128, "inner box of 256 bytes under a 128 B swizzle"), (32, 100, "stride 1 of 100 bytes")],
)
def test_verify_finds_a_map_that_the_driver_refuses(box, stride, message):
    report = verify(lower(mapped(box, stride)), IN)
    assert [f.rule for f in report.findings] == ["TENSOR_MAP"]
    assert message in report.findings[0].message


@hand_threaded(32, smem=2048)
def vectors(X: F32[4096], Y: F32[4096], tx, tile: Shared[F32], *, space, shift, width=4):
    """Move vectors that begin `shift` elements behind an aligned place."""
    if space == "store":
        for j in T.vectorized(width):
            Y[tx * width + shift + j] = X[tx * width + j]
    elif space == "load":
        for j in T.vectorized(width):
            Y[tx * width + j] = X[tx * width + shift + j]
    else:
        for j in T.serial(16):
            tile[j * 32 + tx] = X[j * 32 + tx]
        T.tvm_storage_sync("shared")
        for j in T.vectorized(width):
            Y[tx * width + j] = tile[tx * width + shift + j]


ALIGNED = [(4, 0), (4, 4), (2, 2), (1, 1), (8, 4)]


@pytest.mark.parametrize("space", ["store", "load", "shared"])
@pytest.mark.parametrize(("width", "shift"), [(4, 1), (4, 2), (2, 1), (4, 3), *ALIGNED])
def test_a_vector_is_aligned_to_its_size(space, width, shift):
    """TVM prints a load that it cannot prove aligned element by element, but no store."""
    found = rules(vectors(space, shift, width), IN, [("eager", 0)])
    wrong = space == "store" and (width, shift) not in ALIGNED
    assert found == ({"MISALIGNED"} if wrong else set())


@hand_threaded(128, smem=2048)
def stored(X: F32[4096], Y: F32[4096], tx, tile: Shared[F32], small: Shared[F32, 64], *, how):
    """Store past a view, or by several lanes to one place."""
    if how == "beyond":
        small[tx] = X[tx]
    elif how == "one place":
        tile[tx // 32] = X[tx]
    elif how == "one place, all lanes":
        if tx < 32:
            tile[0] = X[tx]
    elif how == "one value":
        tile[tx // 32] = X[tx // 32]
    elif how == "nothing":
        if X[tx] < T.float32(0):
            Y[tx] = X[tx]
    elif how == "nowhere":
        tile[tx] = X[tx]
    T.tvm_storage_sync("shared")
    if not how.startswith("no"):
        Y[tx] = tile[tx // 128]


@pytest.mark.parametrize(
    ("how", "found"),
    [
        ("beyond", {"OOB_ACCESS"}),
        ("one place", {"RACE_WRITE_WRITE"}),
        ("one place, all lanes", {"RACE_WRITE_WRITE"}),
        ("one value", set()),
    ],
)
def test_stores_of_lanes_to_one_place(how, found):
    assert rules(stored(how), IN) == found


@pytest.mark.parametrize("how", ["nothing", "nowhere"])
def test_an_output_of_which_nothing_is_written(how):
    program = lower(stored(how))
    assert simulate(program, {"X": X}).rules == {"OUTPUT_COVERAGE"}
    assert verify(program, {"X": X}).verdict == "error"
