"""Products by ldmatrix and mma.sync over tiles that TMA brings, with and without a producer."""

import numpy as np
import pytest
import tvm

import tvm_hopper
from tests.sim_kernels.tensor_core_kernels import check, make_inputs, scheduled
from tvm_hopper import pipeline, schedule as hs
from tvm_hopper.sim.ops.mma import MatrixOps
from tvm_hopper.simulation import load, simulate
from tvm_hopper.testing import tensor_cores
from tvm_hopper.testing.tensor_cores import TVM_INTRINSICS, ProductKind, WarpTiling

H200 = "nvidia/nvidia-h200"
# (warps along rows and columns, roles): each thread does both, or 4 and 8 consumer warps
FOUR = {"tile": (32, 32, 16), "warps": (2, 2)}
EIGHT = {"tile": (64, 32, 16), "warps": (4, 2)}
TEAMS = {
    "4 warps": FOUR,
    "8 warps": EIGHT,
    "producer, 4 consumers": {**FOUR, "roles": hs.Roles(1)},
    "producer, 8 consumers": {**EIGHT, "roles": hs.Roles(2)},
}
EACH = pytest.mark.parametrize("team", TEAMS)
BOTH = pytest.mark.parametrize("team", ["4 warps", "producer, 4 consumers"])


@EACH
def test_five_trips_over_three_slots(team):
    check((64, 32, 80), WarpTiling(stages=3, **TEAMS[team]))


@pytest.mark.sampled(every=2)
@BOTH
@pytest.mark.parametrize("stages", [1, 2, 4])
def test_every_number_of_slots(team, stages):
    check((32, 32, 48), WarpTiling(stages=stages, **TEAMS[team]))


@pytest.mark.parametrize("team", ["8 warps", "producer, 4 consumers"])
def test_ragged_sizes(team):
    check((40, 24, 40), WarpTiling(stages=2, **TEAMS[team]))


@pytest.mark.parametrize(
    "kind",
    [
        ProductKind(transposed=True),
        ProductKind(out_dtype="float16"),
        ProductKind("bfloat16"),
        ProductKind("int8", "int32", transposed=True),
    ],
    ids=lambda kind: f"{kind.dtype}-{kind.out_dtype}-{kind.transposed}",
)
def test_types_and_sides(kind):
    tiling = WarpTiling(tile=(32, 64, 64), stages=2, roles=hs.Roles(1))
    check((32, 64, 128), tiling, kind, every_schedule=False)


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("policy", ["lifo", "random", "starve:consumer", "starve:producer"])
def test_under_every_policy(policy):
    tiling = WarpTiling(stages=2, **TEAMS["producer, 4 consumers"])
    check((32, 32, 48), tiling, policy=policy, every_schedule=False)


def test_a_copy_without_a_pipeline():
    check((32, 32, 32), WarpTiling(stages=None, **FOUR))


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("load", ["tma", "cp_async"])
@pytest.mark.parametrize("trips", [1, 2, 3, 5])
def test_loads_behind_what_feeds_the_tensor_cores(trips, load):
    """Of three slots one is to spare, so that a trip loads behind its fragments."""
    check((32, 32, 16 * trips), WarpTiling(stages=3, load=load, **FOUR))


# -- what the lowering makes of it


def text(team, until):
    sch = scheduled((64, 32, 320), WarpTiling(stages=3, **TEAMS[team]))
    return pipeline.lower(sch.mod, H200, until=until).script()


def count(script: str, word: str) -> int:
    return sum(word in line for line in script.splitlines())


@pytest.mark.parametrize(("team", "warps"), [(x, x.split()[1]) for x in list(TEAMS)[2:]])
def test_each_warp_frees_a_slot_by_itself(team, warps):
    script = text(team, "tvm_hopper.LowerChannelsToMbarriers")
    assert f"(empty[slot])), T.uint32({warps})" in script
    threads = 32 * (int(warps) + 1)
    assert f'thread_binding({threads}, thread="threadIdx.x")' in script
    assert count(script, "warp_sync") == count(script, '"proxy", "async"') == 1
    assert count(script, "setmaxnreg") == 0


