"""Which size classes a product with symbolic rows gets when nobody names them."""

import time
from dataclasses import replace

import pytest

from tests.schedule.devices import gpu_of_sms
from tvm_hopper import schedule as hs
from tvm_hopper.errors import ScheduleError
from tvm_hopper.schedule.products import class_choice
from tvm_hopper.schedule.products.class_choice import LADDER, POINTS, cut, estimate_all
from tvm_hopper.schedule.products.model import as_product, chip_of_target, rank_both
from tvm_hopper.schedule.products.parts import for_any_rows

ALONE = hs.MatmulConfig(cluster=(1, 1))  # as blocks of every class are
SHAPES = [(4096, 4096), (6144, 4096), (28672, 4096), (512, 7168), (128, 64)]


@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_classes_are_few_and_lose_little_where_batches_are_padded_to(n, k):
    bounds = hs.choose_classes(n, k)
    assert list(bounds) == sorted(bounds)
    assert 1 <= len(bounds) <= class_choice.MOST_CLASSES
    assert bounds[0] == 1  # dot products
    assert set(bounds[1:]) <= set(LADDER)
    assert bounds[-1] == LADDER[-1]
    for m in (1, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192):
        bound = next(x for x in bounds if m <= x)
        config = hs.choose_config(bound, n, k, given=for_any_rows(ALONE, bound))
        own = hs.choose_config(m, n, k, given=ALONE)
        wanted = as_product(m, n, k, "float16", ("k", "k"), "float16")
        (times,) = estimate_all([wanted], [config, own], any_rows=True)
        # 512 x 7168 has more places where the choice changes than there are classes.
        assert times[0] <= (1.15 if (n, k) != (512, 7168) else 1.26) * times[1], m


@pytest.mark.parametrize("m", [1, 16, 100, 1000])
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_the_estimate_of_a_configuration_is_that_by_which_it_was_chosen(m, n, k):
    wanted = as_product(m, n, k, "float16", ("k", "mn"), "float32")
    given = hs.MatmulConfig()
    ways = [given, replace(given, form="transposed"), replace(given, consumers=2)]
    for one in ways:
        config = hs.choose_config(m, n, k, given=one, majors=("k", "mn"), out_dtype="float32")
        (best,) = rank_both(wanted, one, chip_of_target(), 1)
        assert estimate_all([wanted], [config])[0] == pytest.approx([best.microseconds])


def test_choosing_is_quick():
    hs.choose_classes(4096, 4096)  # legal tiles are listed once in a process
    start = time.process_time()
    hs.choose_classes(4096, 11008)
    assert time.process_time() - start < 0.3


def test_kernels_of_symbolic_rows_for_many_are_not_transposed():
    given = hs.MatmulConfig()
    assert [for_any_rows(given, rows).form for rows in (512, 513)] == [None, "untransposed"]
    assert for_any_rows(hs.MatmulConfig(form="transposed"), 1024).transposed
    config = hs.choose_config(640, 4096, 4096, given=for_any_rows(given, 640))
    assert not config.transposed


def test_few_rows_are_multiplied_transposed_and_many_are_not():
    bounds = hs.choose_classes(4096, 4096)
    ways = [bool(hs.choose_config(bound, 4096, 4096).transposed) for bound in bounds]
    assert ways[0]
    assert not any(way for way, bound in zip(ways, bounds, strict=True) if bound >= 1024)


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("change", [{"majors": ("mn", "mn")}, {"out_dtype": "float32"}])
def test_layout_and_output_count(change):
    shapes = [(n, k) for n in (1024, 4096, 6144) for k in (512, 4096)]
    assert [hs.choose_classes(*x, **change) for x in shapes] != [
        hs.choose_classes(*x) for x in shapes
    ]


def test_what_is_given_counts():
    assert hs.choose_classes(4096, 4096, given=hs.MatmulConfig((128, 128, 64))) == (LADDER[-1],)


@pytest.mark.parametrize("num_sms", [132, 78])
def test_the_device_counts(num_sms):
    with gpu_of_sms(num_sms):
        bounds = hs.choose_classes(4096, 4096)
    assert (bounds == hs.choose_classes(4096, 4096)) == (num_sms == 132)


def losses(**best):
    """Return what kernels lose: nothing up to the rows they are named for, from the last rung on.

    `to_64=0` is the kernel of that rung, which is right from the rung before; others lose all.
    """
    ends = [int(name.removeprefix("to_")) for name in best]
    starts = dict(zip(ends, [0, *ends], strict=False))
    return [
        [0.0 if rung in starts and starts[rung] < m <= _end(rung) else 1.0 for m in POINTS]
        for rung in LADDER
    ]


def _end(rung):
    return rung if rung < LADDER[-1] else POINTS[-1]


def test_a_kernel_that_is_always_best_is_one_class():
    assert cut(losses(to_8192=0)) == (8192,)


def test_each_kernel_gets_the_rows_that_it_is_best_at():
    assert cut(losses(to_64=0, to_640=0, to_8192=0)) == (64, 640, 8192)


def test_a_class_that_gains_next_to_nothing_is_not_built():
    rows = losses(to_64=0, to_8192=0)
    small = [[loss / 1000 for loss in row] for row in rows]
    assert cut(rows) == (64, 8192)
    assert cut(small) == (8192,)


def test_there_are_never_more_than_eight():
    every = {f"to_{rung}": 0 for rung in LADDER}
    found = cut(losses(**every))
    assert len(found) == class_choice.TILE_CLASSES
    assert list(found) == sorted(found)


def test_a_large_loss_counts_more_than_several_small_ones():
    weigh = class_choice._weigh
    assert weigh(100, 0.2) > 4 * weigh(100, 0.05) > 0
    assert weigh(128, 0.05) == pytest.approx(class_choice.ROUND * weigh(100, 0.05))
    assert weigh(100, 0.0) == 0


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ((0, 64), "found n=0; need 1 or more"),
        ((64, "64"), "found k='64'; need an int"),
        ((64, 64, "int16"), "found dtype='int16'; need one of"),
        ((64, 64, "float16", None, "kk"), "found majors='kk'; need two of"),
        ((64, 64, "float16", None, ("k", "k"), "int16"), "found out_dtype='int16'; need one of"),
    ],
)
def test_refusals(arguments, match):
    with pytest.raises(ScheduleError, match=match):
        hs.choose_classes(*arguments)
