"""The static check: one test per rule, nothing on right kernels, fast enough for every compile."""

import time

import numpy as np
import pytest
import tvm
from tvm import s_tir
from tvm.script import tirx as T

from tests.seeded.catalogue import BY_ID, CONTROLS, GOLDEN, slow_but_hopper
from tests.seeded.lowering import lower
from tests.static_check.kernels import kernel
from tvm_hopper import pipeline, schedule as hs
from tvm_hopper.errors import VerifyError
from tvm_hopper.sim.protocol import check
from tvm_hopper.sim.run import run_kernel
from tvm_hopper.static_check import check_sync, require_sync
from tvm_hopper.testing import memory_bound, workloads

MMA = "wgmma.mma_async.sync.aligned.m64n{}k16.f32.f16.f16"
STORE = "cp.async.bulk.global.shared::cta.bulk_group"


def rules(func, host=None):
    return {found.rule for found in check_sync(func, host)}


def simulated(func, threads=256):
    """Return what the simulator finds in one block of a kernel without outputs."""
    args = [np.zeros(1024, "float32")] * len(func.params)
    result = run_kernel(func, args, (1, 1, 1), (threads, 1, 1), dyn_smem_bytes=4096)
    return {found.rule for found in result.findings}


# -- goldens, our own kernels ----------------------------------------------------------


@pytest.mark.parametrize("golden", [*map(slow_but_hopper, GOLDEN)], ids=lambda golden: golden.name)
def test_says_nothing_about_a_right_kernel(golden):
    lowered = lower(golden.build().func)
    assert check_sync(lowered.device, lowered.host) == []
    assert check_sync(lowered.device) == []


# With the host, and mutations: tests/seeded/test_catalogue.py.
@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("control", CONTROLS, ids=lambda control: control.id)
def test_says_nothing_about_a_control(control):
    assert check_sync(lower(control.golden.build().func).device) == []


def generated(m, n, k, **config):
    sch = s_tir.Schedule(workloads.matmul(m, n, k))
    hs.matmul(sch, "C", hs.MatmulConfig(**config))
    lowered = pipeline.lower_final(sch.mod, {"kind": "cuda", "arch": "sm_90a"})
    (device,) = lowered.device.functions.values()
    hosts = [f for f in lowered.host.functions.values() if "tirx.is_entry_func" in f.attrs]
    return device, hosts[0]


@pytest.mark.parametrize(("stages", "pending"), [(1, 0), (2, 0), (2, 1), (4, 0), (4, 1)])
def test_says_nothing_about_our_kernels(stages, pending):
    device, host = generated(
        256, 256, 512, tile=(128, 128, 64), stages=stages, consumers=2, wgmma_pending=pending
    )
    assert check_sync(device, host) == []
    assert check_sync(device) == []


@pytest.mark.timing
def test_is_cheap_enough_for_every_compilation():
    device, host = generated(4096, 4096, 4096, tile=(128, 256, 64), stages=4, consumers=2)
    times = []
    for _ in range(3):
        fresh = device.with_attr("again", len(times))
        start = time.perf_counter()
        assert check_sync(fresh, host) == []
        times.append(time.perf_counter() - start)
    assert min(times) < 0.05, f"{min(times) * 1e3:.1f} ms; need under 50 ms for a GEMM"


def test_alike_blocks_of_a_cluster_are_traced_once_and_alike_warps_step_as_one(monkeypatch):
    sch = s_tir.Schedule(memory_bound.softmax(2, 16384, "bfloat16"))
    config = hs.RowReductionConfig(threads=256, rows=1, cluster=8)
    hs.row_reduction(sch, config=config)
    lowered = pipeline.lower_final(sch.mod, {"kind": "cuda", "arch": "sm_90a"})
    (device,) = lowered.device.functions.values()
    traced, agents, trace, system = [], [], check.trace_cta, check.System
    monkeypatch.setattr(check, "trace_cta", lambda *a, **k: traced.append(a) or trace(*a, **k))
    monkeypatch.setattr(check, "System", lambda *a: agents.append(len(a[0])) or system(*a))
    assert check_sync(device) == []
    assert len(traced) == 1
    assert agents[0] <= 2 * 8  # of 8 x 8 warps
    monkeypatch.setattr(check, "fold", lambda some: some)
    assert check_sync(device.with_attr("again", 1)) == []
    assert agents[-1] == 8 * 8


