"""Problems: what is listed is legal, estimates are those of the model, features tell them apart."""

import random

import numpy as np
import pytest
from tvm.target import Target

from tvm_hopper import schedule as hs
from tvm_hopper.errors import HopperError
from tvm_hopper.facts.arch import SM_90A
from tvm_hopper.meta_schedule.annotations import configurations_of
from tvm_hopper.meta_schedule.attention_problems import as_attention
from tvm_hopper.meta_schedule.configurations import as_text, from_text
from tvm_hopper.meta_schedule.matmul_problems import (
    CLUSTER_FEATURE_SCALE,
    FAR,
    as_matmul,
    find_product,
)
from tvm_hopper.meta_schedule.memory_problems import as_memory_bound
from tvm_hopper.meta_schedule.problems import LAUNCH_US, bytes_of, key_of
from tvm_hopper.schedule.products.config import find_violations
from tvm_hopper.testing import any_axis, backward, columns, memory_bound, windows, workloads
from tvm_hopper.testing.attention import softmax_attention
from tvm_hopper.testing.gates import gated_product

H200 = Target("nvidia/nvidia-h200")
PRODUCT = workloads.matmul(256, 384, 512, out_dtype="float16")["main"]


@pytest.fixture(scope="module")
def product():
    return as_matmul(PRODUCT, H200)


@pytest.fixture(scope="module")
def configs(product):
    return product.configurations()


def test_a_product_is_described(product):
    assert product.form == "matmul float16 float16 k k"
    assert product.extents == (256, 384, 512)
    assert product.multiply_adds == 256 * 384 * 512
    assert product.moved_bytes == 2 * (256 * 512 + 384 * 512 + 256 * 384)
    assert product.bound_us == LAUNCH_US


def test_a_large_product_is_bound_by_its_tensor_cores():
    large = as_matmul(workloads.matmul(8192, 8192, 8192)["main"], H200)
    rate = 2048 * 132 * 1755
    assert large.bound_us == pytest.approx(8192**3 / rate)


def test_a_copy_of_much_is_bound_by_memory():
    problem = as_memory_bound(memory_bound.copy(1 << 15, 1 << 14)["main"], H200)
    beyond = problem.moved_bytes - (50 << 20)
    assert problem.bound_us == pytest.approx(beyond / 4.8e6)
    assert bytes_of(problem.mod["main"]) == 2 * 2 * (1 << 29)


def test_keys_depend_on_the_part(product):
    other = Target("nvidia/nvidia-h20")
    assert key_of(product.mod, H200) != key_of(product.mod, other)
    assert key_of(product.mod, other).endswith("-sm_90a-78-h20")


def test_listed_products_are_legal(configs):
    assert len(configs) == len(set(configs)) > 1000
    for config in configs:
        assert not find_violations(config.tile, config.stages, config, "float16", SM_90A)
    assert {c.parts for c in configs} == {1, 2}  # 512 deep: no part of four steps more
    assert {c.store for c in configs} == {None, "tma"}
    assert {c.persistent for c in configs if c.tile[:2] == (64, 64)} == {0}  # one wave


def test_what_the_model_calls_twice_as_slow_is_left_out(product, configs):
    times = product.estimates(configs)
    assert 1.5 < times.max() / times.min() < FAR


def test_pairs_load_for_one_another_where_the_package_may_choose_them():
    off = as_matmul(workloads.matmul(1024, 2088, 168, "NN", "bfloat16", "bfloat16")["main"], H200)
    configs = off.configurations()
    pairs = [c for c in configs if c.cluster]
    assert {c.cluster for c in pairs} == {(1, 2), (2, 1), (1, 4), (4, 1), (2, 4), (4, 2)}
    assert {c.store for c in pairs} == {None, "tma"}
    assert all(c.parts == 1 for c in pairs)
    columns = off.features(configs)[:, -3:-1]
    ours = columns[[c.cluster == (2, 1) for c in configs]]
    assert set(map(tuple, ours)) == {(CLUSTER_FEATURE_SCALE, 0.0)}
    large = [c for c in pairs if c.cluster == (4, 1)]
    assert len({(c.tile, c.consumers) for c in large}) == len(large)  # one of each
    off.schedule(random.Random(2).choice(pairs))
    even = as_matmul(workloads.matmul(1024, 2048, 64, out_dtype="float16")["main"], H200)
    assert not {c.cluster for c in even.configurations()} & {(1, 2), (2, 1)}  # rows at sectors


