"""What host code computes for a launch: bases, extents and strides of tensor maps, SM counts."""

import numpy as np
import pytest
import tvm
from tvm.script import tirx as T

from tvm_hopper.errors import VerifyError
from tvm_hopper.sim import TensorMapArg, run_host
from tvm_hopper.sim.launch.runtime_calls import encode_map
from tvm_hopper.sim.launch.tensors import Pointer
from tvm_hopper.simulation import simulate, verify

from .kernels import ENCODE, lower

RUNS = (("eager", 0), ("on_wait", 0), ("random", 1))
TENSOR = ', (96, 64), "float16"'


def box_kernel(base, dims, strides, box, coords, tensor=TENSOR, head="", more=""):
    """Build a kernel that loads one box of A through a map encoded from these host expressions."""
    rank, size = len(dims), int(np.prod(box))
    numbers = ", ".join(map(str, (*dims, *strides, *box, *[1] * rank)))
    return tvm.script.from_source(
        f"""
@T.prim_func(s_tir=True)
def main(a: T.handle, C: T.Buffer(({size},), "float16"){more}):
    T.func_attr({{"global_symbol": "main"}})
    m = T.int32()
    s = T.int32()
    off = T.int32()
    A = T.match_buffer(a{tensor})
    {head}
    a_map: T.let[T.handle("tensormap")] = T.tvm_stack_alloca("tensormap", 1)
    T.call_packed("{ENCODE}", a_map, "float16", {rank}, {base}, {numbers}, 0, 0, 2, 0)
    T.launch_thread("blockIdx.x", 1)
    tx = T.launch_thread("threadIdx.x", 128)
    with T.attr(T.int32(0), "hand_threaded", 1):
        tile = T.alloc_buffer(({size},), "float16", scope="shared", align=1024)
        bar = T.alloc_buffer((1,), "uint64", scope="shared")
        if tx == 0:
            T.ptx.mbarrier.init.shared.b64(T.address_of(bar[0]), T.uint32(1))
            T.ptx.fence.mbarrier_init.release.cluster()
        T.tvm_storage_sync("shared")
        if tx == 0:
            T.ptx.mbarrier.arrive.expect_tx.shared.b64(T.address_of(bar[0]), T.uint32({2 * size}))
            T.ptx["cp.async.bulk.tensor.{rank}d.shared::cluster.global.mbarrier::complete_tx::bytes"](
                T.address_of(tile[0]), T.address_of(a_map), {", ".join(map(str, coords))},
                T.address_of(bar[0]))
        T.cuda.mbarrier_wait(T.address_of(bar[0]), 0)
        for i in T.serial({size // 128}):
            C[i * 128 + tx] = tile[i * 128 + tx]
""",
        {"T": T},
    )


def matrix(shape=(96, 64)):
    return (np.arange(np.prod(shape)) % 2039).astype("float16").reshape(shape)


def clipped(part, box=(32, 16)):
    """Return a box from the beginning of `part`, zeros where it ends, innermost fastest."""
    out = np.zeros(box[::-1], "float16")
    shown = part[: box[1], : box[0]]
    out[: shown.shape[0], : shown.shape[1]] = shown
    return out.ravel()


def loaded(program, a, **inputs):
    verify(program, {"A": a, **inputs}, runs=RUNS).require_clean()
    return simulate(program, {"A": a, **inputs}).require_clean().outputs["C"]


# -- bases, extents, strides ----------------------------------------------------------------------


def test_a_base_that_is_not_the_buffers_start():
    program = lower(
        box_kernel("T.address_of(A[3, 8])", (56, 93), (128,), (32, 16), (8, 2))
    )  # fmt: skip
    a = matrix()
    assert np.array_equal(loaded(program, a), clipped(a[5:, 16:]))


def test_a_map_over_a_part_clips_at_the_parts_edge():
    program = lower(box_kernel("T.address_of(A[16, 32])", (24, 10), (128,), (32, 16), (8, 0)))
    a = matrix()
    assert np.array_equal(loaded(program, a), clipped(a[16:26, 40:56]))