def test_alike_warps_may_still_complete_a_phase_each():
    @T.inline
    def emit(X, tx, sf, bars, reg):
        if tx == 0:
            T.ptx.mbarrier.init.shared.b64(T.address_of(bars[0]), T.uint32(1))
        T.tvm_storage_sync("shared")
        if tx % 32 == 0:
            T.ptx.mbarrier.arrive.shared.b64(T.address_of(bars[0]))

    found = rules(kernel(emit))  # of eight arrivals each but the first is one that nobody observed
    assert found == {"MBAR_MISSING_WAIT"}  # and none is too many, as all at once would be


def test_a_function_without_synchronisation_is_left_alone():
    @T.inline
    def emit(X, tx, sf, bars, reg):
        X[tx] = T.float32(1)

    assert check_sync(kernel(emit)) == []


# -- single rules ---------------------------------------------------------------------------------


def test_transaction_bytes_need_the_host():
    lowered = lower(BY_ID["M05"].build().func)
    assert "MBAR_TX_MISMATCH" in rules(lowered.device, lowered.host)
    assert "MBAR_TX_MISMATCH" not in rules(lowered.device)


def test_setmaxnreg_in_the_wrong_direction():
    @T.inline
    def emit(X, tx, sf, bars, reg):
        if tx < 128:
            T.ptx["setmaxnreg.inc.sync.aligned.u32"](64)

    assert rules(kernel(emit)) == {"SETMAXNREG_DIRECTION"}


@pytest.mark.parametrize(("threads", "entry"), [(256, 256), (384, 168), (512, 128)])
@pytest.mark.parametrize(("action", "more"), [("dec", 0), ("dec", 8), ("inc", 0), ("inc", -8)])
def test_both_judges_start_with_the_registers_of_the_facts(threads, entry, action, more):
    """At 256 threads the simulator once counted 248."""
    if entry + more > 256:
        return

    @T.inline
    def emit(X, tx, sf, bars, reg):
        if tx < 128:
            T.ptx[f"setmaxnreg.{action}.sync.aligned.u32"](entry + more)

    func = kernel(emit, threads)
    want = {"SETMAXNREG_DIRECTION"} if more else set()
    assert rules(func) & {"SETMAXNREG_DIRECTION"} == want
    assert simulated(func, threads) & {"SETMAXNREG_DIRECTION"} == want


def test_setmaxnreg_without_launch_bounds():
    @T.inline
    def emit(X, tx, sf, bars, reg):
        if tx < 128:
            T.ptx["setmaxnreg.dec.sync.aligned.u32"](64)

    assert rules(kernel(emit, bounds=False)) == {"SETMAXNREG_IGNORED"}
    assert rules(kernel(emit)) == set()


def test_setmaxnreg_budget_names_the_sum():
    lowered = lower(BY_ID["M38"].build().func)
    (found,) = check_sync(lowered.device)
    assert "pool 168 * 384 = 64512, requested (40 + 240 + 240) * 128 = 66560" in found.message


@pytest.mark.parametrize(
    ("number", "count", "found"),
    [
        (16, 256, {"NAMED_BAR_MISMATCH"}),
        (1, 100, {"NAMED_BAR_MISMATCH", "DEADLOCK"}),
        (0, 128, {"NAMED_BAR_MISMATCH"}),
        (1, 128, {"NAMED_BAR_MISMATCH"}),
        (1, 256, set()),
    ],
)
def test_named_barrier_number_and_count(number, count, found):
    @T.inline
    def emit(X, tx, sf, bars, reg):
        T.ptx.bar.sync(T.uint32(number), T.uint32(count))

    assert "NAMED_BAR_MISMATCH" in found or rules(kernel(emit)) == set()
    assert ("NAMED_BAR_MISMATCH" in rules(kernel(emit))) == bool(found)


def test_aligned_barrier_by_a_part_of_a_warp():
    @T.inline
    def emit(X, tx, sf, bars, reg):
        if tx % 32 < 16:
            T.ptx.bar.sync(T.uint32(1), T.uint32(128))

    assert "WARP_CONVERGENCE" in rules(kernel(emit))


def test_one_barrier_reached_from_two_places():
    @T.inline
    def emit(X, tx, sf, bars, reg):
        if tx < 128:
            T.ptx.bar.sync(T.uint32(1), T.uint32(256))
        else:
            T.ptx.bar.sync(T.uint32(1), T.uint32(256))

    assert rules(kernel(emit)) == {"NAMED_BAR_SITES"}  # a review: each warp reaches one place


