"""Losses, gradients and reductions of columns in the simulator: values, reads, the barriers."""

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import s_tir, te

from tests.sim_kernels.mutate import change
from tvm_hopper import ir, schedule as hs
from tvm_hopper.errors import ScheduleError
from tvm_hopper.sim.protocol.check import explore_skeleton
from tvm_hopper.simulation import load, simulate, verify
from tvm_hopper.testing import backward, columns, losses

KINDS = {"bfloat16": ml_dtypes.bfloat16}


@pytest.fixture(scope="module", autouse=True)
def _few_rooms():
    """Let clusters use their rooms again within few turns."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("SLOTS", "MAX_SLOTS"):
            patch.setattr(f"tvm_hopper.transforms.reductions.cluster_exchange_slots.{name}", 4)
        yield


def scheduled(mod, helper=hs.row_reduction, config=None):
    sch = s_tir.Schedule(mod)
    helper(sch, config=config)
    return sch


def compare(sch, mod, inputs, wanted):
    """Simulate a schedule; compare with what `wanted` makes of the inputs as they are rounded."""
    params = list(mod["main"].params)
    kinds = [KINDS.get(ir.dtype_of(p), ir.dtype_of(p)) for p in params]
    given = [np.asarray(x).astype(k) for x, k in zip(inputs, kinds, strict=False)]
    names = [p.name for p in params]
    result = simulate(sch, dict(zip(names, given, strict=False)))
    assert not result.findings, result.findings
    for name, want in zip(names[len(given) :], wanted(given), strict=True):
        got = result.outputs[name].astype(np.float64)
        scale = np.abs(want) + np.abs(want).mean() / 10 + 1e-6
        assert np.all(np.abs(got - want) / scale < 1e-2), name
    return dict(zip(names, given, strict=False))


def gradient(name, rows, width, config=None):
    mod = backward.BACKWARD[name](rows, width)

    def wanted(given):
        return backward.reference(name, [x.astype(np.float64) for x in given])

    inputs = backward.inputs(name, rows, width)
    return compare(scheduled(mod, config=config), mod, inputs, wanted)


def loss(name, rows, width):
    rng = np.random.default_rng(1)
    x, labels = rng.standard_normal((rows, width)), rng.integers(0, width, rows)
    labels[::3] = losses.IGNORED
    inputs = [x, labels] if name == "cross_entropy" else [x]
    mod = losses.LOSSES[name](rows, width)
    return compare(scheduled(mod), mod, inputs, lambda given: losses.reference(name, *given))


def column(name, rows, width, config=None):
    mod = columns.COLUMNS[name](rows, width)
    x = np.random.default_rng(1).standard_normal((rows, width))
    sch = scheduled(mod, hs.column_reduction, config)
    return compare(sch, mod, [x], lambda given: columns.reference(name, *given))


# -- values, and how often each element is read


@pytest.mark.parametrize("name", backward.BACKWARD)
def test_gradients_read_each_element_once(name, read):
    inputs = gradient(name, 7, 520)
    for tensor, values in inputs.items():
        if values.ndim == 2:
            assert read[tensor] == values.nbytes, tensor


@pytest.mark.parametrize("name", losses.LOSSES)
def test_losses_read_each_element_once(name, read):
    inputs = loss(name, 5, 520)
    assert read["X"] == inputs["X"].nbytes  # by vectors: the logit of a label is a load of its own


@pytest.mark.parametrize("name", columns.COLUMNS)
def test_columns_read_each_element_once(name, read):
    inputs = column(name, 203, 264, hs.ColumnReductionConfig(threads=32, rows=2, blocks=3))
    assert read["X"] == inputs["X"].nbytes


@pytest.mark.parametrize("shape", [(3, 264), (70, 33), (2, 8)], ids=str)
def test_shapes_of_columns(shape):
    column("column_sum", *shape)


def test_columns_of_three_dimensions_by_rows_known_at_run_time():
    rng = np.random.default_rng(1)
    mod = columns.weighted_sum("b", 7, 136)
    x, dy, a = rng.standard_normal((3, 7, 136)), rng.standard_normal((3, 7, 136)), np.ones(136)

    def wanted(given):
        x, dy, a = (v.astype(np.float64) for v in given)
        return [(x * dy).sum((0, 1)) * a]

    config = hs.ColumnReductionConfig(threads=32, rows=1, blocks=2)
    compare(scheduled(mod, hs.column_reduction, config), mod, [x, dy, a], wanted)


@pytest.mark.parametrize("shape", [(2, 3, 4, 32), (2, 3, 2, 5, 24)], ids=str)
def test_columns_of_images(shape):
    """Rows of three dimensions and more: a trip takes some that begin anywhere in them."""
    x = te.placeholder(shape, "bfloat16", name="X")
    rows = [te.reduce_axis((0, extent), name=f"r{i}") for i, extent in enumerate(shape[:-1])]
    value = te.compute(
        shape[-1:], lambda j: te.sum(x[(*rows, j)].astype("float32"), axis=rows), name="Y"
    )
    mod = tvm.IRModule({"main": te.create_prim_func([x, value])})
    sch = scheduled(mod, hs.column_reduction)
    verify(sch, against=mod, runs=(("eager", 0),)).require_clean()


def test_no_rows_have_sums_of_nothing():
    config = hs.ColumnReductionConfig(threads=32, rows=1, blocks=2)
    sch = scheduled(columns.column_sum("n", 72), hs.column_reduction, config)
    result = simulate(sch, {"X": np.zeros((0, 72), ml_dtypes.bfloat16)})
    assert not result.findings
    assert not result.outputs["Y"].astype(np.float64).any()


def test_a_mean_of_all_elements():
    mod = columns.mean(37, 72)
    x = np.random.default_rng(1).standard_normal((37, 72)) + 1
    sch = scheduled(mod, hs.column_reduction)
    compare(sch, mod, [x], lambda given: [given[0].astype(np.float64).mean().reshape(1)])


@pytest.mark.parametrize(
    "config",
    [
        hs.RowReductionConfig(32, 2, persistent=3, ahead=1),
        hs.RowReductionConfig(64, 1, persistent=4),
        hs.RowReductionConfig(96, 1, 2, persistent=2, ahead=2),
    ],
    ids=str,
)
def test_ways_to_cut_up_a_gradient(config):
    gradient("rms_norm_backward", 11, 200, config)


@pytest.mark.parametrize("rows", [0, 5])
def test_a_gradient_of_rows_known_at_run_time(rows):
    mod = backward.rms_norm_backward("n", 72)
    x, dy, w, r = backward.inputs("rms_norm_backward", 5, 72)
    sch = scheduled(mod, config=hs.RowReductionConfig(32, 4, persistent=2, ahead=1))
    half = {"X": x[:rows], "DY": dy[:rows], "W": w}
    given = {k: v.astype(ml_dtypes.bfloat16) for k, v in half.items()}
    result = simulate(sch, {**given, "R": r[:rows].astype(np.float32)})
    assert not result.findings, result.findings
    _, dw = backward.reference("rms_norm_backward", [*map(np.float64, given.values()), r[:rows]])
    assert np.abs(result.outputs["DW"].astype(np.float64) - dw).max() < 0.05


def test_ties_go_to_the_first():
    x = np.zeros((3, 264), ml_dtypes.bfloat16)
    x[1, 70::31] = 2
    x[2, 200:] = 1
    result = simulate(scheduled(losses.top_one(3, 264)), {"X": x})
    place = next(v for v in result.outputs.values() if v.dtype == np.int32)
    assert place.tolist() == [0, 70, 200]


def test_what_is_no_number_stays_in_its_row_and_column():
    name = "rms_norm_backward"
    given = backward.inputs(name, 6, 72)
    given[1][3, 5] = np.inf
    params = list(backward.BACKWARD[name](6, 72)["main"].params)
    kinds = [KINDS.get(ir.dtype_of(p), ir.dtype_of(p)) for p in params]
    named = {p.name: x.astype(k) for p, x, k in zip(params, given, kinds, strict=False)}
    out = simulate(scheduled(backward.BACKWARD[name](6, 72)), named).outputs
    good = np.isfinite(out["DX"].astype(np.float64)).all(1)
    assert good.tolist() == [True] * 3 + [False] + [True] * 2
    assert np.isfinite(out["DW"].astype(np.float64)).sum() == 71


# -- verified, and what each barrier is for


AMPERE = {"kind": "cuda", "arch": "sm_80"}
SLOW = pytest.mark.slow


@pytest.mark.parametrize("target", [None, pytest.param(AMPERE, marks=SLOW)], ids=["90", "80"])
def test_a_gradient_is_clean(target):
    mod = backward.rms_norm_backward(9, 264)
    sch = scheduled(mod, config=hs.RowReductionConfig(64, 1, persistent=3, ahead=1))
    verify(sch, target=target, against=mod).require_clean()


@pytest.mark.parametrize("target", [None, AMPERE], ids=["90", "80"])
def test_columns_are_clean(target):
    mod = columns.column_sum(40, 72)
    verify(scheduled(mod, hs.column_reduction), target=target, against=mod).require_clean()


def test_a_loss_is_clean():
    mod = losses.top_one(3, 264)
    verify(scheduled(mod), against=mod).require_clean()


def named_inputs(name, rows, width):
    params = list(backward.BACKWARD[name](rows, width)["main"].params)
    kinds = [KINDS.get(ir.dtype_of(p), ir.dtype_of(p)) for p in params]
    given = backward.inputs(name, rows, width)
    return {p.name: x.astype(k) for p, x, k in zip(params, given, kinds, strict=False)}


def test_without_the_barrier_the_simulator_objects():
    mod = backward.rms_norm_backward(6, 520)
    program = load(scheduled(mod, config=hs.RowReductionConfig(64, 1, persistent=2, stage=False)))
    named = named_inputs("rms_norm_backward", 6, 520)
    assert not simulate(program, named).findings
    found = simulate(change(program, "tvm_storage_sync", 0), named).findings
    assert any(f.rule.startswith("RACE") for f in found), found


# -- rows that wait in shared memory, and those that a cluster shares

STAGED = hs.RowReductionConfig(64, persistent=2, ahead=1, stage=True)
SHARED = hs.RowReductionConfig(32, 1, persistent=2, cluster=2, ahead=1, stage=False)  # 5 turns
WIDE = hs.RowReductionConfig(
    64, vector=4, persistent=2, cluster=2, ahead=1, stage=True, reload=True
)
BOTH = hs.RowReductionConfig(32, persistent=2, cluster=2, ahead=2, stage=True, reload=True)


@pytest.mark.parametrize(
    "config",
    [BOTH, pytest.param(STAGED, marks=SLOW), pytest.param(SHARED, marks=SLOW)],
    ids=["both", "staged", "shared"],
)
def test_a_gradient_in_shared_memory_and_across_a_cluster_is_clean(config):
    mod = backward.layer_norm_backward(9, 512)
    verify(scheduled(mod, config=config), against=mod).require_clean()


def two_sums_of_a_row(rows, columns, of_rows=False):
    """Build a gradient with two reductions, one behind the other, and a sum of columns."""
    x, dy = (te.placeholder((rows, columns), "bfloat16", name=n) for n in ("X", "DY"))
    k, i = te.reduce_axis((0, columns), name="k"), te.reduce_axis((0, rows), name="i")
    s = te.compute((rows,), lambda r: te.sum(wide(x[r, k]), axis=k), name="S")
    c = te.compute(
        (rows,), lambda r: te.sum(wide(dy[r, k]) * wide(x[r, k]) * s[r], axis=k), name="C"
    )
    dx = te.compute(
        x.shape, lambda r, j: (wide(dy[r, j]) - c[r] * wide(x[r, j])).astype("bfloat16"), name="DX"
    )

    def summand(r, j):
        return wide(dy[r, j]) * (s[r] if of_rows else wide(x[r, j]))

    w = te.compute((columns,), lambda j: te.sum(summand(i, j), axis=i), name="SW")
    return tvm.IRModule({"main": te.create_prim_func([x, dy, dx, w])})


def wide(value):
    return value.astype("float32")


def test_few_turns_of_a_cluster_whose_rows_are_staged_are_certified():
    program = load(scheduled(backward.rms_norm_backward(5, 512), config=BOTH))
    report = explore_skeleton(next(iter(program.kernels.values())), program.host)
    assert report.verdict == "clean", report.findings


@pytest.mark.parametrize("config", [pytest.param(SHARED, marks=SLOW), WIDE], ids=["shared", "wide"])
def test_two_reductions_in_a_turn_of_a_cluster_are_clean(config):
    mod = two_sums_of_a_row(11, 512)
    verify(scheduled(mod, config=config), against=mod).require_clean()


def test_sums_of_columns_of_what_a_row_is_reduced_to_are_refused():
    with pytest.raises(ScheduleError, match="block SW: found sums of columns of S, which is comp"):
        scheduled(two_sums_of_a_row(11, 512, of_rows=True))


def test_on_a_chip_without_bulk_copies_rows_are_loaded_as_they_come():
    mod = backward.rms_norm_backward(5, 512)
    verify(scheduled(mod, config=STAGED), target=AMPERE, against=mod).require_clean()


@pytest.fixture(scope="module")
def programs():
    mod = backward.rms_norm_backward(9, 512)
    return {x: load(scheduled(mod, config=x)) for x in (STAGED, SHARED, WIDE)}


@pytest.mark.parametrize("config", [STAGED, SHARED, WIDE], ids=str)
def test_with_all_syncs_there_is_nothing_to_say(programs, config):
    assert not simulate(programs[config], named_inputs("rms_norm_backward", 9, 512)).findings


@pytest.mark.parametrize(
    ("config", "call", "number"),
    [
        *((STAGED, "mbarrier_init", n) for n in range(3)),
        (STAGED, "fence_mbarrier_init", 0),
        (STAGED, "tvm_storage_sync", 0),  # the barriers are there
        *((STAGED, "mbarrier_arrive_expect_tx", n) for n in range(2)),
        (STAGED, "fence_proxy", 0),
        (STAGED, "mbarrier_wait", 0),
        (STAGED, "tvm_storage_sync", 1),  # of the reduction, which each turn has
        *((SHARED, "barrier_cluster_arrive", n) for n in range(2)),  # all run; rooms were read
        *((SHARED, "barrier_cluster_wait", n) for n in range(2)),
        (SHARED, "mbarrier_init", 0),  # of four rooms, by a thread each
        (SHARED, "fence_mbarrier_init", 0),
        (SHARED, "mbarrier_arrive_expect_tx", 0),
        (SHARED, "mbarrier_wait", 0),  # values are there
        (WIDE, "tvm_storage_sync", 1),  # a copy overwrites what all warps have read
    ],
    ids=str,
)
def test_each_sync_is_needed(programs, config, call, number):
    named = named_inputs("rms_norm_backward", 9, 512)
    assert simulate(change(programs[config], call, number), named).findings


@pytest.mark.parametrize("name", ["cross_entropy", "argmax"])
def test_rows_that_are_streamed_are_read_once(name, read):
    """Exponentials are summed as the greatest is found."""
    rng = np.random.default_rng(1)
    x, labels = rng.standard_normal((3, 1100)), rng.integers(0, 1100, 3)
    mod = losses.LOSSES[name](3, 1100)
    sch = scheduled(mod, config=hs.RowReductionConfig(threads=32, chunks=2))
    inputs = [x, labels] if name == "cross_entropy" else [x]
    given = compare(sch, mod, inputs, lambda given: losses.reference(name, *given))["X"]
    labels_of_rows = 3 * given.itemsize if name == "cross_entropy" else 0
    assert read["X"] - labels_of_rows <= given.nbytes


def test_a_loss_that_is_streamed_is_clean():
    mod = losses.cross_entropy(2, 600)
    sch = scheduled(mod, config=hs.RowReductionConfig(threads=32, chunks=1))
    verify(sch, against=mod).require_clean()
