"""Tensor maps changed on the device: fields, the tensormap proxy, and what is illegal.

PTX ISA 9.1, 9.7.9.28 tensormap.replace, 9.7.13.16 tensormap.cp_fenceproxy, 9.7.13.4 fence.proxy.
"""

import functools

import numpy as np
import pytest
from tvm import tirx
from tvm.script import tirx as T

from tests.sim_kernels.mutate import change as mutated, with_argument
from tvm_hopper.simulation import simulate, verify

from . import ptx
from .kernels import ENCODE, POLICIES, lower

LOAD = "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
STORE = "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group"
RELEASE = "fence.proxy.tensormap::generic.release"
ACQUIRE = "fence.proxy.tensormap::generic.acquire"
COPY = "tensormap_cp_fenceproxy.global.shared::cta.tensormap::generic.release"
REPLACE = "tensormap_replace.tile"
A = np.arange(32 * 64, dtype="float32").reshape(32, 64)
B = -A
INPUTS = {"A": A.ravel(), "B": B.ravel()}

# What is changed: (field, type, ordinal or None, value or "B": the address of another tensor).
ADDRESS = (("global_address", "b64", None, "B"),)


def change(changes, space, place, tensor):
    """Emit one instruction for each field."""
    for field, kind, ordinal, value in changes:
        new = T.reinterpret("uint64", tensor) if value == "B" else value
        if kind == "b64" and isinstance(new, int):
            new = T.uint64(new)
        elif ordinal is not None or field == "rank":
            new = T.uint32(new) if isinstance(new, int) else new
        operands = (place, new) if ordinal is None else (place, ordinal, new)
        T.evaluate(T.ptx[f"{REPLACE}.{field}.{space}.b1024.{kind}"](*operands))


