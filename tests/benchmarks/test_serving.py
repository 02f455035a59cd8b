"""Problems of `benchmarks.serving`: their sizes, the kernels they take, and floors."""

from dataclasses import replace

from benchmarks.serving import COLUMNS, floors
from benchmarks.serving_problems import DECODE, MOST_BYTES, PREFILL, ServingProblem, problems

ONE = ServingProblem(DECODE, 16, 1024)


def test_problems():
    every = [x for group in problems().values() for x in group]
    assert len({x.name for x in every}) == len(set(every))
    assert max(x.num_bytes for x in every) <= MOST_BYTES
    assert {x.depth for x in every} == {64, 128, 256}
    assert {x.group for x in every} == {1, 2, 4, 8, 16}
    assert {x.page for x in every} >= {1, 16, 64}
    kernels = {x.kernel for x in every}
    assert len(kernels) < len(set(every)) / 3
    assert {x.kernel for x in kernels} == kernels


def test_lengths_and_work():
    drawn = replace(ONE, drawn=True)
    assert drawn.lengths() == drawn.lengths()
    assert 512 < sum(drawn.lengths()) / 16 < 1536
    assert ONE.num_bytes == 4 * 128 * (16 * 1024 * 8 + 16 * 32)
    assert ONE.flops == 4 * 32 * 128 * 16 * 1024
    chunk = ServingProblem(PREFILL, 1, 8, rows=3, depth=64, kv_heads=1, group=1)
    assert chunk.queries() == [3]
    assert chunk.flops == 4 * 64 * (6 + 7 + 8)


def test_floors():
    row = dict.fromkeys(COLUMNS, 0) | {"problem": "one", "of a copy's rate": 0.8, "ratio": 0.7}
    few = replace(ONE, sequences=4)
    said = floors([(ONE, row), (few, {**row, "ratio": 1.2})])
    assert said == [
        "of a copy's rate: 1 of 1 below 0.85; least (0.8, 'one')",
        "of PyTorch: 0 of 1 below 1.0; least (1.2, 'one')",
    ]
