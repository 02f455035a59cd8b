"""Notes about kernels: through JSON and back, by number, and what `explain` says of any kernel."""

from __future__ import annotations

import json

import pytest
import tvm
from tvm.script import tirx as T

import tvm_hopper
from tvm_hopper import ir, pipeline
from tvm_hopper.facts.arch import SM_80, SM_90A
from tvm_hopper.reports.explanation import kernel_of
from tvm_hopper.testing import pointwise
from tvm_hopper.transforms.common import explain_notes as n

TARGET = "nvidia/nvidia-h200"


@T.prim_func(private=True, s_tir=True)
def four_kernels(A: T.Buffer((4,), "float32")):
    for b0 in T.thread_binding(4, thread="blockIdx.x"):
        A[b0] = T.float32(0)
    for b1 in T.thread_binding(4, thread="blockIdx.x"):
        A[b1] = T.float32(1)
    for b2 in T.thread_binding(4, thread="blockIdx.x"):
        A[b2] = T.float32(2)
    for b3 in T.thread_binding(4, thread="blockIdx.x"):
        A[b3] = T.float32(3)


EVERY = (
    n.MmaNote("C", (64, 128, 64), "wgmma", 64),
    n.StoreNote("C", 16),
    n.TensorMapNote("A", ("m", "64"), (64, 128), 128, 16384, (1, 1), 128),
    n.RingNote(0, 4, 32768),
    n.ArrivalsNote(0, 1, 2),
    n.RolesNote(128, 256, 1, (40, 232)),
    n.RolesNote(32, 256, 0, None),
    n.TilesNote(8, -1, "512"),
    n.TilesNote(1, None),
    n.RowsNote(64, 203),
    n.ConfigurationNote("matmul tile=128x256x64"),
    n.SmemNote("ring", 0, 65536),
    n.RemarkNote("what was requested"),
    n.ElementsNote("X", 2, 32),
    n.FallbackNote("slower"),
    n.StoreRingNote("C_shared", 2, 4096),
    n.RingNote(0, 4, 32768, False, 1),
)


@pytest.mark.parametrize("note", EVERY, ids=lambda note: type(note).__name__)
def test_a_note_is_the_same_after_its_way_through_text(note: n.Note) -> None:
    assert n.from_json(json.loads(json.dumps(n.to_json(note)))) == note


def test_every_kind_has_been_tried() -> None:
    assert {type(note) for note in EVERY} == set(n.Note.__args__)


def test_notes_are_kept_by_the_kernel_s_number() -> None:
    """Two kernels planned by one pass and one by another were an error of zip."""
    ring, roles, first, second, last = (EVERY[i] for i in (3, 5, 10, 11, 9))
    func = n.note_kernels(four_kernels, {0: [ring], 2: [roles]})
    func = n.note_kernels(func, {2: [first]})
    func = n.note_kernels(func, {0: [second], 3: [last]})
    known = n.read_notes(func)
    assert known.num_kernels == 4
    assert known.kernels == {0: (ring, second), 2: (roles, first), 3: (last,)}


def test_nothing_to_note_changes_nothing() -> None:
    assert n.note_kernels(four_kernels, {}).same_as(four_kernels)
    assert n.note_kernels(four_kernels, {1: []}).same_as(four_kernels)
    assert n.read_notes(four_kernels) is None


def test_notes_say_what_was_planned_for() -> None:
    target = tvm.target.Target("nvidia/nvidia-a100")
    for func, arch in (four_kernels, SM_90A), (four_kernels.with_attr("target", target), SM_80):
        func = n.note_kernels(func, {0: [EVERY[3]]})
        host = func.with_attr("target", tvm.target.Target("llvm"))
        assert n.read_notes(n.note_kernels(host, {1: [EVERY[9]]})).arch is arch


def test_a_number_that_does_not_hold_any_more_is_not_used() -> None:
    func = n.note_kernels(four_kernels, {3: [EVERY[3]]})
    fewer = func.with_body(ir.seq(*ir.kernels(func)[:2]))
    assert n.note_kernels(fewer, {0: [EVERY[9]]}).same_as(fewer)


# -- kernels that are no products

RING = n.RingNote(channel=0, num_slots=4, tx_bytes=32768)
LATER = n.RingNote(channel=1, num_slots=1, tx_bytes=256)
PLAIN_ROLES = n.RolesNote(producer_threads=32, consumer_threads=256, pending=0, registers=None)


def topics(*notes: n.Note) -> dict[str, str]:
    return dict(kernel_of("k", notes).rows())


