"""Operands that an instruction does not allow: ptxas refuses constants, a register hides them."""

import functools

import numpy as np
import pytest
import tvm_ffi
from tvm import tirx
from tvm.script import tirx as T

from tests.sim_kernels.mutate import change, with_argument
from tvm_hopper.simulation import Program, simulate

from . import ptx, test_wgmma
from .hand_threaded import F32, I32, U32, U64, Shared, hand_threaded
from .kernels import lower

PARITIES = [0, 1, 2, -1]


@hand_threaded(128, smem=64, then=lower)
def program(P: I32[4], C: I32[128], tx, bar: Shared[U64], *, index):
    """Return a warp group that waits for a parity out of memory, then for groups of every kind."""
    ptx.set_up(tx, (bar[0], 1))
    if tx == 0:
        ptx.arrive(bar[0])
    T.cuda.mbarrier_wait(T.address_of(bar[0]), P[index] * 1)
    T.ptx["cp.async.wait_group"](0)
    T.ptx["cp.async.bulk.wait_group"](0)
    T.ptx.wgmma.wait_group.sync.aligned(0)
    C[tx] = tx


def run(kernel):
    return simulate(kernel, {"P": np.array(PARITIES, "int32")})


@pytest.mark.parametrize(("index", "found"), [(2, True), (3, True)])
def test_a_parity_is_zero_or_one(index, found):
    messages = [f.message for f in run(program(index)).findings if f.rule == "ILLEGAL_OPERAND"]
    assert messages == [f"parity {PARITIES[index]}: need 0 or 1"]


@pytest.mark.parametrize(
    "wait", ["cp_async_wait_group", "cp_async_bulk_wait_group", "wgmma_wait_group"]
)
def test_a_wait_leaves_no_negative_number_of_groups(wait):
    assert not run(program(0)).findings
    wrong = change(program(0), wait, 0, with_argument(0, tirx.IntImm("int32", -1)))
    (finding,) = run(wrong).findings
    assert finding.rule == "ILLEGAL_OPERAND"
    assert finding.message == "-1 groups: need 0 or more"


@functools.cache
def product():
    descriptor = test_wgmma.facts.Descriptor(0, 16, 1024, 0, 128).encode()
    return test_wgmma.kernel("float16", 0, 0, "float32", 16384, descriptor, descriptor, 0)


def after(operand, value):
    """Change one of the last five operands of the product: scale-d, -a, -b, trans-a, -b."""
    first = test_wgmma.N // 2 + 2
    new = with_argument(first + operand, tirx.IntImm("int32", value))
    result = simulate(change(product(), "wgmma_f16_ss", 0, new), {"X": np.zeros(4096, "uint32")})
    return [f.message for f in result.findings if f.rule == "ILLEGAL_OPERAND"]


@pytest.mark.parametrize(("operand", "name"), [(1, "scale-a"), (2, "scale-b")])
def test_a_factor_of_a_product_is_one_or_its_negative(operand, name):
    assert after(operand, 1) == after(operand, -1) == []
    assert after(operand, 2) == [f"imm-{name} 2: need -1 or 1"]
    assert after(operand, 0) == [f"imm-{name} 0: need -1 or 1"]


@pytest.mark.parametrize(("operand", "name"), [(3, "trans-a"), (4, "trans-b")])
def test_an_operand_is_transposed_or_not(operand, name):
    assert after(operand, 0) == after(operand, 1) == []
    assert after(operand, 2) == [f"imm-{name} 2: need 0 or 1"]


def test_a_product_needs_lanes_that_exist():
    """A block of 127 threads: the last lane's part of the fragments is nowhere."""
    kernel = product()
    ((name, func),) = kernel.kernels.items()

    def fewer(node):
        if node.attr_key == "thread_extent" and int(node.value) == 128:
            return tirx.AttrStmt(node.node, node.attr_key, tirx.IntImm("int32", 127), node.body)
        return node

    host = tvm_ffi.structural_map(
        kernel.host.body,
        [(tirx.IntImm, lambda x: tirx.IntImm(str(x.ty.dtype), 127) if int(x) == 128 else x)],
    )
    body = tvm_ffi.structural_map(func.body, [(tirx.AttrStmt, fewer)])
    wrong = Program(kernel.host.with_body(host), {name: func.with_body(body)})
    result = simulate(wrong, {"X": np.zeros(4096, "uint32")})
    found = [f.message for f in result.findings if f.rule == "WARP_CONVERGENCE"]
    assert "wgmma.mma_async with 31 of 32 lanes" in found


@hand_threaded(32, smem=512, then=lower)
def copies(S: U32[32], X: F32[128], tx, tile: Shared[F32], *, first):
    """Copy 16 bytes a lane, as many as `S` says of them read, to 512 bytes from `first` on."""
    T.ptx["cp.async.cg.shared.global"](
        T.address_of(tile[tx * 4 + first]), T.address_of(X[tx * 4]), 16, S[tx]
    )
    T.ptx["cp.async.wait_all"]()


def copy_findings(sizes, first=0):
    inputs = {"S": np.resize(sizes, 32).astype("uint32"), "X": np.zeros(128, "float32")}
    return [(f.rule, f.message) for f in simulate(copies(first), inputs).findings]


def test_a_copy_reads_no_more_than_it_writes():
    assert copy_findings([0, 4, 6, 16]) == []
    ((rule, message),) = copy_findings([16, 17])
    assert (rule, message) == ("ILLEGAL_OPERAND", "cp.async of 16 bytes from 17: need at most 16")


def test_a_copy_stays_inside_of_shared_memory():
    ((rule, message),) = copy_findings([16], first=4)
    assert rule == "OOB_ACCESS"
    assert "cp.async writes" in message
