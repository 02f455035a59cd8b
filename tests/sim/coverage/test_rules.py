"""Each rule on a small kernel: what is found, and what is proven."""

import numpy as np
import pytest

from tests.sim.coverage.proving import prove

LOAD_1D = '"cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"'
STORE_1D = '"cp.async.bulk.global.shared::cta.bulk_group"'
REDUCE_1D = '"cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32"'
COPY = "Y[bx * 128 + tx] = X[bx * 128 + tx]"


def test_a_right_kernel_is_proven() -> None:
    proof = prove(COPY)
    assert not proof.findings
    assert proof.text == (
        "8 CTAs: indices of 1 statement in bounds and aligned, stores to Y disjoint"
    )
    assert proof.covered == ["Y"]


def test_a_cta_that_does_nothing_leaves_a_hole() -> None:
    (found,) = prove(f"if bx < 3 or bx > 4:\n    {COPY}").findings
    assert found.rule == "OUTPUT_COVERAGE"
    assert "256 of 1024 elements are never written by any CTA, the first of them (384,)" in (
        found.message
    )
    assert found.byte_range == (384 * 4, 384 * 4 + 4) or found.byte_range[0] == 384 * 4


def test_an_index_out_of_bounds_in_some_ctas_names_the_first() -> None:
    body = "Y[bx * 128 + tx] = X[T.if_then_else(bx >= 5, bx * 128 + tx + 1024, bx * 128 + tx)]"
    (found,) = prove(body).findings
    assert found.rule == "OOB_ACCESS"
    assert "CTA (5, 0, 0) reads bytes [7164, 7168) of X, which has 4096 bytes: index 1791" in (
        found.message
    )
    assert found.buffer == "X"
    assert "Y[" in found.statements[0]


def test_an_index_below_zero_is_out_of_bounds() -> None:
    (found,) = prove("Y[bx * 128 + tx] = X[bx * 128 + tx - 1]").findings
    assert "CTA (0, 0, 0) reads bytes [-4, 0) of X" in found.message


def test_stores_of_two_ctas_to_one_element_are_a_race() -> None:
    proof = prove("Y[bx * 127 + tx] = X[bx * 128 + tx]", outputs=())
    (found,) = proof.findings
    assert found.rule == "RACE_WRITE_WRITE"
    assert found.agents == ("CTA (0, 0, 0)", "CTA (1, 0, 0)")
    assert "byte 508 of Y, element (127,)" in found.message
    assert "disjoint" not in proof.text


def test_a_load_of_what_another_cta_stores_is_a_race() -> None:
    (found,) = prove("Y[bx * 128 + tx] = X[tx] + Y[(bx * 128 + tx) // 129 * 128 + tx]").findings
    assert found.rule == "RACE_READ_INFLIGHT"
    assert "loads" in found.message


def test_two_statements_of_one_cta_may_store_to_one_place() -> None:
    assert not prove(f"Y[bx * 128 + tx] = T.float32(0)\n{COPY}").findings


def test_a_vector_at_an_odd_place_is_misaligned() -> None:
    body = "for v in T.vectorized(4):\n    Y[bx * 64 + tx * 4 + 2 + v] = X[bx * 128 + tx * 4 + v]"
    proof = prove(body, threads=16, outputs=())
    assert proof.rules == {"MISALIGNED"}
    assert "writes 16 bytes of Y at an address that is 8 modulo 16: need 16" in proof.messages
    body = "for v in T.vectorized(4):\n    Y[bx * 128 + tx * 4 + v] = X[bx * 64 + tx * 4 + 2 + v]"
    assert not prove(body, threads=32).findings  # which TVM prints element by element


def test_a_view_whose_first_byte_is_odd_misaligns_vectors() -> None:
    base = np.zeros(1025, "float32")
    arrays = {"X": base[1:], "Y": np.zeros(1024, "float32")}
    body = "for v in T.vectorized(4):\n    Y[bx * 128 + tx * 4 + v] = X[bx * 128 + tx * 4 + v]"
    assert prove(body, threads=32, arrays=arrays).rules == {"MISALIGNED"}


@pytest.mark.parametrize("size", [510, 512, 528])
def test_a_bulk_store_covers_its_bytes(size: int) -> None:
    store = f"T.ptx[{STORE_1D}](T.address_of(Y[bx * 128]), T.address_of(sf[0]), T.uint32({size}))"
    rules = {
        510: {"MISALIGNED", "OUTPUT_COVERAGE"},
        512: set(),
        528: {"OOB_ACCESS"},
    }
    assert prove(f"if tx == 0:\n    {store}").rules == rules[size]