def test_who_only_arrives_does_so_elsewhere_by_purpose():
    @T.inline
    def emit(X, tx, sf, bars, reg):
        if tx < 32:
            T.ptx.bar.arrive(T.uint32(1), T.uint32(64))
        if tx >= 32 and tx < 64:
            T.ptx.bar.sync(T.uint32(1), T.uint32(64))

    assert rules(kernel(emit)) == set()


@pytest.mark.parametrize("by", ["store", "mov"])
@pytest.mark.parametrize("fence", ["none", "before", "after"])
def test_fence_between_register_access_and_wgmma(fence, by):
    @T.inline
    def emit(X, tx, sf, bars, reg):
        if fence == "before":
            T.ptx.wgmma.fence.sync.aligned()
        for i in T.unroll(4):
            if by == "mov":
                T.ptx.mov.f32(reg[i], T.float32(0))
            else:
                reg[i] = T.float32(0)
        if fence == "after":
            T.ptx.wgmma.fence.sync.aligned()
        T.ptx[MMA.format(8)](
            *[reg[i] for i in range(4)], T.uint64(0), T.uint64(0), T.bool(True), 1, 1, 0, 0
        )
        T.ptx.wgmma.commit_group.sync.aligned()
        T.ptx.wgmma.wait_group.sync.aligned(0)

    func = kernel(emit)
    assert rules(func) == (set() if fence == "after" else {"WGMMA_FENCE_MISSING"})
    assert ("WGMMA_FENCE_MISSING" in simulated(func)) == (fence != "after")


@pytest.mark.parametrize("late", [False, True])
def test_a_register_is_set_before_the_wgmma_is_in_flight(late):
    @T.inline
    def emit(X, tx, sf, bars, reg):
        if not late:
            T.ptx.mov.f32(reg[0], T.float32(0))
        T.ptx.wgmma.fence.sync.aligned()
        T.ptx[MMA.format(8)](
            *[reg[i] for i in range(4)], T.uint64(0), T.uint64(0), T.bool(False), 1, 1, 0, 0
        )
        T.ptx.wgmma.commit_group.sync.aligned()
        if late:
            T.ptx.mov.f32(reg[0], T.float32(0))
        T.ptx.wgmma.wait_group.sync.aligned(0)

    assert rules(kernel(emit)) == ({"WGMMA_REG_INFLIGHT"} if late else set())


@pytest.mark.parametrize("fence", [False, True])
def test_another_shape_on_the_same_registers_needs_a_fence(fence):
    @T.inline
    def emit(X, tx, sf, bars, reg):
        T.ptx.wgmma.fence.sync.aligned()
        T.ptx[MMA.format(8)](
            *[reg[i] for i in range(4)], T.uint64(0), T.uint64(0), T.bool(True), 1, 1, 0, 0
        )
        if fence:
            T.ptx.wgmma.fence.sync.aligned()
        T.ptx[MMA.format(16)](
            *[reg[i] for i in range(8)], T.uint64(0), T.uint64(0), T.bool(True), 1, 1, 0, 0
        )
        T.ptx.wgmma.commit_group.sync.aligned()
        T.ptx.wgmma.wait_group.sync.aligned(0)

    found = rules(kernel(emit))
    assert found == (set() if fence else {"WGMMA_FENCE_MISSING"})


@pytest.mark.parametrize("pending", [0, 1, 2])
def test_group_wait_must_cover_what_is_read(pending):
    @T.inline
    def emit(X, tx, sf, bars, reg):
        T.ptx.wgmma.fence.sync.aligned()
        for g in T.unroll(2):
            T.ptx[MMA.format(8)](
                *[reg[g * 4 + i] for i in range(4)],
                T.uint64(0), T.uint64(0), T.bool(True), 1, 1, 0, 0,
            )  # fmt: skip
            T.ptx.wgmma.commit_group.sync.aligned()
        T.ptx.wgmma.wait_group.sync.aligned(pending)
        X[tx] = reg[0]  # of the older group

    assert rules(kernel(emit)) == ({"WGMMA_REG_INFLIGHT"} if pending == 2 else set())