def test_shallow_sums_of_several_waves_take_turns():
    shallow = as_matmul(workloads.matmul(3000, 4096, 128)["main"], H200)
    turns = [c for c in shallow.configurations() if c.takes_turns]
    assert {c.consumers for c in turns} == {2, 3}
    assert all(c.persistent == -1 and c.store is None for c in turns)
    assert (shallow.features(turns)[:, -1] > 0).all()
    shallow.schedule(random.Random(3).choice(turns))
    deep = as_matmul(workloads.matmul(3000, 4096, 4096)["main"], H200)
    assert not any(c.takes_turns for c in deep.configurations())


def test_one_row_may_leave_through_shared_memory_and_one_column_may_not():
    row = as_matmul(workloads.matmul(1, 4096, 512, "NN")["main"], H200)
    stores = [c for c in row.configurations() if c.store]
    assert stores
    row.schedule(stores[0])
    column = as_matmul(workloads.matmul(4096, 1, 512)["main"], H200)
    assert not any(c.store for c in column.configurations())


def test_few_of_them_are_refused(product, configs):
    some = random.Random(1).sample(configs, 10)
    refused = 0
    for config in some:
        try:
            product.schedule(config)
        except HopperError:
            refused += 1
    assert refused <= 4


def test_the_choice_has_the_least_estimate(product, configs):
    times = product.estimates(configs)
    choice = product.resolved(product.built_in())
    assert choice.tile is not None
    assert product.estimates([choice])[0] <= 1.05 * times.min()


def test_several_waves_have_orders():
    large = as_matmul(workloads.matmul(4096, 4096, 4096)["main"], H200)
    same = [c for c in large.configurations() if c.tile == (128, 256, 64) and c.stages == 4]
    assert {(c.raster_group, c.persistent) for c in same} >= {(1, -1), (16, -1), (16, 0)}


def test_few_rows_are_tried_both_ways():
    problem = as_matmul(workloads.matmul(16, 512, 512)["main"], H200)
    assert {bool(c.transposed) for c in problem.configurations()} == {False, True}


def test_one_row_is_tried_by_dot_products():
    problem = as_matmul(workloads.matmul(1, 4096, 4096)["main"], H200)
    configs = problem.configurations()
    dots = [x for x in configs if x.dots]
    choice = problem.resolved(problem.built_in())
    assert len(dots) > 5
    asked = problem.resolved(hs.MatmulConfig(form="dots"))
    assert choice.form == asked.form == hs.DotShape(128, 1, 1, 4)
    assert problem.resolved(dots[0]) == dots[0]
    assert np.isfinite(problem.estimates(dots)).all()
    tiles = [x for x in configs if x.tile][:3]
    rows = problem.features([*tiles, *dots])
    assert len(np.unique(rows, axis=0)) == len(rows)
    assert problem.schedule(dots[0])


@pytest.mark.parametrize("layout", ["NT", "NN"])
def test_few_rows_are_tried_by_warps_that_load_what_they_multiply(layout):
    problem = as_matmul(workloads.matmul(8, 4096, 4096, layout)["main"], H200)
    direct = [x for x in problem.configurations() if x.direct]
    assert len(direct) > 5
    assert problem.resolved(direct[0]) == direct[0]
    assert np.isfinite(problem.estimates(direct)).all()
    assert len(np.unique(problem.features(direct), axis=0)) == len(direct)
    for config in direct[::7]:
        assert problem.schedule(config)


def test_features_are_of_one_scale_and_tell_configurations_apart(product, configs):
    some = random.Random(0).sample(configs, 200)
    features = product.features(some)
    assert features.shape[0] == 200
    assert np.isfinite(features).all()
    assert np.abs(features).max() < 12
    assert len(np.unique(features, axis=0)) > 190


def test_half_precision_sums_are_accumulated_in_float32():
    func = workloads.matmul(64, 64, 64, acc_dtype="float16", cast="none", out_dtype="float16")[
        "main"
    ]
    problem = as_matmul(func, H200)
    assert problem.built_in().accumulate == "float32"
    assert all(c.accumulate == "float32" for c in problem.configurations())


