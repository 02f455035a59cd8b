"""Each emitter builds one instruction, which TVM's table takes and the name says."""

from __future__ import annotations

import pytest
import tvm
from tvm import tirx
from tvm.ir import Call

from tvm_hopper.codegen_patches.ptx import (
    address,
    alignment,
    bulk,
    cache,
    cluster,
    cp_async,
    fences,
    matrix,
    mbarrier,
    registers,
    tma,
    wgmma,
)
from tvm_hopper.facts import wgmma as facts
from tvm_hopper.sim.tir import decode_ptx


def pointer(dtype="uint64", scope="shared.dyn"):
    buffer = tirx.decl_buffer((8,), dtype, scope=scope)
    return tirx.address_of(tirx.BufferLoad(buffer, [0]))


def registers_of(dtype, count):
    buffer = tirx.decl_buffer((count,), dtype, scope="local")
    return [tirx.BufferLoad(buffer, [i]) for i in range(count)]


def name_of(call: Call) -> str:
    return str(call.op.name)


BARRIER = pointer()
(POLICY,) = registers_of("uint64", 1)
TENSOR = pointer("float16", "global")
RANK = tirx.const(1, "uint32")
BYTES = tirx.Var("num_bytes", "int32")
TILE = pointer("float16")
MAP = tirx.address_of(tirx.Var("map", tirx.tvm_stack_alloca("tensormap", 1).ty))


