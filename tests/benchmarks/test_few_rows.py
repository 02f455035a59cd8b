"""Which problems `benchmarks.few_rows` times."""

from benchmarks.few_rows import WAYS, WEIGHTS, parse, problems
from tvm_hopper import schedule as hs


def test_weights_by_rows_and_types_and_what_a_seed_draws():
    plain = problems(parse(["--rows", "1", "2"]))
    assert len(plain) == 2 * 2 * len(WEIGHTS)
    drawn = problems(parse(["--drawn", "5150"]))
    assert 2 * len(WEIGHTS) < len(drawn) == len({x.name for x in drawn})
    assert {x.m for x in drawn} == {1}
    assert {x.layout for x in drawn} == {"NT"}


def test_every_way_is_a_configuration():
    assert [hs.MatmulConfig(**x).form for x in WAYS.values()] == [None, "tiles", "dots", "direct"]