def test_what_is_no_product_is_none():
    assert as_matmul(memory_bound.softmax(64, 64)["main"], H200) is None
    assert as_matmul(workloads.matmul("m", 64, 64)["main"], H200) is None
    assert find_product(memory_bound.copy(64, 64)["main"], H200) is None
    assert as_memory_bound(PRODUCT, H200) is None


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(
    ("mod", "kind"),
    [
        (memory_bound.rms_norm(512, 1024), hs.RowReductionConfig),
        (memory_bound.silu_mul(512, 1000), hs.PointwiseConfig),
        (backward.rms_norm_backward(2048, 1024), hs.RowReductionConfig),
        (memory_bound.softmax(16, 300000), hs.RowReductionConfig),
        (columns.column_sum(4096, 1024), hs.ColumnReductionConfig),
        (columns.column_sum(40, 1024), hs.ColumnReductionConfig),
        (memory_bound.softmax(4096, 64), hs.RowReductionConfig),
        (any_axis.softmax((4, 64, 256), (1,)), hs.ColumnReductionConfig),
        (windows.pool((2, 16, 16, 32)), hs.PointwiseConfig),
    ],
    ids=(
        *("rows", "elements", "gradient", "rows in parts", "columns", "few rows", "short"),
        *("strips", "windows"),
    ),
)
def test_memory_bound_kernels_begin_near_the_choice(mod, kind):
    problem = as_memory_bound(mod["main"], H200)
    configs = problem.configurations()
    assert {type(c) for c in configs} == {kind}
    assert problem.built_in() == kind()
    assert problem.resolved(kind()) == problem.choice
    assert problem.resolved(kind(threads=64)).threads == 64
    assert from_text(as_text(problem.choice)) == problem.choice
    times = problem.estimates(configs)
    assert times.min() >= problem.estimates([problem.choice])[0] * 0.999
    assert problem.features(configs).shape[0] == len(configs)
    order = np.argsort(times, kind="stable")
    served = 0
    for place in order[:6]:
        try:
            problem.schedule(configs[place])
            served += 1
        except HopperError:
            continue
    assert served >= 3


def test_rows_of_a_thread_and_blocks_that_begin_together_are_tried():
    short = as_memory_bound(memory_bound.softmax(4096, 64)["main"], H200)
    found = [x for x in short.configurations() if x.unroll == 4]
    near = min(found, key=lambda x: short.estimates([x])[0])
    assert "threadIdx.y" in str(short.schedule(near).mod)
    large = as_memory_bound(memory_bound.gelu_mul(8192, 8192)["main"], H200)
    assert {x.together for x in large.configurations()} >= {1, 2, 4}


def test_a_gradient_of_few_rows_has_nothing_to_choose_from():
    problem = as_memory_bound(backward.rms_norm_backward(64, 256)["main"], H200)
    assert problem.configurations() == []
    assert problem.estimates([]).shape == (0,)


@pytest.mark.parametrize("m", [1, 100])
def test_gates_have_a_space_of_their_own(m):
    """What transposes, splits a sum or computes dot products holds one element of a row."""
    problem = as_matmul(gated_product(m, 256, 128)["main"], H200)
    assert problem.gathered == 16  # columns
    found = problem.configurations()
    assert len(found) > 20
    assert not any(x.transposed or x.parts > 1 or x.dots or x.store for x in found)
    for config in (
        problem.built_in(),
        problem.resolved(problem.built_in()),
        *found[:: len(found) // 3],
    ):
        problem.schedule(config)


def test_an_attention_is_described_and_scheduled():
    """The choice of the package is in the space, and estimated as the fastest."""
    func = softmax_attention((2, 8, 2), (512, 512), (64, 64), causal=True)["main"]
    problem = as_attention(func, H200)
    assert (problem.extents, problem.multiply_adds) == ((16, 512, 512), 16 * 512 * 512 * 64)
    configs = problem.configurations()
    assert all(from_text(as_text(x)) == x for x in configs)
    chosen = problem.resolved(problem.built_in())
    best = problem.resolved(configs[int(np.argmin(problem.estimates(configs)))])
    assert (best.tile, best.stages) == (chosen.tile, chosen.stages)
    rows = problem.features(configs)
    assert len({tuple(x) for x in rows}) > len(configs) / 2
    one = random.Random(0).choice(configs)
    assert configurations_of(problem.schedule(one)) == [one]


def test_other_functions_are_no_attention():
    assert as_attention(PRODUCT, H200) is None
    assert as_attention(memory_bound.softmax(64, 512)["main"], H200) is None
