"""UnrollRegisterLoops: loops that index arrays of a thread are unrolled by the CUDA compiler."""

from tests.transforms.scripts import check, parse, run
from tvm_hopper.transforms.legalize.unroll_register_loops import UnrollRegisterLoops, plan_loops

BEFORE = """
def func(X: T.Buffer((16, 32), "float32"), Y: T.Buffer((16, 32), "float32"), n: T.int32):
    for tx in T.thread_binding(32, thread="threadIdx.x"):
        with T.sblock("kernel"):
            part = T.sblock_alloc_buffer((16,), "float32", scope="local")
            for i in range(16): part[i] = X[i, tx]
            for i in range(n): Y[i, tx] = X[i, tx]
            for i in range(16): Y[i, tx] = part[15 - i]
            for i in range(16): Y[i, tx] = X[i, tx]
"""
NOTE = 'T.serial(16, annotations={"pragma_unroll": 16}):'
AFTER = BEFORE.replace("range(16): part", f"{NOTE} part").replace(
    "range(16): Y[i, tx] = part", f"{NOTE} Y[i, tx] = part"
)


def test_loops_over_registers_are_marked():
    got = run(parse(BEFORE), UnrollRegisterLoops())
    check(got, parse(AFTER))
    assert not plan_loops(got)