def test_a_call_that_nobody_knows_is_left_to_the_simulator():
    @T.inline
    def emit(X, tx, sf, bars, reg):
        T.ptx.wgmma.fence.sync.aligned()
        T.ptx[MMA.format(8)](
            *[reg[i] for i in range(4)],
            T.uint64(0), T.uint64(0), T.bool(True), 1, 1, 0, 0,
        )  # fmt: skip
        T.ptx.wgmma.commit_group.sync.aligned()
        T.evaluate(T.call_extern("void", "somebody_does", reg[0]))
        T.ptx.wgmma.wait_group.sync.aligned(0)

    assert rules(kernel(emit)) == {"INCOMPLETE"}


@pytest.mark.parametrize("wait", ["none", "read", "full", "one left"])
def test_exit_with_a_store_whose_source_may_be_unread(wait):
    @T.inline
    def emit(X, tx, sf, bars, reg):
        if tx == 0:
            T.ptx[STORE](T.address_of(X[0]), T.address_of(sf[0]), T.uint32(64))
            T.ptx.cp.async_.bulk.commit_group()
            if wait == "read":
                T.ptx["cp.async.bulk.wait_group.read"](0)
            if wait == "full":
                T.ptx.cp.async_.bulk.wait_group(0)
            if wait == "one left":
                T.ptx["cp.async.bulk.wait_group.read"](1)

    found = rules(kernel(emit))
    assert found == (set() if wait in ("read", "full") else {"EXIT_PENDING_ASYNC"})


def test_wait_before_init():
    @T.inline
    def emit(X, tx, sf, bars, reg):
        if tx == 0:
            T.cuda.mbarrier_wait(T.address_of(bars[0]), 0)

    assert rules(kernel(emit)) == {"MBAR_USE_BEFORE_INIT"}


@pytest.mark.parametrize("word", ["try_wait", "test_wait"])
@pytest.mark.parametrize("initialised", [False, True])
def test_a_loop_over_one_try_is_a_wait(word, initialised):
    tried = f"mbarrier.{word}.parity.shared.b64"

    @T.inline
    def emit(X, tx, sf, bars, reg):
        done = T.alloc_buffer((1,), "uint32", scope="local")
        if initialised:
            if tx == 0:
                T.ptx.mbarrier.init.shared.b64(T.address_of(bars[0]), T.uint32(1))
            T.tvm_storage_sync("shared")
        done[0] = T.uint32(0)
        while done[0] == T.uint32(0):
            T.ptx[tried](done[0], T.address_of(bars[0]), T.uint32(0))

    assert rules(kernel(emit)) == {"DEADLOCK" if initialised else "MBAR_USE_BEFORE_INIT"}


def test_a_loop_around_more_than_one_try_is_left_to_the_simulator():
    @T.inline
    def emit(X, tx, sf, bars, reg):
        done = T.alloc_buffer((1,), "uint32", scope="local")
        done[0] = T.uint32(0)
        while done[0] == T.uint32(0):
            T.ptx.mbarrier.try_wait.parity.shared.b64(done[0], T.address_of(bars[0]), T.uint32(0))
            X[tx] = T.float32(0)

    (found,) = check_sync(kernel(emit))
    assert found.rule == "INCOMPLETE"
    assert "left to the simulator: while loop around synchronisation" in found.message


def test_control_flow_from_data_is_left_to_the_simulator():
    @T.inline
    def emit(X, tx, sf, bars, reg):
        if X[tx] > T.float32(0):
            T.ptx.bar.sync(T.uint32(1), T.uint32(128))

    (found,) = check_sync(kernel(emit))
    assert found.rule == "INCOMPLETE"
    assert "condition around synchronisation" in found.message


# -- require_sync ---------------------------------------------------------------------------------


def test_require_sync_returns_a_right_kernel():
    device = lower(GOLDEN[0].build().func).device
    assert require_sync(device).same_as(device)


def test_require_sync_raises_with_rule_and_statement():
    device = lower(BY_ID["M12"].build().func).device
    with pytest.raises(VerifyError, match=r"(?s)main_kernel: found .* broken .*DEADLOCK"):
        require_sync(device)


def test_require_sync_lets_pass_what_it_cannot_tell():
    @T.inline
    def emit(X, tx, sf, bars, reg):
        if X[tx] > T.float32(0):
            T.ptx.bar.sync(T.uint32(1), T.uint32(128))

    device = kernel(emit)
    assert isinstance(require_sync(device), tvm.tirx.PrimFunc)