def test_every_other_row_by_a_stride():
    program = lower(box_kernel("T.address_of(A[1, 0])", (64, 48), (256,), (32, 16), (0, 4)))
    a = matrix()
    assert np.array_equal(loaded(program, a), clipped(a[1::2][4:]))


def test_a_middle_dimension_of_three():
    program = lower(
        box_kernel(
            "T.address_of(A[0, 2, 0])",
            (64, 12),
            (3 * 64 * 2,),
            (32, 16),
            (0, 1),
            tensor=', (12, 3, 64), "float16"',
        )
    )
    a = matrix((12, 3, 64))
    assert np.array_equal(loaded(program, a), clipped(a[1:, 2]))


def test_extents_and_strides_and_base_known_at_run_time():
    program = lower(
        box_kernel(
            "T.address_of(A[m // 4, 8])",
            ("56", "m - m // 4"),
            ("s * 2",),
            (32, 16),
            (0, 0),
            tensor=', (m, 64), "float16", strides=[s, 1]',
        )
    )
    for m, columns in ((20, 96), (96, 64), (64, 72)):
        a = matrix((m + 5, columns + 16))[5:, 16:80]
        assert np.array_equal(loaded(program, a), clipped(a[m // 4 :, 8:]))


@pytest.mark.parametrize("begin", [0, 8, 64])
def test_a_base_behind_an_offset_of_the_tensors_own(begin):
    program = lower(
        box_kernel(
            "T.address_of(A[2, 0])",
            (64, 94),
            (128,),
            (32, 16),
            (0, 0),
            tensor=', (96, 64), "float16", elem_offset=off, offset_factor=8',
        )
    )
    base = matrix((98, 64)).ravel()
    a = base[begin : begin + 96 * 64].reshape(96, 64)
    assert np.array_equal(loaded(program, a), clipped(a[2:]))


def test_a_run_time_argument_of_the_base():
    program = lower(
        box_kernel(
            "T.address_of(A[first, 0])", (64, "96 - first"), (128,), (32, 16), (0, 0),
            more=", first: T.int32",
        )
    )  # fmt: skip
    a = matrix()
    for first in (0, 7, 90):
        assert np.array_equal(loaded(program, a, first=first), clipped(a[first:]))


# -- what the driver refuses ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("base", "dims", "strides", "box", "message"),
    [
        ("T.address_of(A[0, 4])", (60, 96), (128,), (32, 16),
         "found an address 8 bytes into the tensor's memory; need a multiple of 16 bytes"),
        ("A.data", (64, 96), (120,), (32, 16), "found stride 1 of 120 bytes; need a multiple"),
        ("A.data", (64, 0), (128,), (32, 16), "found dimension 1 of 0; need 1 to"),
        ("A.data", (64, 96), (-128,), (32, 16), "found stride 1 of -128 bytes; need 0 to"),
        ("A.data", (64, 96), (128,), (4, 32), "found an inner box of 8 bytes; need a multiple"),
        ("A.data", (64, 512), (128,), (16, 512), "found box dimension 1 of 512; need 1 to 256"),
    ],
)  # fmt: skip
def test_a_map_that_the_driver_refuses(base, dims, strides, box, message):
    program = lower(box_kernel(base, dims, strides, box, (0, 0)))
    with pytest.raises(VerifyError, match=f"tensor map of A: .*{message}"):
        simulate(program, {"A": matrix()})


def test_a_view_that_begins_at_no_multiple_of_16_bytes_is_refused():
    strided = ', (96, 64), "float16", strides=[s, 1]'
    program = lower(box_kernel("A.data", (64, 96), ("s * 2",), (32, 16), (0, 0), tensor=strided))
    with pytest.raises(VerifyError, match="found an address 6 bytes into the tensor's memory"):
        simulate(program, {"A": matrix((96, 96))[:, 3:67]})
    with pytest.raises(VerifyError, match="found stride 1 of 150 bytes; need a multiple of 16"):
        simulate(program, {"A": matrix((96, 75))[:, :64]})


def test_a_rank_and_its_numbers_must_agree():
    with pytest.raises(VerifyError, match="tensor map of A: found 6 numbers for rank 1; need 7"):
        encode_map(["float16", 1, Pointer("A"), 8, 8, 1, 0, 0, 0])


def test_an_encoded_map_holds_what_the_host_computed():
    program = lower(box_kernel("T.address_of(A[3, 8])", (56, 93), (128,), (32, 16), (8, 2)))
    inputs = {"A": matrix(), "C": np.zeros(512, "float16")}
    (launch,) = run_host(program.host, inputs)
    (tensor_map,) = (arg for arg in launch.args if isinstance(arg, TensorMapArg))
    assert tensor_map.byte_offset == (3 * 64 + 8) * 2
    assert (tensor_map.dims, tensor_map.strides_bytes) == ((56, 93), (128,))


# -- facts of the device --------------------------------------------------------------------------


def persistent(device=2, kind=7):
    """Build a kernel of as many blocks as the device has multiprocessors; each counts itself."""

    @T.prim_func(s_tir=True)
    def main(C: T.Buffer((1,), "int32")):
        T.func_attr({"global_symbol": "main"})
        sms: T.let[T.int32] = T.call_packed("runtime.GetDeviceAttr", device, 0, kind)
        T.launch_thread("blockIdx.x", T.min(sms, 1000))
        tx = T.launch_thread("threadIdx.x", 32)
        if tx == 0:
            T.evaluate(T.cuda.atomic_add(T.address_of(C[0]), 1))

    return lower(main)


def test_the_number_of_multiprocessors_is_an_argument():
    count = np.zeros(1, "int32")
    program = persistent()
    assert simulate(program, {"C": count}).require_clean().outputs["C"][0] == 132
    assert simulate(program, {"C": count}, num_sms=7).require_clean().outputs["C"][0] == 7
    report = verify(program, {"C": count}, runs=RUNS, num_sms=5).require_clean()
    assert report.choices[0].total == 5


@pytest.mark.parametrize(("kind", "answer"), [(0, 1), (1, 1024), (2, 32), (9, 1000)])
def test_other_facts_of_the_architecture(kind, answer):
    if answer > 100:
        program, expected = persistent(kind=kind), 1000
    else:
        program, expected = persistent(kind=kind), answer
    inputs = {"C": np.zeros(1, "int32")}
    (launch,) = run_host(program.host, inputs)
    assert launch.bind(next(iter(program.kernels.values())))["grid"][0] == expected


def test_what_the_architecture_does_not_tell_is_refused():
    with pytest.raises(VerifyError, match="found attribute 14; need one of"):
        simulate(persistent(kind=14), {"C": np.zeros(1, "int32")})
    with pytest.raises(VerifyError, match="found device type 1; need 2"):
        simulate(persistent(device=1), {"C": np.zeros(1, "int32")})


def test_a_host_expression_that_cannot_be_evaluated_is_named():
    zero = tvm.tirx.Var("zero", "int32")
    body = tvm.tirx.SeqStmt(
        [tvm.tirx.Bind(zero, tvm.tirx.const(0)), tvm.tirx.Evaluate(tvm.tirx.floordiv(7, zero))]
    )
    with pytest.raises(VerifyError, match=r"found ZeroDivisionError .* at .*7 // zero"):
        run_host(tvm.tirx.PrimFunc([], body), {})


@pytest.mark.parametrize("code", [-1, 3, 256])
def test_an_interleave_that_is_none_is_refused(code):
    arguments = ["float16", 1, Pointer("A"), 8, 8, 1, code, 0, 0, 0]
    with pytest.raises(VerifyError, match=f"found interleave {code}; need one of 0, 1, 2"):
        encode_map(arguments)