def test_reductions_of_several_ctas_into_one_place_do_not_conflict() -> None:
    reduce = f"T.ptx[{REDUCE_1D}](T.address_of(Y[0]), T.address_of(sf[0]), T.uint32(4096))"
    body = f"if tx == 0:\n    {reduce}"
    assert not prove(body).findings


def test_a_store_into_what_another_cta_reduces_conflicts() -> None:
    body = f"""
if bx == 0:
    Y[tx] = X[tx]
if tx == 0:
    T.ptx[{REDUCE_1D}](T.address_of(Y[0]), T.address_of(sf[0]), T.uint32(4096))
"""
    assert prove(body).rules == {"RACE_WRITE_WRITE"}


def test_atomics_do_not_conflict_with_each_other() -> None:
    body = "T.evaluate(T.cuda.atomic_add(T.address_of(Y[tx]), X[tx]))"
    assert prove(body, outputs=()).rules == set()


def test_bulk_loads_stay_inside_and_aligned() -> None:
    def body(index: str) -> str:
        return (
            f"{COPY}\nif tx == 0:\n    T.ptx[{LOAD_1D}](T.address_of(sf[0]), "
            f"T.address_of(X[{index}]), T.uint32(512), T.address_of(bar[512]))"
        )

    assert not prove(body("bx * 128")).findings
    assert prove(body("bx * 128 + 2")).rules == {"MISALIGNED", "OOB_ACCESS"}
    assert prove(body("bx * 128 + 4")).rules == {"OOB_ACCESS"}
    assert prove(body("bx * 128").replace("(512)", "(504)")).rules == {"MISALIGNED"}


def test_cp_async_reads_its_size() -> None:
    def body(index: str, size: int) -> str:
        return (
            f'{COPY}\nT.ptx["cp.async.ca.shared.global"](T.address_of(sf[tx * 4]), '
            f"T.address_of(X[{index}]), {size})"
        )

    assert not prove(body("tx * 4", 16)).findings
    assert prove(body("tx * 4 + 1", 16)).rules == {"MISALIGNED"}
    assert not prove(body("tx * 2", 8)).findings
    assert prove(body("bx * 128 + tx + 1", 4)).rules == {"OOB_ACCESS"}


def test_cp_async_of_a_chosen_size_reads_what_each_thread_chooses() -> None:
    def body(index: str, size: str) -> str:
        return (
            f'{COPY}\nT.ptx["cp.async.ca.shared.global"](T.address_of(sf[tx * 4]), '
            f"T.address_of(X[{index}]), 16, {size})"
        )

    def chosen(condition: str, yes: int, no: int) -> str:
        return f"T.if_then_else({condition}, T.uint32({yes}), T.uint32({no}))"

    inside = "bx * 128 + tx * 4"  # 128 threads: all but 32 of the last CTA's are beyond the end
    assert prove(body(inside, "T.uint32(16)")).rules == {"OOB_ACCESS"}
    assert not prove(body(inside, chosen("bx * 128 + tx * 4 < 1024", 16, 0))).findings
    assert prove(body(inside, chosen("bx * 128 + tx * 4 < 1028", 16, 0))).rules == {"OOB_ACCESS"}
    assert prove(body(inside, chosen("bx * 128 + tx * 4 < 1024", 16, 4))).rules == {"OOB_ACCESS"}
    least = f"T.min({inside}, 1020)"
    assert not prove(body(least, chosen("bx * 128 + tx * 4 < 1024", 16, 4))).findings
    nested = chosen("tx < 64", 16, 0).replace("T.uint32(0)", chosen("tx < 96", 8, 0))
    assert not prove(body(least, nested)).findings
    assert not prove(body("tx * 4", "T.uint32(6)")).findings
    assert prove(body("tx * 4 + 1", chosen("tx < 64", 16, 0))).rules == {"MISALIGNED"}


def test_a_ptx_load_and_store_count_by_their_vector() -> None:
    body = """
r = T.alloc_buffer((4,), "float32", scope="local")
T.ptx["ld.global.v4.f32"](r[0], r[1], r[2], r[3], T.address_of(X[bx * 128 + tx * 4]))
T.ptx["st.global.v4.f32"](T.address_of(Y[bx * 128 + tx * 4]), r[0], r[1], r[2], r[3])
"""
    assert not prove(body, threads=32).findings
    assert prove(body, threads=33, outputs=()).rules == {"OOB_ACCESS"}


