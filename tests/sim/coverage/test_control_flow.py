"""Loops, early exits and registers on the way to an access; and what cannot be told."""

import numpy as np
import pytest
import tvm

from tests.sim.coverage.proving import XY, Proof, prove
from tvm_hopper.sim.coverage import check_every_cta, check_outputs
from tvm_hopper.sim.launch.tensors import Pointer

COPY = "Y[bx * 128 + tx] = X[bx * 128 + tx]"


def persistent(step: int, tiles: int = 8) -> str:
    return f"""
tile = T.alloc_buffer((1,), "int32", scope="local")
tile[0] = bx
while tile[0] < {tiles}:
    Y[tile[0] * 128 + tx] = X[tile[0] * 128 + tx]
    tile[0] = tile[0] + {step}
"""


def test_a_while_loop_over_tiles_is_counted() -> None:
    proof = prove(persistent(3), grid=3)
    assert not proof.findings
    assert proof.covered == ["Y"]
    assert prove(persistent(4), grid=3).rules == {"OUTPUT_COVERAGE"}
    assert prove(persistent(2), grid=3).rules == {"RACE_WRITE_WRITE"}
    assert prove(persistent(3, tiles=9), grid=3).rules == {"OOB_ACCESS"}


def test_a_while_loop_of_single_threads_is_counted() -> None:
    body = """
at = T.alloc_buffer((1,), "int32", scope="local")
at[0] = bx * 128 + tx
while at[0] < 1024:
    Y[at[0]] = X[at[0]]
    at[0] = at[0] + 384
"""
    assert not prove(body, grid=3).findings
    assert prove(body.replace("< 1024", "< 1025"), grid=3).rules == {"OOB_ACCESS"}
    assert prove(body.replace("384", "385"), grid=3).rules == {"OUTPUT_COVERAGE"}


def test_a_register_keeps_what_each_side_of_a_branch_gives_it() -> None:
    body = """
at = T.alloc_buffer((1,), "int32", scope="local")
at[0] = 0
if bx % 2 == 0:
    at[0] = bx * 128
else:
    at[0] = (bx + {step}) * 128
Y[at[0] + tx] = X[at[0] + tx]
"""
    assert not prove(body.format(step=0)).findings
    assert prove(body.format(step=1)).rules >= {"OOB_ACCESS"}


def test_threads_that_return_do_not_go_on() -> None:
    proof = prove(f"if bx == 2:\n    T.evaluate(T.thread_return())\n{COPY}")
    assert proof.rules == {"OUTPUT_COVERAGE"}
    assert "128 of 1024" in proof.messages
    past = "if bx >= 8:\n    T.evaluate(T.thread_return())\n"
    assert not prove(past + COPY, grid=9).findings
    assert prove(COPY, grid=9).rules == {"OOB_ACCESS"}


def test_tiles_in_groups_and_loops_that_depend_on_the_cta() -> None:
    body = """
for t in T.serial((8 - bx + 2) // 3):
    Y[(t * 3 + bx) % 4 * 256 + (t * 3 + bx) // 4 * 128 + tx] = X[tx]
"""
    assert not prove(body, grid=3).findings
    assert prove(body.replace("// 4 * 128", "// 4 * 64"), grid=3).rules >= {"RACE_WRITE_WRITE"}


def test_a_bound_that_depends_on_thread_and_cta() -> None:
    body = """
for i in T.serial(T.min(4, 1000 - (bx * 128 + tx) * 4)):
    Y[(bx * 128 + tx) * 4 + i] = X[(bx * 128 + tx) * 4 + i]
"""
    proof = prove(body, grid=2)
    assert proof.rules == {"OUTPUT_COVERAGE"}
    assert "24 of 1024 elements are never written by any CTA, the first of them (1000,)" in (
        proof.messages
    )


INDEXED = XY + ', I: T.Buffer((1024,), "int32")'
ARRAYS = {
    "X": np.zeros(1024, "float32"),
    "Y": np.zeros(1024, "float32"),
    "I": np.zeros(1024, "int32"),
}
LEFT_EARLY = """
for i in T.serial(8):
    if I[i] > 0:
        T.break_loop()
    Y[i * 128 + tx] = X[tx]
"""
FROM_SHARED = """
sf[tx] = X[tx]
T.tvm_storage_sync("shared")
Y[bx * 128 + T.Cast("int32", sf[tx])] = X[tx]
"""


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("Y[bx * 128 + tx] = X[I[bx * 128 + tx]]", "the value of I"),
        ("Y[I[bx * 128 + tx]] = X[tx]", "the value of I"),
        (f"if I[bx] > 0:\n    {COPY}", "not known whether every element is stored to"),
        (f"for i in T.serial(I[bx]):\n    {COPY}", "not known whether"),
        (LEFT_EARLY, "a loop that is left early"),
        ('T.call_extern("void", "f", T.address_of(Y[bx * 128]))', "call call_extern of a pointer"),
        (FROM_SHARED, "sf["),
    ],
)
def test_what_depends_on_data_is_incomplete_by_name(body: str, text: str) -> None:
    proof = prove(body, INDEXED, arrays=ARRAYS)
    assert proof.rules == {"INCOMPLETE"}, proof.messages
    assert text in proof.messages
    assert not prove(body, INDEXED, arrays=ARRAYS, all_run=True).findings