def test_a_ring_without_roles() -> None:
    kernel = kernel_of("k", [RING])
    assert (kernel.consumers, kernel.threads, kernel.product, kernel.persistent) == (None,) * 4
    assert (kernel.wgmma_pending, kernel.raster_group) == (None, None)
    assert dict(kernel.rows()) == {
        "ring": "4 stages of 32768 bytes",
        "  full": "4 mbarriers, each for 1 arrival and 32768 bytes",
        "fallbacks": "none",
    }


def test_a_ring_with_roles_of_plain_warps() -> None:
    kernel = kernel_of("k", [RING, PLAIN_ROLES, n.ArrivalsNote(0, 1, 8)])
    said = dict(kernel.rows())
    assert said["roles"] == "1 producer and 8 consumer warps, 288 threads"
    assert said["  empty"] == "4 mbarriers, each for 8 arrivals"
    assert not {"registers", "multiply-add", "WGMMA groups in flight"} & set(said)
    assert (kernel.consumers, kernel.threads, kernel.wgmma_pending) == (2, 288, None)


def test_consumers_that_are_no_whole_warp_groups() -> None:
    roles = n.RolesNote(producer_threads=32, consumer_threads=96, pending=0, registers=None)
    kernel = kernel_of("k", [RING, roles])
    assert (kernel.consumers, kernel.threads) == (None, 128)
    assert dict(kernel.rows())["roles"] == "1 producer and 3 consumer warps, 128 threads"


def test_several_rings_are_told_apart() -> None:
    said = list(kernel_of("k", [LATER, RING, n.ArrivalsNote(1, 1, 2)]).rows())
    assert said[:5] == [
        ("ring 1", "1 stage of 256 bytes"),
        ("  full", "1 mbarrier, for 1 arrival and 256 bytes"),
        ("  empty", "1 mbarrier, for 2 arrivals"),
        ("ring 0", "4 stages of 32768 bytes"),
        ("  full", "4 mbarriers, each for 1 arrival and 32768 bytes"),
    ]
    assert kernel_of("k", [LATER, RING]).stages == 4


def test_no_ring_at_all() -> None:
    kernel = kernel_of("k", [n.TilesNote(1, None)])
    assert (kernel.stages, kernel.smem_bytes) == (None, 0)
    assert dict(kernel.rows()) == {"fallbacks": "none"}
    assert topics(n.TilesNote(4, 48)) == {
        "persistent": "48 thread blocks share the output tiles",
        "raster order": "4 rows of output tiles together",
        "fallbacks": "none",
    }


def test_a_product_without_roles() -> None:
    said = topics(EVERY[0], n.SmemNote("a", 0, 1024))
    assert said["registers"] == "64 of a thread are accumulators"
    assert said["shared memory"] == "1024 of 232448 bytes (0%)"
    small = dict(kernel_of("k", [n.SmemNote("a", 0, 83456)], SM_80).rows())
    assert small["shared memory"] == "83456 of 166912 bytes (50%)"
    assert "roles" not in said


def test_registers_that_move_without_a_product() -> None:
    said = topics(n.RolesNote(128, 128, 0, (40, 232)))
    assert said["  consumer"] == "232"
    assert said["roles"] == "1 producer and 1 consumer warp group, 256 threads"


def test_a_pointwise_kernel_is_explained() -> None:
    tiling = pointwise.Tiling(stages=None)
    mod = pointwise.schedule(pointwise.exp_add(1000, 1000), tiling).mod
    (kernel,) = tvm_hopper.explain(mod, TARGET).kernels
    assert kernel.product is None
    assert [m.tensor for m in kernel.tensor_maps] == ["A", "B"]
    assert [(ring.stages, ring.stage_bytes) for ring in kernel.rings] == [(1, 32768)]
    (built,) = tvm_hopper.explain(tvm.compile(mod, target=TARGET)).kernels
    assert built.assembled.registers > 0
    assert built.rings == kernel.rings


# -- names


def test_kernels_are_named_as_the_device_s_functions_are() -> None:
    """The second and the last of four kernels are those of which something was noted."""
    func = four_kernels.with_attr({"global_symbol": "main"})
    lowered = pipeline.lower(tvm.IRModule({"main": func}), TARGET)
    noted = n.note_kernels(four_kernels, {1: [RING], 3: [LATER]}).attrs[ir.PLAN_ATTR]
    host = lowered["main"].with_attr(ir.PLAN_ATTR, noted)
    lowered.update_func(lowered.get_global_var("main"), host)
    names = [kernel.name for kernel in tvm_hopper.explain(lowered).kernels]
    assert names == ["main_kernel_1", "main_kernel_3"]


def test_a_host_half_alone_names_its_function() -> None:
    mod = tvm.IRModule({"f": n.note_kernels(four_kernels, {1: [RING], 3: [LATER]})})
    assert [kernel.name for kernel in tvm_hopper.explain(mod).kernels] == ["f, 1", "f, 3"]