def test_without_roles_the_threads_meet_once_an_iteration():
    script = text("8 warps", "tvm_hopper.LowerChannelsToMbarriers")
    assert count(script, "mbarrier_wait") == 1  # for both tiles, in front of what reads them
    assert count(script, "tvm_storage_sync") == 2  # behind the barriers' start, and in the loop
    assert "empty" not in script


@EACH
def test_fragments_are_registers_of_a_lane(team):
    """TVM's own pass leaves 32 lanes' worth of each fragment to every lane."""
    script = text(team, "tvm_hopper.MergeSharedBuffers")
    assert 'scope="warp"' not in script
    assert 'launch_thread("threadIdx.x", 32)' in script
    sch = scheduled((64, 32, 320), WarpTiling(stages=3, **TEAMS[team]))
    device = tvm.compile(sch.mod, target=H200)
    source = device.mod.imports[0].inspect_source()
    assert "shfl" not in source[source.index('extern "C" __global__') :]
    assert "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16" in source
    assert "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32" in source
    assert tvm_hopper.cubin(device)[:4] == b"\x7fELF"
    assert "0 bytes spilled, stack frame 0 bytes" in str(tvm_hopper.explain(device))


@pytest.mark.parametrize("swizzle", [0, 32, 64])
def test_any_swizzle_of_a_tile(swizzle):
    """Rows of 16 bytes are where the swizzle puts them."""
    sch = scheduled((64, 32, 64), WarpTiling(stages=2, tile=(64, 32, 32), warps=(2, 2)))
    sch.annotate(sch.get_sblock("A_shared.dyn"), "tvm_hopper.swizzle", swizzle)
    kernel = load(sch.mod)
    values = make_inputs((64, 32, 64), ProductKind())
    result = simulate(kernel, values)
    assert not result.findings, "\n".join(map(str, result.findings))
    want = tensor_cores.reference(values["A"], values["B"])
    np.testing.assert_array_equal(result.outputs["C"].astype(float), want)


def banks_of_matrices(sch, monkeypatch):
    """Return how many of the 32 banks each load of a matrix of 8 rows of 16 bytes goes to."""
    found = []
    load_rows = MatrixOps.op_ldmatrix

    def recorded(self, site, mask, mods, p):
        _, offsets = self._rows(site, p, 4)
        found.extend(len(set(rows // 16 % 8)) * 4 for rows in offsets.reshape(4, 8))
        return load_rows(self, site, mask, mods, p)

    monkeypatch.setattr(MatrixOps, "op_ldmatrix", recorded)
    assert not simulate(load(sch.mod), make_inputs((64, 64, 64), ProductKind())).findings
    return set(found)


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("mechanism", ["tma", "cp_async"])
@pytest.mark.parametrize("tile", [(64, 64, 32), (32, 32, 64), (32, 64, 16)], ids=str)
def test_fragments_come_from_all_banks(tile, mechanism, monkeypatch):
    sch = scheduled((64, 64, 64), WarpTiling(stages=2, tile=tile, warps=(2, 2), load=mechanism))
    assert banks_of_matrices(sch, monkeypatch) == {32}


def test_without_a_swizzle_rows_share_banks(monkeypatch):
    sch = scheduled((64, 64, 64), WarpTiling(stages=2, tile=(32, 32, 64), warps=(2, 2)))
    for tile in ("A", "B"):
        sch.annotate(sch.get_sblock(f"{tile}_shared.dyn"), "tvm_hopper.swizzle", 0)
    assert banks_of_matrices(sch, monkeypatch) == {4, 8}  # rows of 128 and of 64 bytes


# -- TVM's own intrinsics, whose import takes 25 s


@pytest.mark.slow
@pytest.mark.timeout(300)
@EACH
def test_intrinsics_of_tvm(team):
    import tvm.s_tir.tensor_intrin

    tiling = WarpTiling(stages=3, intrinsics=TVM_INTRINSICS, **TEAMS[team])
    check((64, 32, 160), tiling)
    device = tvm.compile(scheduled((64, 32, 160), tiling).mod, target=H200)
    source = device.mod.imports[0].inspect_source()
    assert "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32" in source
    assert tvm_hopper.cubin(device)[:4] == b"\x7fELF"