def test_a_condition_on_data_hides_no_overlap_and_proves_bounds() -> None:
    body = f"if I[bx] > 0:\n    {COPY}"
    proof = prove(body, INDEXED, arrays=ARRAYS, outputs=())
    assert not proof.findings
    wrong = prove(
        body.replace("bx * 128 + tx]", "bx * 64 + tx]"), INDEXED, arrays=ARRAYS, outputs=()
    )
    assert wrong.rules == {"INCOMPLETE"}
    assert "if it happens: the value of I" in wrong.messages
    beyond = prove(body.replace("tx]", "tx + 1]"), INDEXED, arrays=ARRAYS, outputs=())
    assert beyond.rules == {"INCOMPLETE"}


def test_what_a_fence_may_order_is_incomplete() -> None:
    proof = prove("T.cuda.thread_fence()\nY[bx * 64 + tx] = X[tx]", outputs=())
    assert proof.rules == {"INCOMPLETE"}
    assert "they may be ordered by flags" in proof.messages


def test_ctas_that_meet_at_the_grid_barrier_hear_of_each_other() -> None:
    """What they share is judged by the runs, in which every one of them is."""
    proof = prove("T.cuda.grid_sync()\nY[bx * 64 + tx] = X[tx]", outputs=())
    assert not proof.findings
    assert "Y shared by CTAs that communicate" in proof.text


FLAGS = (
    'X: T.Buffer((1024,), "float32"), Y: T.Buffer((1024,), "float32"), F: T.Buffer((4,), "uint32")'
)


def test_ctas_that_hear_of_each_other_may_share_and_others_may_not() -> None:
    """Groups of two take turns by a flag of their own; what each writes is the question."""
    body = """
r = T.alloc_buffer((1,), "uint32", scope="local")
if tx == 0:
    T.ptx["atom.acq_rel.gpu.global.add.u32"](r[0], T.address_of(F[bx // 2]), T.uint32(1))
T.tvm_storage_sync("shared")
Y[PLACE] = X[tx]
"""
    arrays = {name: np.zeros(1024, "float32") for name in "XY"} | {"F": np.zeros(4, "uint32")}

    def proof(place: str) -> Proof:
        return prove(body.replace("PLACE", place), FLAGS, arrays=arrays, outputs=())

    within = proof("bx // 2 * 256 + tx")
    assert not within.findings
    assert "Y shared by CTAs that communicate" in within.text
    across = proof("bx // 4 * 256 + tx")
    assert across.rules == {"RACE_WRITE_WRITE"}
    assert "CTA (0, 0, 0) stores to byte 0 of Y, element (0,), and CTA (2, 0, 0)" in across.messages


def test_ctas_of_a_cluster_may_share_and_others_may_not() -> None:
    assert not prove("Y[bx // 2 * 256 + tx] = X[tx]", cluster="2", outputs=()).findings
    across = prove("Y[bx // 4 * 256 + tx] = X[tx]", cluster="2", outputs=())
    assert across.rules == {"RACE_WRITE_WRITE"}


WIDE = """
@T.prim_func(s_tir=True, check_well_formed=False)
def main(Y_ptr: T.handle("int8", "global")):
    T.func_attr({"global_symbol": "main"})
    Y = T.decl_buffer((4294967296,), "int8", data=Y_ptr)
    bx = T.launch_thread("blockIdx.x", 4)
    Y[INDEX] = T.int8(0)
"""


