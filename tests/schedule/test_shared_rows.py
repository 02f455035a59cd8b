"""Long rows that share more than they have: when a persistent kernel keeps it in registers."""

import pytest
import tvm
from tvm import s_tir, te
from tvm.target import Target

from tests.schedule.devices import gpu_of_sms
from tvm_hopper import ir, schedule as hs
from tvm_hopper.requests.keys import SKEW_TURNS
from tvm_hopper.schedule.memory_bound.program import MemoryProgram
from tvm_hopper.schedule.row_reduction import apply
from tvm_hopper.schedule.row_reduction.apply import chosen_rows
from tvm_hopper.schedule.row_reduction.config import RowReductionConfig
from tvm_hopper.schedule.row_reduction.count_work import are_moments, count_work
from tvm_hopper.schedule.row_reduction.number import inline_rows
from tvm_hopper.schedule.row_reduction.shared_model import hold_rows
from tvm_hopper.testing import backward, memory_bound


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(
    ("program", "shape"),
    [
        (memory_bound.layer_norm(8192, 65536), (30, 4, 512, 2, False)),
        (memory_bound.layer_norm(4096, 81920), (30, 4, 512, 2, False)),
        (memory_bound.layer_norm(4096, 98304), (15, 8, 512, 3, True)),  # short turns
        (memory_bound.layer_norm(4096, 131072), (15, 8, 512, 3, False)),
        (memory_bound.layer_norm(2048, 163840), (15, 8, 512, 2, False)),  # less room
        (memory_bound.layer_norm(2048, 262144, "float16"), (7, 16, 512, 2, True)),
        (memory_bound.layer_norm(4096, 65536, "float32"), (15, 8, 512, 3, False)),
        (memory_bound.layer_norm(2048, 114688), (15, 8, 256, 3, True)),  # no whole vectors of 512
        (memory_bound.layer_norm(8192, 32768), None),  # short enough for rows beside one another
        (memory_bound.layer_norm(2048, 1 << 19), None),  # too long for the room that there is
        (memory_bound.rms_norm(4096, 131072), None),  # in shared memory, two beside what they share
        (memory_bound.rms_norm(2048, 147456), None),
        (memory_bound.rms_norm(2048, 163840), (15, 8, 320, 1, True)),  # eight vectors of a thread
        (memory_bound.rms_norm(2048, 229376), (15, 8, 448, 1, False)),  # room for three of a row
        (memory_bound.rms_norm(2048, 262144), (7, 16, 256, 1, True)),
        (memory_bound.rms_norm(2048, 131072, "float32"), (7, 16, 256, 1, True)),
        (memory_bound.rms_norm(1024, 1 << 19), (7, 16, 512, 1, False)),
        (memory_bound.softmax(2048, 262144), None),  # shares nothing
        (memory_bound.rms_norm(64, 262144), None),
        (memory_bound.layer_norm(64, 131072), None),  # few turns
        (memory_bound.layer_norm("n", 131072), None),
        (memory_bound.layer_norm(4096, 131072 + 8), None),  # no equal parts
    ],
)
def test_long_rows_that_share_more_than_they_have_are_persistent(program, shape):
    chosen = chosen_rows(s_tir.Schedule(program))
    found = (chosen.persistent, chosen.cluster, chosen.threads, chosen.ahead, chosen.reload)
    assert (found if chosen.persistent else None) == shape
    if shape is not None:
        with tvm.target.Target("nvidia/nvidia-a100"):
            assert chosen_rows(s_tir.Schedule(program)).persistent is None


@pytest.mark.parametrize(
    ("program", "moments"),
    [
        (memory_bound.layer_norm(64, 32768, "float32"), True),
        (memory_bound.layer_norm(64, 4096, "float16"), True),
        (memory_bound.rms_norm(64, 32768, "float32"), False),
        (memory_bound.softmax(64, 32768, "float32"), False),
    ],
)
def test_a_mean_and_the_squares_around_it_are_known(program, moments):
    parsed = MemoryProgram.parse(s_tir.Schedule(program), "row_reduction")
    assert are_moments(inline_rows(parsed)) == moments


def test_long_rows_in_registers_of_a_small_cluster():
    """Of float32 one exchange for mean and squares leaves them as fast as RMSNorm's."""
    chosen = chosen_rows(s_tir.Schedule(memory_bound.layer_norm(8192, 32768, "float32")))
    assert (chosen.threads, chosen.cluster, chosen.stage) == (256, 4, False)
    ragged = chosen_rows(s_tir.Schedule(memory_bound.layer_norm(8192, 32764, "float32")))
    assert ragged.stage  # unequal parts are two exchanges


