"""The last few of a search on a GPU: compared in turn, with TVM's own program and with cuBLAS."""

import json
import statistics

import pytest

pytestmark = pytest.mark.gpu

TARGET = "nvidia/nvidia-h200"


@pytest.fixture(scope="module")
def tools():
    from tvm_hopper.integration import autoload
    from tvm_hopper.meta_schedule import ArtifactBuilder, GpuRunner
    from tvm_hopper.meta_schedule.runner import visible_gpus

    autoload.register()
    builder, runner = ArtifactBuilder(workers=4), GpuRunner(visible_gpus()[:1])
    yield builder, runner
    runner.close()
    builder.close()


def contest(tools, mod, configs, library=None, spoilt=None):
    import tvm
    from tvm.s_tir import meta_schedule as ms

    from tvm_hopper.meta_schedule.finals import as_tvm_has_it
    from tvm_hopper.meta_schedule.tasks import find_tasks

    builder, runner = tools
    (task,) = find_tasks(mod, TARGET)
    mods = [task.problem.schedule(x or task.problem.built_in()).mod for x in configs]
    mods += [*([spoilt] if spoilt is not None else []), as_tvm_has_it(task.problem)]
    target = tvm.target.Target(TARGET)
    built = builder.build([ms.builder.BuilderInput(x, target, None) for x in mods])
    paths = [str(x.artifact_path) for x in built]
    assert [x.error_msg for x in built] == [None] * len(mods)
    return runner.contest(paths[:-1], reference=paths[-1], library=library)()


@pytest.mark.parametrize("layout", ["NT", "TN"])
def test_products_are_judged_and_timed_beside_cublas(tools, layout):
    from tvm_hopper import schedule as hs
    from tvm_hopper.meta_schedule.tasks import find_tasks
    from tvm_hopper.testing import workloads

    mod = workloads.matmul(2048, 2048, 2048, layout, "bfloat16", "bfloat16")
    (task,) = find_tasks(mod, TARGET)
    slow = hs.MatmulConfig(tile=(64, 64, 64), stages=2)
    told = {"majors": list(task.problem.majors)}
    found = contest(tools, mod, [None, slow, None], told)
    assert not isinstance(found, str), found
    assert [x for x, _ in found.verdicts] == ["equal"] * 3
    first, bad, same, *rest = [statistics.median(x) for x in found.sustained]
    assert bad > 1.2 * first
    assert 0.95 < same / first < 1.05
    alone = [statistics.median(x) for x in found.single]
    assert 0.9 < alone[0] / first < 1.6
    if found.library:
        assert found.library == "cuBLAS"
        assert 0.5 < rest[0] / first < 2
    print(
        json.dumps({"layout": layout, "us": [1e6 * x for x in (first, bad, same, *rest, *alone)]})
    )


@pytest.mark.parametrize("name", ["rms_norm", "layer_norm", "softmax", "silu_mul"])
def test_rows_and_elements_are_judged(tools, name):
    from tvm_hopper.testing import memory_bound

    found = contest(tools, getattr(memory_bound, name)(2048, 4096), [None, None])
    assert not isinstance(found, str), found
    assert [x for x, _ in found.verdicts] == ["equal"] * 2, found.verdicts
    first, same = [statistics.median(x) for x in found.sustained]
    assert 0.95 < same / first < 1.05


@pytest.mark.parametrize("name", ["rms_norm_backward", "softmax_backward"])
def test_gradients_are_judged(tools, name):
    from tvm_hopper.testing import backward

    found = contest(tools, getattr(backward, name)(2048, 1024), [None, None])
    assert not isinstance(found, str), found
    assert [x for x, _ in found.verdicts] == ["equal"] * 2, found.verdicts


def test_a_wrong_one_is_found(tools):
    from tvm import s_tir

    from tvm_hopper import schedule as hs
    from tvm_hopper.testing import memory_bound

    mod, other = memory_bound.silu_mul(512, 4096), memory_bound.gelu_mul(512, 4096)
    sch = s_tir.Schedule(other)
    hs.pointwise(sch)
    found = contest(tools, mod, [None], spoilt=sch.mod)
    assert not isinstance(found, str), found
    assert [x for x, _ in found.verdicts] == ["equal", "wrong"]
    assert "elements differ, the first one" in found.verdicts[1][1]
    assert not found.sustained[1]


def test_a_run_keeps_what_is_surely_faster(tools, tmp_path):
    import tvm_hopper
    from tvm_hopper.meta_schedule.tasks import find_tasks
    from tvm_hopper.testing import workloads

    builder, runner = tools
    mod = workloads.matmul(3760, 4712, 64, "TT", "bfloat16", "bfloat16")
    database = tvm_hopper.tune(
        mod, TARGET, trials=16, work_dir=tmp_path, runner=runner, builder=builder, progress=False
    )
    key = find_tasks(mod, TARGET)[0].problem.key
    row = database.finals[key]
    print(json.dumps({k: v for k, v in row.items() if k != "finalists"}))
    assert row["gain"] >= 1
    assert row["worker"] == runner.gpus[0]
    assert database.winner(key).text == row["winner"]
