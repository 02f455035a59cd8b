"""PairFragmentStores: a fragment of mma.sync is stored two elements at a time."""

import pytest

from tests.transforms.scripts import check, parse, run
from tvm_hopper import pipeline
from tvm_hopper.transforms import PairFragmentStores

HEAD = """
def func(C: T.Buffer((64, 128), "float32")):
    for bx in T.thread_binding(2, thread="blockIdx.x"):
        for tx in T.thread_binding(64, thread="threadIdx.x"):
            with T.sblock("kernel", reads=[], writes=[C[0:64, 0:128]]):
                own = T.sblock_alloc_buffer((4, 2, 32, 8), "float32", scope="warp")
                for i, j in T.grid(4, 2):
"""
START = "bx * 64 + i * 2048 + tx // 32 * 32 + j * 16"
BEFORE = f"""{HEAD}
                    T.cuda.mma_store_legacy(16, 16,
                        T.tvm_access_ptr(T.type_annotation("float32"), C.data, {START}, 2048, 2),
                        own.data, i * 512 + j * 256, 128, dtype="float32")
"""
PAIR = """
                        pair[0] = own[i, j, tx % 32, {n}]
                        pair[1] = own[i, j, tx % 32, {n} + 1]
                        for e in T.vectorized(2):
                            C[
                                i * 16 + tx % 32 // 4 + {row},
                                bx * 64 + tx // 32 * 32 + j * 16 + tx % 4 * 2 + {column} + e,
                            ] = pair[e]
"""
AFTER = (
    HEAD
    + """
                    with T.sblock("pairs", reads=[own[0:4, 0:2, 0:32, 0:8]],
                        writes=[C[0:64, 0:128]]):
                        pair = T.sblock_alloc_buffer((2,), "float32", scope="local")
"""
    + "".join(PAIR.format(n=2 * n, row=n % 2 * 8, column=n // 2 * 8) for n in range(4))
)


def test_pairs_of_a_lane():
    check(run(parse(BEFORE), PairFragmentStores()), parse(AFTER))


LEFT = {
    "pairs at odd elements": [("j * 16,", "j * 16 + 1,")],
    "rows that start at odd elements": [("256, 128, dtype", "256, 127, dtype")],
    "rows of an odd length": [("(64, 128)", "(64, 127)"), ("0:128", "0:127")],
    "another type": [('(4, 2, 32, 8), "float32"', '(4, 2, 32, 8), "float16"')],
    "another shape": [("16, 16,", "16, 8,")],
    "a tile of shared memory": [
        ("C.data", "tile.data"),
        ("own = ", f'tile = T.sblock_alloc_buffer((64, 128), scope="shared")\n{" " * 16}own = '),
    ],
}


@pytest.mark.parametrize("name", LEFT)
def test_what_stays_a_call(name):
    func = parse(BEFORE, *LEFT[name])
    check(run(func, PairFragmentStores()), func)


def test_it_stands_behind_who_asks_for_pointers():
    names = pipeline.passes.names(pipeline.passes.hook_passes())
    order = ["InsertSyncs", "LowerChannelsToMbarriers", "PairFragmentStores", "WidenIndices"]
    at = [names.index(f"tvm_hopper.{name}") for name in order]
    assert at == sorted(at)