def test_an_index_that_32_bits_cannot_hold() -> None:
    def findings(index: str, grid: int) -> list[str]:
        func = tvm.script.from_source(WIDE.strip().replace("INDEX", index))
        setup = {
            "params": {"Y_ptr": Pointer("Y")},
            "grid": (grid, 1, 1),
            "block": (1, 1, 1),
            "cluster": (1, 1, 1),
        }
        found = check_every_cta(func, setup, {"Y": np.empty(1 << 32, "int8")}).findings
        return [f"{one.rule} {one.message}" for one in found]

    assert not findings("bx * 1073741824", 2)
    (text,) = findings("bx * 1073741824", 3)
    assert "OOB_ACCESS main: CTA (2, 0, 0): index 2147483648 of Y in 32 bits" in text
    assert not findings('T.Cast("int64", bx) * T.int64(1073741824)', 4)
    (text,) = findings('T.Cast("int64", bx * 1073741824)', 3)  # it wraps before it is widened
    assert "writes bytes [-2147483648, -2147483647) of Y" in text


def test_a_grid_beyond_the_budget_is_incomplete() -> None:
    proof = prove("Y[tx] = X[tx]", grid=1 << 25, outputs=("Y",))
    assert proof.rules == {"INCOMPLETE"}
    assert "a grid of (33554432, 1, 1) CTAs" in proof.messages


def test_kinds_of_cta_beyond_the_budget_are_incomplete() -> None:
    body = "Y[((bx * 7919 + tx) ^ (bx * 31)) % 1024] = X[tx]"
    proof = prove(body, grid=100000, outputs=())
    assert proof.rules == {"INCOMPLETE"}
    assert "kinds of CTA by what their threads compute" in proof.messages


def test_what_takes_too_long_is_incomplete() -> None:
    proof = prove(COPY, budget_s=0.0)
    assert proof.rules == {"INCOMPLETE"}
    assert "not decided within 0 s" in proof.messages


def test_an_instruction_that_is_not_known_is_incomplete_by_name() -> None:
    body = f'{COPY}\nT.ptx["multimem_st.weak.global.u32"](T.address_of(Y[0]), T.uint32(1))'
    proof = prove(body)
    assert proof.rules == {"INCOMPLETE"}
    assert "instruction multimem_st" in proof.messages


def test_a_size_that_differs_among_threads_is_incomplete() -> None:
    store = '"cp.async.bulk.global.shared::cta.bulk_group"'
    place = "T.address_of(Y[bx * 128 + tx * 4]), T.address_of(sf[0])"
    body = f'T.ptx[{store}]({place}, T.Cast("uint32", tx * 16))'
    proof = prove(body, threads=32)
    assert proof.rules == {"INCOMPLETE"}
    assert "a size that differs among threads" in proof.messages


def test_pointers_to_no_argument_are_incomplete() -> None:
    func = tvm.script.from_source(WIDE.strip().replace("INDEX", "bx"))
    setup = {"params": {"Y_ptr": Pointer("Y")}, "grid": (4, 1, 1), "block": (1, 1, 1)}
    setup["cluster"] = (1, 1, 1)
    (found,) = check_every_cta(func, setup, {}).findings
    assert "memory of Y_ptr, which is no argument" in found.message
    setup["params"] = {"Y": 3}
    (found,) = check_every_cta(func, setup, {"Y_ptr": np.zeros(4, "int8")}).findings
    assert "parameter Y_ptr, which is no pointer to a tensor" in found.message


@pytest.mark.parametrize(
    ("body", "arrays", "text"),
    [
        # 2^23 single elements, in no order
        (
            "for i in range(64):\n        C[bx * 100 + i * i * 37 % 8192] = T.int8(0)",
            np.zeros(131072 * 100 + 8192, "int8"),
            "pieces of memory to compare",
        ),
        (
            "C[bx * 3 + bx % 7 * 5] = T.int8(0)",
            np.zeros((1 << 13, 1 << 13, 2), "int8")[:, :, 0],
            "rows of a view",
        ),
    ],
)
def test_memory_beyond_the_budgets_is_incomplete(body: str, arrays: np.ndarray, text: str) -> None:
    head = WIDE.strip().replace("Y[INDEX] = T.int8(0)", body).replace("Y", "C")
    func = tvm.script.from_source(head.replace('"blockIdx.x", 4', '"blockIdx.x", 131072'))
    setup = {"params": {"C_ptr": Pointer("C")}, "grid": (131072, 1, 1), "block": (1, 1, 1)}
    setup["cluster"] = (1, 1, 1)
    coverage = check_every_cta(func, setup, {"C": arrays})
    messages = " ".join(one.message for one in coverage.findings)
    assert {one.rule for one in coverage.findings} == {"INCOMPLETE"}, messages
    assert text in messages
    holes, covered = check_outputs([coverage], ["C"], {"C": arrays})
    assert [one.rule for one in holes] == ["INCOMPLETE"]
    assert not covered