def test_a_strided_view_is_not_left() -> None:
    base = np.zeros((8, 160), "float32")
    params = 'X: T.Buffer((1024,), "float32"), y: T.handle'
    before = 's = T.int32()\nY = T.match_buffer(y, (8, 128), "float32", strides=[s, 1])'
    arrays = {"X": np.zeros(1024, "float32"), "y": base[:, 16:144]}

    def rules(column: str) -> set[str]:
        body = f"Y[bx, {column}] = X[bx * 128 + tx]"
        return prove(body, params, before=before, arrays=arrays, outputs=("y",)).rules

    assert rules("tx") == set()
    assert rules("tx + 1") == {"OUT_OF_VIEW", "OUTPUT_COVERAGE"}


def test_clusters_number_their_ctas() -> None:
    body = "Y[bx // 2 * 256 + cr * 128 + tx] = X[bx * 128 + tx]"
    assert not prove(body, cluster="2").findings
    assert prove(body.replace("cr", "(1 - cr)"), cluster="2").rules == set()
    assert prove(body.replace("cr * 128", "cr * 64"), cluster="2").rules == {"OUTPUT_COVERAGE"}


def test_elected_lanes_and_thread_ranks_are_threads() -> None:
    body = """
if T.cuda.elect_sync():
    for i in T.serial(32):
        Y[bx * 128 + T.cuda.thread_rank() + i] = X[i]
"""
    assert not prove(body).findings


def test_lanes_of_a_scattered_vector_are_single_accesses() -> None:
    body = "for v in T.vectorized(4):\n    Y[bx * 128 + v * 32 + tx] = X[bx * 128 + v * 32 + tx]"
    assert not prove(body, threads=32).findings
    assert prove(body.replace("v * 32", "v * 33"), threads=32).rules >= {"OOB_ACCESS"}


@pytest.mark.parametrize(
    "instruction",
    [
        'T.ptx["discard.global.L2"](T.address_of(Y[PLACE]))',
        'T.ptx["tensormap_replace.tile.rank.global.b1024.b32"]'
        "(T.address_of(Y[PLACE]), T.uint32(1))",
    ],
)
def test_what_writes_128_bytes_is_a_store_of_them(instruction: str) -> None:
    body = f"if tx == 0:\n    {instruction}"
    assert not prove(body.replace("PLACE", "bx * 32"), outputs=()).findings
    assert "MISALIGNED" in prove(body.replace("PLACE", "bx * 8 + 4"), outputs=()).rules
    assert "OOB_ACCESS" in prove(body.replace("PLACE", "bx * 32 + 960"), outputs=()).rules
    assert "RACE_WRITE_WRITE" in prove(body.replace("PLACE", "bx // 2 * 32"), outputs=()).rules


def test_what_a_tensor_map_in_memory_reaches_is_not_known() -> None:
    load = "cp.async.bulk.tensor.1d.shared::cluster.global.mbarrier::complete_tx::bytes"
    body = f"""
if tx == 0:
    T.ptx["{load}"](T.address_of(sf[0]), T.address_of(X[PLACE]), 0, T.address_of(bar[512]))
"""
    proof = prove(body.replace("PLACE", "32"), outputs=())
    assert proof.rules == {"INCOMPLETE"}
    assert "with a tensor map that lies in memory" in proof.messages
    assert not prove(body.replace("PLACE", "32"), outputs=(), all_run=True).findings
    assert "MISALIGNED" in prove(body.replace("PLACE", "4"), outputs=()).rules
    never = body.replace("PLACE", "32").replace("tx == 0", "bx == 9999 and tx == 0")
    assert not prove(never, outputs=()).findings  # which is no matter where it does not happen


def test_an_operand_that_is_an_element_of_a_tensor_is_an_access() -> None:
    body = 'T.ptx["ex2.approx.ftz.f32"](Y[bx * 128 + tx], X[bx * 128 + tx])'
    proof = prove(body)
    assert not proof.findings
    assert proof.covered == ["Y"]
    assert prove(body.replace("tx])", "tx + 1])")).rules == {"OOB_ACCESS"}
    beyond = prove(body.replace("tx], X", "tx + 1], X"), outputs=())
    assert beyond.rules == {"OOB_ACCESS"}
    added = 'T.ptx["red.relaxed.gpu.global.add.f32"](T.address_of(Y[tx]), X[bx * 128 + tx + 1])'
    assert prove(added, outputs=()).rules == {"OOB_ACCESS"}
