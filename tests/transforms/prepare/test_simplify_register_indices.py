"""SimplifyRegisterIndices: register arrays are read by the indices that they are filled by."""

import tvm
from tvm import s_tir, te, topi

from tests.transforms.scripts import check, parse, run
from tvm_hopper import schedule as hs
from tvm_hopper.cuda_build import records
from tvm_hopper.transforms.prepare.simplify_register_indices import (
    SimplifyRegisterIndices,
    plan_indices,
)

PLAIN = """
def func(X: T.Buffer((256, 784), "float16"), Y: T.Buffer((256, 784), "float16")):
    with T.sblock("root"):
        part = T.sblock_alloc_buffer((256, 98, 8), "float16", scope="local")
        for i, j in T.grid(256, 784):
            with T.sblock("load"):
                r, c = T.axis.remap("SS", [i, j])
                part[r, c // 8, c % 8] = X[r, c]
        for i, j in T.grid(256, 784):
            with T.sblock("store"):
                r, c = T.axis.remap("SS", [i, j])
                Y[r, c] = part[r, c // 8, c % 8]
"""
ROW = "((r % 32 * 16 + c // 49) // 512 + r // 32) % 8 * 32 + (c // 784 + r % 32) % 32"
RESHAPED = PLAIN.replace("= part[r,", f"= part[{ROW},")


def test_what_ranges_decide_is_left_out():
    got = run(parse(RESHAPED), SimplifyRegisterIndices())
    check(got, parse(PLAIN))
    assert not plan_indices(got)


def test_other_indices_stay():
    memory = parse(RESHAPED, ('scope="local"', 'scope="global"'))
    for func in (parse(PLAIN), memory):
        check(run(func, SimplifyRegisterIndices()), func)


def test_a_thread_has_its_own_elements():
    """TVM's group norm reads its rows through two reshapes: 512 KiB of local memory a thread."""
    x = te.placeholder((8, 512, 7, 7), "float16", "X")
    w, b = (te.placeholder((512,), "float16", name) for name in "WB")
    y = topi.nn.group_norm(x, w, b, 32, 1, [2, 3], 1e-5)
    sch = s_tir.Schedule(te.create_prim_func([x, w, b, y]))
    hs.row_reduction(sch)
    (record,) = records.lookup_all(tvm.compile(sch.mod, target="nvidia/nvidia-h200"))
    (facts,) = record.compile().kernels.values()
    assert (facts.stack_bytes, facts.spill_store_bytes) == (0, 0)