@pytest.mark.parametrize(
    ("call", "name", "values"),
    [
        (mbarrier.init(BARRIER, 2), "mbarrier_init", {"count": 2}),
        (mbarrier.fence_init(), "fence_mbarrier_init", {}),
        (mbarrier.arrive(BARRIER), "mbarrier_arrive_nocount", {}),
        (mbarrier.arrive_expect_tx(BARRIER, 512), "mbarrier_arrive_expect_tx", {"tx_count": 512}),
        (wgmma.fence(), "wgmma_fence", {}),
        (wgmma.commit_group(), "wgmma_commit_group", {}),
        (wgmma.wait_group(1), "wgmma_wait_group", {}),
        (fences.proxy_async("global"), "fence_proxy", {}),
        (fences.sync_named(3, 256), "bar_sync_count", {"a": 3, "b": 256}),
        (fences.arrive_named(3, 256), "bar_arrive", {"a": 3, "b": 256}),
        (bulk.load(TILE, TENSOR, 128, BARRIER), "cp_async_bulk_g2s_cluster", {"size": 128}),
        (bulk.store(TENSOR, TILE, 128), "cp_async_bulk_s2g", {"size": 128}),
        (bulk.reduce(TENSOR, TILE, 128, "add.f32"), "cp_reduce_async_bulk_s2g", {"size": 128}),
        (tma.reduce(TILE, MAP, [8, 0], "xor"), "cp_reduce_async_bulk_tensor", {}),
        (cluster.arrive(), "barrier_cluster_arrive", {}),
        (cluster.wait(), "barrier_cluster_wait", {}),
        (
            cluster.peer_address(*registers_of("uint32", 1), tirx.const(5, "uint32"), RANK),
            "mapa_u32",
            {},
        ),
        (
            cluster.load(*registers_of("float32", 1), *registers_of("uint32", 1), "float32"),
            "ld",
            {},
        ),
        (bulk.commit_group(), "cp_async_bulk_commit_group", {}),
        (bulk.wait_group(1, read_only=True), "cp_async_bulk_wait_group", {}),
        (bulk.wait_group(0, read_only=False), "cp_async_bulk_wait_group", {}),
        (cp_async.copy(TILE, TENSOR, 16), "cp_async_cg", {"cp_size": 16}),
        (cp_async.copy(TILE, TENSOR, 4), "cp_async_ca", {"cp_size": 4}),
        (cp_async.copy(TILE, TENSOR, 16, 2), "cp_async_cg_src_size", {"src_size": 2}),
        (cp_async.copy(TILE, TENSOR, 8, 2), "cp_async_ca_src_size", {"src_size": 2}),
        (cp_async.arrive(BARRIER), "cp_async_mbarrier_arrive", {}),
        (tma.prefetch(MAP), "prefetch", {}),
        (cache.create_policy(POLICY, "evict_first"), "createpolicy_fractional", {}),
        (cp_async.commit_group(), "cp_async_commit_group", {}),
        (cp_async.wait_group(2), "cp_async_wait_group", {}),
        (registers.setmaxnreg_dec(40), "setmaxnreg", {}),
        (registers.setmaxnreg_inc(232), "setmaxnreg", {}),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_an_instruction_of_the_table(call, name, values):
    decoded = decode_ptx(call)
    assert decoded.name == name
    for operand, value in values.items():
        assert int(decoded.operands[operand][0]) == value


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (mbarrier.wait(BARRIER, 1), "tirx.cuda.mbarrier_wait"),
        (fences.sync_threads(), "tirx.tvm_storage_sync"),
        (fences.sync_threads(33), "tirx.tvm_storage_sync"),
        (fences.sync_threads(32), "tirx.cuda.warp_sync"),
        (fences.sync_warp(), "tirx.cuda.warp_sync"),
        (address.generic_to_shared(TILE), "tirx.cuda.cvta_generic_to_shared"),
        (registers.shuffle_xor(registers_of("uint32", 1)[0], 2), "tirx.tvm_warp_shuffle_xor"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_a_helper_of_tvm(call, name):
    assert name_of(call) == name


def test_reductions_name_operation_and_type():
    mods = decode_ptx(bulk.reduce(TENSOR, TILE, 16, "add.noftz.f16")).mods
    assert (mods["redop"], mods["noftz"], mods["type"]) == ("add", "noftz", "f16")
    mods = decode_ptx(tma.reduce(TILE, MAP, [0, 0, 0], "min")).mods
    assert (mods["redop"], mods["dim"]) == ("min", "3d")


def test_the_barrier_of_a_cluster_orders_what_its_blocks_access():
    assert decode_ptx(cluster.arrive()).mods["sem"] == "release"
    assert decode_ptx(cluster.wait()).mods["sem"] == "acquire"
    word, place = registers_of("float32", 1), registers_of("uint32", 1)
    assert "shared::cluster" in decode_ptx(cluster.load(*word, *place, "float32")).mods.values()


@pytest.mark.parametrize(
    "call",
    [
        tma.load(TILE, MAP, [0, 1], BARRIER, POLICY),
        bulk.load(TILE, TENSOR, 128, BARRIER, POLICY),
    ],
)
def test_a_load_that_tells_l2_something(call):
    decoded = decode_ptx(call)
    assert "L2::cache_hint" in decoded.mods.values()
    assert decoded.operands["cache_policy"][0].same_as(POLICY)


@pytest.mark.parametrize("hint", ["evict_first", "evict_last"])
def test_a_policy_says_what(hint):
    assert decode_ptx(cache.create_policy(POLICY, hint)).mods["pri"] == f"L2::{hint}"


def test_setmaxnreg_goes_both_ways():
    down, up = registers.setmaxnreg_dec(40), registers.setmaxnreg_inc(40)
    assert [decode_ptx(x).mods["action"] for x in (down, up)] == ["dec", "inc"]


@pytest.mark.parametrize("scope", fences.PROXY_SCOPES)
def test_a_proxy_fence_keeps_its_scope(scope):
    mods = decode_ptx(fences.proxy_async(scope)).mods
    assert (mods["proxykind"], mods["space"]) == ("async", scope)


def test_a_shuffle_has_the_type_of_its_value():
    (register,) = registers_of("uint32", 1)
    call = registers.shuffle_xor(register, 2)
    assert str(call.ty.dtype) == "uint32"
    assert [int(x) for x in call.args[2:]] == [2, 32, 32]


@pytest.mark.parametrize("rank", [1, 2, 3, 4, 5])
def test_a_load_has_as_many_coordinates_as_dimensions(rank):
    decoded = decode_ptx(tma.load(TILE, MAP, [tirx.const(i) for i in range(rank)], BARRIER))
    assert decoded.mods["dim"] == f"{rank}d"
    assert [int(x) for x in decoded.operands["coords"]] == list(range(rank))
    tvm.ir.assert_structural_equal(decoded.operands["mbar"][0].args[0], BARRIER)


def multiply(dtype, accumulator, in_registers=False, **named):
    count = facts.accumulator_registers(16) // (2 if accumulator == "float16" else 1)
    d = registers_of("float32" if accumulator == "float32" else "uint32", count)
    descriptor = tirx.Var("b", "uint64")
    a = registers_of("uint32", 4) if in_registers else tirx.Var("a", "uint64")
    return decode_ptx(wgmma.mma(16, dtype, accumulator, d, a, descriptor, **named))


@pytest.mark.parametrize("in_registers", [False, True], ids=["shared", "registers"])
@pytest.mark.parametrize(
    ("dtype", "accumulator"),
    [
        ("float16", "float32"),
        ("bfloat16", "float32"),
        ("float32", "float32"),
        ("float8_e4m3fn", "float32"),
        ("float16", "float16"),
        ("int8", "int32"),
    ],
)
def test_mma_of_each_type(dtype, accumulator, in_registers):
    decoded = multiply(dtype, accumulator, in_registers)
    assert decoded.mods["shape"] == f"m64n16k{facts.instruction_k(dtype)}"
    assert len(decoded.operands["d"]) == (4 if accumulator == "float16" else 8)
    assert len(decoded.operands["a" if in_registers else "a_desc"]) == (4 if in_registers else 1)
    assert bool(decoded.operands["scale_d"][0])


def test_mma_says_which_operand_is_transposed():
    immediates = [multiply("float16", "float32", transposed=(i, 1 - i)) for i in (0, 1)]
    before, after = (
        {k: int(v[0]) for k, v in x.operands.items() if "trans" in k} for x in immediates
    )
    assert before != after


@pytest.mark.parametrize(
    ("dtype", "in_registers", "transposed"),
    [("float8_e4m3fn", False, (0, 1)), ("float32", False, (1, 0)), ("float16", True, (1, 0))],
)
def test_mma_refuses_what_the_hardware_reads_k_major_alone(dtype, in_registers, transposed):
    with pytest.raises(ValueError, match="need 16-bit types in shared memory, or a K-major"):
        multiply(dtype, "float32", in_registers, transposed=transposed)


def test_bytes_of_a_bulk_copy_never_become_a_negative_constant():
    """TVM's simplifier converts such a constant to no uint, also where nothing is executed."""
    for value, want in ((256, 256), (-256, (1 << 20) - 256)):
        call = bulk.store(TENSOR, TILE, tirx.IntImm("int32", value))
        assert int(decode_ptx(call).operands["size"][0].value) == want


@pytest.mark.parametrize(
    ("call", "num_bytes"),
    [
        (bulk.load(TILE, TENSOR, 128, BARRIER), 16),
        (bulk.store(TENSOR, TILE, BYTES), 16),
        (bulk.reduce(TENSOR, TILE, BYTES, "add.f32"), 16),
        (bulk.commit_group(), 1),
        (cache.load_hinted(registers_of("uint32", 4), TENSOR, "evict_last", POLICY), 16),
        (cache.store_hinted(TENSOR, registers_of("uint32", 2), POLICY), 8),
        (fences.release(TENSOR, RANK), 4),
        (cp_async.copy(TILE, TENSOR, 16), 16),
        (cp_async.copy(TILE, TENSOR, 8, 2), 8),
        (cp_async.copy(TILE, TENSOR, 4), 4),
        (cp_async.commit_group(), 1),
        (mbarrier.arrive(BARRIER), 1),
    ],
)
def test_bytes_that_divide_the_addresses_in_a_call(call, num_bytes):
    assert alignment.access_bytes(call) == num_bytes


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("transposed", [False, True])
def test_matrices_of_a_warp(count, transposed):
    decoded = decode_ptx(matrix.store(TILE, registers_of("uint32", count), transposed))
    assert decoded.name == "stmatrix"
    assert len(decoded.operands["r"]) == count
    assert decoded.mods["num"] == f"x{count}"
    assert bool(decoded.mods.get("trans")) is transposed