@functools.cache
def program(
    changes=ADDRESS, where="global", release="gpu", acquire="gpu", other_cta=False, reload=False,
    copied=True, box=(16, 8), start=(0, 0), zeros=False, user="same", shift=0, offset=0, lanes=32,
    twice=False, to="own", sem="", stores_to_parameter=False, im2col=False,
):  # fmt: skip
    """Copy a map to memory, change it, and load a box through it.

    `where`: the map is changed in global memory, or in shared memory and copied from there.
    """
    size = box[0] * box[1]
    ctas = 2 if other_cta else 1

    @T.prim_func(s_tir=True)
    def main(
        A: T.Buffer((2048,), "float32"),
        B: T.Buffer((2048,), "float32"),
        W: T.Buffer((512,), "uint32"),
        F: T.Buffer((1,), "uint32"),
        C: T.Buffer((size,), "float32"),
    ):
        T.func_attr({"global_symbol": "main"})
        a_map: T.let[T.handle("tensormap")] = T.tvm_stack_alloca("tensormap", 1)
        if im2col:
            T.call_packed(
                "runtime.cuTensorMapEncodeIm2col", a_map, "float32", 3, A.data, 64, 8, 4, 256, 2048,
                0, 0, 16, 8, 1, 1, 1, 0, 0, 2, 0,
            )  # fmt: skip
        else:
            T.call_packed(ENCODE, a_map, "float32", 2, A.data, 64, 32, 256, *box, 1, 1, 0, 0, 2, 0)
        bx = T.launch_thread("blockIdx.x", ctas)
        tx = T.launch_thread("threadIdx.x", 128)
        with T.attr(T.int32(0), "hand_threaded", 1):
            smem = T.alloc_buffer((4096,), "uint8", scope="shared.dyn", align=1024)
            tile = T.decl_buffer((1024,), "float32", data=smem.data, scope="shared.dyn")
            desc = T.decl_buffer((1024,), "uint32", data=smem.data, scope="shared.dyn")
            bar = T.decl_buffer((512,), "uint64", data=smem.data, scope="shared.dyn")
            word = T.alloc_buffer((1,), "uint32", scope="local")
            ptx.set_up(tx, (bar[480], 1), sync=T.cuda.cta_sync)
            if bx == 0:
                if tx < 32:
                    word[0] = T.uint32(0)
                    if copied:
                        T.ptx["ld.u32"](word[0], T.ptx.addr(T.address_of(a_map), tx * 4))
                    if stores_to_parameter:
                        T.ptx["st.u32"](T.ptx.addr(T.address_of(a_map), tx * 4), word[0])
                    if zeros:
                        word[0] = T.uint32(0)
                    if where == "global":
                        W[tx + shift] = word[0]
                    else:
                        desc[512 + tx] = word[0]
                T.cuda.cta_sync()
                if tx == 0:
                    if where == "global":
                        change(changes, "global", T.address_of(W[shift]), T.address_of(B[offset]))
                        if release != "":
                            T.ptx[f"{RELEASE}.{release}"]()
                    else:
                        change(
                            changes, "shared::cta",
                            T.cuda.cvta_generic_to_shared(T.address_of(desc[512])),
                            T.address_of(B[offset]),
                        )  # fmt: skip
                if where == "shared":
                    T.cuda.warp_sync()
                    if tx < lanes:
                        T.ptx[f"{COPY}.{release}.sync.aligned"](
                            T.address_of(W[shift]),
                            T.cuda.cvta_generic_to_shared(T.address_of(desc[512])),
                        )
                if other_cta:
                    T.cuda.cta_sync()
                    if tx == 0:
                        if sem == "relaxed":
                            T.ptx["st.relaxed.gpu.global.u32"](T.address_of(F[0]), T.uint32(1))
                        else:
                            T.ptx["st.release.gpu.global.u32"](T.address_of(F[0]), T.uint32(1))
            if other_cta:
                if tx == 0:
                    word[0] = T.uint32(0)
                    while word[0] == T.uint32(0):
                        if sem == "relaxed":
                            T.ptx["ld.relaxed.gpu.global.u32"](word[0], T.address_of(F[0]))
                        else:
                            T.ptx["ld.acquire.gpu.global.u32"](word[0], T.address_of(F[0]))
            elif user == "other":
                if acquire != "" and tx == 0:
                    T.ptx[f"{ACQUIRE}.{acquire}"](T.address_of(W[shift]))
                T.cuda.cta_sync()
            if bx == ctas - 1:
                if tx == (0 if user == "same" else 64):
                    if user == "same" and acquire != "":
                        T.ptx[f"{ACQUIRE}.{acquire}"](T.address_of(W[shift]))
                    ptx.expect_bytes(bar[480], size * 4)
                    if to == "own":
                        T.ptx[LOAD](
                            T.address_of(tile[0]), T.address_of(W[shift]), *start,
                            T.address_of(bar[480]),
                        )  # fmt: skip
                    elif to == "tensor":
                        T.ptx[LOAD](
                            T.address_of(tile[0]), T.address_of(B[0]), *start,
                            T.address_of(bar[480]),
                        )  # fmt: skip
                    elif to == "parameter":
                        T.ptx[LOAD](
                            T.address_of(tile[0]), T.address_of(a_map), *start,
                            T.address_of(bar[480]),
                        )  # fmt: skip
                    else:
                        T.ptx[LOAD](
                            T.address_of(tile[0]),
                            T.reinterpret("uint64", T.address_of(desc[512])), *start,
                            T.address_of(bar[480]),
                        )  # fmt: skip
                    if twice:
                        T.ptx[f"{REPLACE}.global_address.global.b1024.b64"](
                            T.address_of(W[shift]), T.reinterpret("uint64", T.address_of(A[0]))
                        )
                ptx.wait(bar[480], 0)
                for i in T.serial((size + 127) // 128):
                    if i * 128 + tx < size:
                        C[i * 128 + tx] = tile[i * 128 + tx]

    return lower(main)


def given():
    return {**INPUTS, "W": np.zeros(512, "uint32"), "F": np.zeros(1, "uint32")}


def box_of(array, box, start, fill=0):
    """Return a box of a tensor, with `fill` outside."""
    out = np.full(box[::-1], fill, array.dtype)
    for y, x in np.ndindex(out.shape):
        row, column = start[1] + y, start[0] + x
        if 0 <= row < array.shape[0] and 0 <= column < array.shape[1]:
            out[y, x] = array[row, column]
    return out.ravel()


@pytest.mark.parametrize("where", ["global", "shared"])
@pytest.mark.parametrize(("policy", "seed"), POLICIES)
def test_a_copy_uses_the_map_that_was_released(where, policy, seed):
    result = simulate(program(where=where), given(), policy, seed).require_clean()
    assert np.array_equal(result.outputs["C"], box_of(B, (16, 8), (0, 0)))


@pytest.mark.parametrize(
    "options",
    [{}, {"where": "shared"}, {"other_cta": True}, {"user": "other"}, {"to": "parameter"}],
)
def test_the_whole_verdict_is_clean(options):
    verify(program(**options), given()).require_clean()


def pick(array, rows, columns):
    return np.ascontiguousarray(array[rows, columns]).ravel()


DIM = "b32"
FIELDS = {
    "dim": ((("global_dim", DIM, 0, 8), ("global_dim", DIM, 1, 3)), "b"),
    "stride": ((("global_stride", "b64", 0, 512),), "b"),
    "box": ((("box_dim", DIM, 0, 8), ("box_dim", DIM, 1, 16)), "b"),
    "element stride": ((("element_stride", DIM, 1, 2), ("box_dim", DIM, 1, 16)), "b"),
    "swizzle": ((("swizzle_mode", DIM, None, 2),), "b"),
    "fill": ((("global_dim", DIM, 1, 3), ("fill_mode", DIM, None, 1)), "b"),
}


def expected(name):
    if name == "dim":
        return box_of(A[:3, :8], (16, 8), (0, 0))
    if name == "stride":
        return box_of(A[::2], (16, 8), (0, 0))
    if name == "box":
        return box_of(A, (8, 16), (0, 0))
    if name == "element stride":
        return box_of(A[::2], (16, 8), (0, 0))
    if name == "fill":
        return box_of(A[:3], (16, 8), (0, 0), np.nan)
    flat = box_of(A, (16, 8), (0, 0)).reshape(-1, 4)  # 64-byte swizzle: chunks of 16 bytes
    chunk = np.arange(len(flat))
    out = np.zeros_like(flat)
    out[chunk ^ (chunk // 8 & 3)] = flat
    return out.ravel()


@pytest.mark.parametrize("name", FIELDS)
def test_every_field_takes_effect(name):
    result = simulate(program(FIELDS[name][0]), given(), "random", 3).require_clean()
    assert np.array_equal(result.outputs["C"], expected(name), equal_nan=True)


WHOLE = (
    ("global_address", "b64", None, "B"), ("rank", "b32", None, 1),
    *[("global_dim", DIM, i, n) for i, n in enumerate((64, 32))],
    *[("box_dim", DIM, i, n) for i, n in enumerate((16, 8))],
    *[("element_stride", DIM, i, 1) for i in range(2)],
    ("global_stride", "b64", 0, 256), ("elemtype", DIM, None, 7),
    ("interleave_layout", DIM, None, 0), ("swizzle_mode", DIM, None, 0),
    ("fill_mode", DIM, None, 0),
)  # fmt: skip


@pytest.mark.parametrize("where", ["global", "shared"])
def test_a_map_is_made_from_zeros(where):
    result = simulate(program(WHOLE, where=where, zeros=True), given()).require_clean()
    assert np.array_equal(result.outputs["C"], box_of(B, (16, 8), (0, 0)))


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"release": ""}, "TENSORMAP_PROXY"),
        ({"acquire": ""}, "TENSORMAP_PROXY"),
        ({"where": "shared", "acquire": ""}, "TENSORMAP_PROXY"),
        ({"other_cta": True, "release": ""}, "TENSORMAP_PROXY"),
        ({"other_cta": True, "acquire": ""}, "TENSORMAP_PROXY"),
        ({"other_cta": True, "release": "cta"}, "TENSORMAP_PROXY"),
        ({"other_cta": True, "acquire": "cta"}, "TENSORMAP_PROXY"),
        ({"other_cta": True, "sem": "relaxed", "release": ""}, "RACE_READ_INFLIGHT"),
        ({"user": "other", "acquire": ""}, "TENSORMAP_PROXY"),
        ({"twice": True}, "RACE_OVERWRITE_BUSY"),
        ({"copied": False, "changes": ADDRESS}, "TENSOR_MAP"),
        ({"changes": (("box_dim", DIM, 0, 3),)}, "TENSOR_MAP"),
        ({"changes": (("global_address", "b64", None, 64),)}, "TENSOR_MAP"),
        ({"offset": 1}, "TENSOR_MAP"),
        ({"changes": (("rank", "b32", None, 2),)}, "TENSOR_MAP"),
        ({"changes": (("rank", "b32", None, 0),)}, "ILLEGAL_OPERAND"),
        ({"changes": (("elemtype", DIM, None, 11),)}, "INCOMPLETE"),
        ({"changes": (("interleave_layout", DIM, None, 1),)}, "INCOMPLETE"),
        ({"shift": 8}, "MISALIGNED"),
        ({"where": "shared", "shift": 8}, "MISALIGNED"),
        ({"where": "shared", "shift": 496}, "OOB_ACCESS"),
        ({"where": "shared", "lanes": 16}, "WARP_CONVERGENCE"),
        ({"where": "shared", "to": "shared"}, "ILLEGAL_OPERAND"),
        ({"stores_to_parameter": True}, "OOB_ACCESS"),
        ({"im2col": True}, "ILLEGAL_OPERAND"),
    ],
)
def test_what_is_wrong_is_named(options, rule):
    found = simulate(program(**options), given())
    assert rule in found.rules, found.findings


NOWHERE = tirx.IntImm("uint64", 1 << 40 | 5 << 24 | 2048)  # shared memory of no CTA
HERE = tirx.IntImm("uint64", 1 << 40 | 2048)


@pytest.mark.parametrize(
    ("options", "instruction", "operand", "text"),
    [
        ({}, "fence_proxy_tensormap_acquire", HERE, "need an address of global memory"),
        ({}, "tensormap_replace_address", NOWHERE, "need global memory, or shared memory of its"),
        ({"where": "shared"}, "tensormap_cp_fenceproxy", HERE, "need shared memory of its own CTA"),
    ],
)
def test_addresses_that_are_not_allowed(options, instruction, operand, text):
    wrong = mutated(program(**options), instruction, 0, with_argument(0, operand))
    messages = [f.message for f in simulate(wrong, given()).findings if f.rule == "ILLEGAL_OPERAND"]
    assert any(text in message for message in messages), messages


def test_bytes_that_are_no_map_are_not_used():
    (found,) = [
        f for f in simulate(program(to="tensor"), given()).findings if f.rule == "TENSOR_MAP"
    ]
    assert "what lies there is none, or was encoded by a driver" in found.message
