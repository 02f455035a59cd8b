"""One build on devices of any size: every tile once, by as many blocks as balance there."""

import numpy as np
import pytest

from tests.sim_kernels.kernels import scheduled
from tvm_hopper import schedule as hs
from tvm_hopper.facts.devices import balanced_blocks
from tvm_hopper.simulation import load, simulate, verify
from tvm_hopper.testing import workloads

DEVICES = (1, 2, 7, 78, 114, 132)
TILE = (64, 8, 16)
PROBLEMS = {
    "plain": ({"m": 192, "n": 32, "k": 32}, {}, 12),
    "ragged": ({"m": 200, "n": 36, "k": 24, "epilogue": ("bias_col",)}, {}, 20),
    "symbolic": ({"m": "m", "n": 24, "k": 24, "index": "int64"}, {"m": 330}, 18),
    "one row": ({"m": "m", "n": 24, "k": 24, "index": "int64"}, {"m": 1}, 3),
}
RUNS = (("lifo", 0), ("random", 1), ("starve:consumer", 0))


@pytest.fixture(scope="module", params=PROBLEMS)
def built(request):
    problem, extents, tiles = PROBLEMS[request.param]
    config = {"stages": 2, "consumers": 1, "raster_group": 2, "persistent": hs.BY_DEVICE}
    mod, module = scheduled(problem, TILE, **config)
    inputs = workloads.make_inputs(mod, seed=1, **extents)
    names = [param.name for param in mod["main"].params]
    want = workloads.reference(inputs, "NT", problem.get("epilogue", ()))
    return load(module), dict(zip(names, inputs, strict=False)), names[-1], want, tiles


@pytest.mark.sampled(every=9)
@pytest.mark.parametrize("num_sms", DEVICES)
def test_one_build_is_right_and_balanced_on_each(built, num_sms):
    kernel, values, output, want, tiles = built
    result = simulate(kernel, values, num_sms=num_sms)
    assert not result.findings, "\n".join(map(str, result.findings))
    np.testing.assert_array_equal(result.outputs[output], want.astype("float32"))
    assert len(result.blocks) == balanced_blocks(tiles, num_sms)
    verify(kernel, values, RUNS, max_ctas=2, num_sms=num_sms).require_clean()


def test_no_rows_launch_nothing():
    _, module = scheduled({"m": "m", "n": 24, "k": 24}, TILE, persistent=hs.BY_DEVICE)
    values = {"A": np.zeros((0, 24), "float16"), "B": np.zeros((24, 24), "float16")}
    assert simulate(load(module), values, num_sms=1).blocks == ()


def test_a_number_of_blocks_stays_that_number():
    _, module = scheduled({"m": 192, "n": 32, "k": 32}, TILE, persistent=5, consumers=1)
    kernel = load(module)
    values = {"A": np.ones((192, 32), "float16"), "B": np.ones((32, 32), "float16")}
    for num_sms in (2, 132):
        result = simulate(kernel, values, num_sms=num_sms)
        assert len(result.blocks) == 5
        np.testing.assert_array_equal(result.outputs["C"], np.full((192, 32), 32, "float32"))