@pytest.mark.parametrize(
    ("program", "shape"),
    [
        (memory_bound.add_rms_norm(2730, 98304), (8, 384, 3)),
        (memory_bound.add_rms_norm(1638, 163840), (8, 640, 2)),
        (memory_bound.add_rms_norm(1365, 196608), (16, 384, 3)),
        (memory_bound.add_rms_norm(1024, 262144), (16, 512, 2)),
        (memory_bound.add_rms_norm("n", 262144, "float16"), (16, 512, 2)),
        (memory_bound.add_rms_norm(4096, 65536), (4, 512, 2)),
        (memory_bound.add_rms_norm(8192, 32768), None),  # short enough
        (memory_bound.add_rms_norm(64, 262144), None),  # few rows
        (memory_bound.rms_norm(2048, 262144), None),  # bulk copies bring its rows
        (memory_bound.add_rms_norm(1024, 262144 + 64), None),  # no whole warps of four or five
    ],
)
def test_long_rows_of_several_tensors_wait_in_registers_of_clusters(program, shape):
    chosen = held_rows(program)
    assert (chosen and (chosen.cluster, chosen.threads, chosen.blocks)) == shape
    with Target("nvidia/nvidia-a100"):
        assert held_rows(program) is None
    if shape is not None:
        found = chosen_rows(s_tir.Schedule(program))
        assert (found.cluster, found.threads, found.blocks) == shape


def held_rows(program):
    given = RowReductionConfig()
    parsed = MemoryProgram.parse(s_tir.Schedule(program), "row_reduction")
    return hold_rows(count_work(parsed, given)[1], given)


def test_fewer_sms_hold_no_clusters_of_sixteen():
    with gpu_of_sms(78):
        assert held_rows(memory_bound.add_rms_norm(1024, 262144)) is None
        assert held_rows(memory_bound.add_rms_norm(1024, 163840)) is not None


def shared_vectors(count, dtype="bfloat16"):
    """Build a LayerNorm of 131072 columns with so many vectors of float32 behind it."""
    x = te.placeholder((4096, 131072), dtype, "X")
    given = [te.placeholder((131072,), "float32", f"W{n}") for n in range(count)]

    def added(name, value):
        k = te.reduce_axis((0, 131072), "k")
        return te.compute((4096,), lambda i: te.sum(value(i, k), k), name)

    total = added("S", lambda i, k: x[i, k].astype("float32"))
    mean = te.compute((4096,), lambda i: total[i] / te.const(131072, "float32"), "mean")

    def away(i, k):
        return x[i, k].astype("float32") - mean[i]

    squares = added("V", lambda i, k: away(i, k) * away(i, k))

    def result(i, j):
        scaled = away(i, j) * te.rsqrt(squares[i] / te.const(131072, "float32"))
        return sum((w[j] for w in given), scaled).astype(dtype)

    y = te.compute(x.shape, result, "Y")
    return te.create_prim_func([x, *given, y])


@pytest.mark.parametrize(("count", "persistent"), [(2, 15), (3, None)])
def test_what_rows_share_fits_the_registers(count, persistent):
    assert chosen_rows(s_tir.Schedule(shared_vectors(count))).persistent == persistent


def test_what_cannot_be_is_not_chosen(monkeypatch):
    given = RowReductionConfig(threads=96, rows=1, cluster=8, stage=True, ahead=4, persistent=15)
    monkeypatch.setattr(apply, "keep_shared", lambda *_: given)
    sch = s_tir.Schedule(memory_bound.layer_norm(4096, 131072))
    assert hs.row_reduction(sch) is None
    assert chosen_rows(s_tir.Schedule(memory_bound.layer_norm(4096, 131072))).persistent is None


@pytest.mark.parametrize(("columns", "persistent"), [(131072, 8), (262144, None)])
def test_parts_with_fewer_sms(columns, persistent):
    """They hold fewer clusters, and of 16 thread blocks perhaps none."""
    small = gpu_of_sms(78)
    with small:
        chosen = chosen_rows(s_tir.Schedule(memory_bound.layer_norm(4096, columns)))
    assert chosen.persistent == persistent


@pytest.mark.parametrize(
    ("program", "more", "skewed"),
    [
        (memory_bound.layer_norm(64, 1024), {"reload": True}, True),
        (memory_bound.layer_norm(64, 1024), {"reload": False}, False),
        (memory_bound.layer_norm(64, 1024), {"reload": True, "cluster": 1}, False),
        (backward.layer_norm_backward(64, 1024), {"reload": True}, False),
    ],
)
def test_rows_that_are_loaded_again_are_reduced_a_turn_early(program, more, skewed):
    """Sums of columns are left to the order of turns, and a thread block alone waits for nobody."""
    sch = s_tir.Schedule(program)
    given = {"threads": 64, "persistent": 2, "cluster": 2, "ahead": 2, "stage": True, **more}
    hs.row_reduction(sch, config=RowReductionConfig(**given))
    found = ir.find_all(sch.mod["main"].body, ir.For, lambda x: SKEW_TURNS in x.annotations)
    assert bool(found) == skewed
