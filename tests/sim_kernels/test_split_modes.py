"""Sums whose parts meet one after another or in any order: what of the emitted kernels is needed.

Beside each other what a reader of the seeded bugs M49 to M52 knows by hand (`tests/seeded`): a turn
that is told too early, by another thread, or not at all; an output that nobody has set to zero; a
part that stores where the others add.  A kernel that loads what it stores (M53) is
refused, since nothing would order the copy and the stores (tests/transforms/refusals/loads.py).
"""

import functools
from collections.abc import Collection

import pytest
from tvm.ir import StringImm
from tvm.ir.transform import PassContext

from tests.sim_kernels.kernels import scheduled
from tests.sim_kernels.mutate import change, with_argument
from tvm_hopper import ir, schedule as hs
from tvm_hopper.codegen_patches.ptx import tma
from tvm_hopper.errors import LoweringError, ScheduleError
from tvm_hopper.simulation import Program, load, simulate, verify
from tvm_hopper.testing import workloads

PROBLEM = {"m": 64, "n": 16, "k": 80, "out_dtype": "float32"}
POLICIES = (("eager", 0), ("on_wait", 0), ("lifo", 0), ("random", 1), ("random", 2))


FORMS = {  # what else may be asked of them: begun early, as they are unless told, or not
    "plain": {},
    "late": {"early_launch": False},
    "hilbert": {"m": 128, "n": 32, "raster": hs.Raster(2, "hilbert")},
    "consumers": {"m": 128, "consumers": 2, "tile": (128, 16, 16)},
}


@functools.cache
def right(mode: str, form: str = "plain") -> tuple[Program, dict]:
    """Return a program as our passes emit it, and inputs."""
    split_k = mode if mode == "stream" else hs.SplitK(3 if mode == "atomic" else 4, mode)
    config = {"tile": (64, 16, 16), "split_k": split_k, "stages": 2, **FORMS[form]}
    if mode == "stream":  # blocks that have less than a tile, so that sums go from one to the next
        config |= {"persistent": 3}
    problem = {name: config.pop(name, value) for name, value in PROBLEM.items()}
    mod, module = scheduled(problem, config.pop("tile"), **config)
    names = [p.name for p in mod["main"].params]
    return load(module), dict(zip(names, workloads.make_inputs(mod, seed=1), strict=False))


def found(program: Program, mode: str, form: str = "plain", want: Collection[str] = ()) -> set[str]:
    """Return the rules that a program breaks under any policy, or until one of those wanted."""
    rules: set[str] = set()
    for policy, seed in POLICIES:
        rules |= simulate(program, right(mode, form)[1], policy, seed, allocator=True).rules
        if rules.intersection(want):
            break
    return rules


@functools.cache
def is_clean(mode: str, form: str) -> bool:
    return not found(right(mode, form)[0], mode, form)


def without_zeros(program: Program) -> Program:
    """Return the program whose first kernel stores nothing."""
    func = program.kernels["main_kernel"]
    empty = func.with_body(ir.replace(func.body, ir.BufferStore, lambda _: ir.seq()))
    return Program(program.host, {**program.kernels, "main_kernel": empty})


def relaxed(call):
    """Return a store that tells nothing of earlier ones."""
    words = [getattr(x, "value", "") for x in call.args]
    return with_argument(words.index("release"), StringImm("relaxed"))(call)


def stored(call):
    """Return a copy to where a tile was added."""
    tensor_map, column, row, tile, *_ = call.args
    return tma.store(tile, tensor_map, [column, row])


@pytest.mark.parametrize("mode", ["serial", "atomic", "stream"])
def test_the_kernels_are_clean(mode):
    assert found(right(mode)[0], mode) == set()


WRONG = {
    "M49: an iteration is told by a store that releases nothing": (
        "serial",
        lambda p: change(p, "st", None, relaxed),
        {"RACE_READ_INFLIGHT"},
    ),
    "M50: an iteration is told by a lane that has not met the others": (
        "serial",
        lambda p: change(p, "warp_sync"),
        {"RACE_READ_INFLIGHT"},
    ),
    "M51: turns are not set to zero": ("serial", without_zeros, {"UNINIT_READ"}),
    "M51: the output is not set to zero": ("atomic", without_zeros, {"UNINIT_READ"}),
    "M52: nobody waits for the iteration": (
        "serial",
        lambda p: change(p, "wait_until"),
        {"RACE_READ_INFLIGHT"},
    ),
    "M52: a part is stored, not added": (
        "atomic",
        lambda p: change(p, "cp_reduce_async_bulk_tensor", None, stored),
        {"RACE_WRITE_WRITE", "RACE_OVERWRITE_BUSY"},
    ),
    "an iteration is told to nobody": ("serial", lambda p: change(p, "st"), {"DEADLOCK"}),
}
WRONG |= {  # equal shares of all steps are handed on in the same way
    f"{name}, of equal shares": ("stream", mutate, want)
    for name, (mode, mutate, want) in [*WRONG.items()]
    if mode == "serial"
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_found(name):
    mode, mutate, want = WRONG[name]
    rules = found(mutate(right(mode)[0]), mode, want=want)
    assert want & rules, rules


@pytest.mark.sampled(every=8)
@pytest.mark.parametrize("form", list(FORMS)[1:])
@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_found_in_other_forms(name, form):
    mode, mutate, want = WRONG[name]
    assert is_clean(mode, form)
    rules = found(mutate(right(mode, form)[0]), mode, form, want)
    assert want & rules, rules


MORE = [
    ({"m": 72, "n": 24, "k": 80}, 3, {}),  # ragged, the last part ends early
    ({"m": 64, "n": 16, "k": 400}, 24, {}),  # more than a cluster has
    ({"m": 17, "n": 72, "k": 80}, 3, {"form": "transposed"}),
    ({"m": 384, "n": 32, "k": 112}, 2, {"consumers": 2, "tile": (128, 16, 16), "raster": 2}),
    ({"m": 64, "n": 16, "k": 1040}, 64, {}),
]


@pytest.mark.parametrize(
    ("problem", "parts", "config"),
    [MORE[0], *(pytest.param(*x, marks=pytest.mark.slow) for x in MORE[1:])],
)
@pytest.mark.parametrize("mode", ["serial", "atomic"])
def test_values_and_verdicts(mode, problem, parts, config):
    if mode == "atomic" and "form" in config:
        pytest.skip("its rows are no rows in memory")
    given = {"stages": 2, "consumers": 1, "split_k": hs.SplitK(parts, mode), **config}
    tile = given.pop("tile", (64, 24 if config.get("form") else 16, 16))
    mod, module = scheduled({**problem, "out_dtype": "float32"}, tile, **given)
    report = verify(module, against=mod).require_clean()
    assert "values compared" in str(report)


BIAS = {"m": 8, "n": 56, "k": 48, "epilogue": ("bias_col",), "out_dtype": "float16"}
SHARES = [  # what is stored where shares end inside of tiles, and at their edges
    ({"m": 200, "n": 40, "k": 112}, {"persistent": 5}),  # ragged, a whole tile each, then shares
    ({"m": 64, "n": 16, "k": 400}, {"persistent": 7}),  # a tile of many blocks
    ({"m": 128, "n": 32, "k": 16}, {"persistent": 3}),  # one step a tile
    ({"m": 17, "n": 72, "k": 80}, {"persistent": 2, "form": "transposed"}),
    ({"m": 384, "n": 32, "k": 112}, {"persistent": 4, "consumers": 2, "tile": (128, 16, 16)}),
    (
        {"m": 192, "n": 48, "k": 112, "layout": "TN"},
        {"persistent": 4, "stages": 3, "wgmma_pending": 1},
    ),
    ({"m": 192, "n": 48, "k": 80, "epilogue": ("bias_col", "relu")}, {"persistent": 100}),
    ({"m": 192, "n": 48, "k": 80, "epilogue": ("residual",)}, {"persistent": 5, "raster": 2}),
]
AHEAD = BIAS, {"persistent": 3, "tile": (64, 64, 16)}  # loaded in front of the sum, in pairs


@pytest.mark.parametrize(
    ("problem", "config"),
    [
        SHARES[0],
        AHEAD,
        *(pytest.param(*x, marks=pytest.mark.sampled(every=8)) for x in SHARES[1:]),
    ],
)
def test_equal_shares(problem, config):
    given = {"stages": 2, "consumers": 1, "split_k": "stream", **config}
    tile = given.pop("tile", (64, 24 if config.get("form") else 16, 16))
    mod, module = scheduled({"out_dtype": "float32", **problem}, tile, **given)
    report = verify(module, against=mod).require_clean()
    assert "values compared" in str(report)


EPILOGUE = {**PROBLEM, "epilogue": ("relu",)}


@pytest.mark.looks_ahead
@pytest.mark.parametrize(
    ("problem", "fields", "match"),
    [
        (EPILOGUE, {}, r"found an epilogue, what is stored to .*; need the sum itself, or rounded"),
        (PROBLEM, {"form": "transposed"}, r"store='tma' with form='transposed'; need one of the"),
    ],
)
def test_what_cannot_be_added_in_any_order(problem, fields, match):
    with pytest.raises(ScheduleError, match=match):
        scheduled(problem, (64, 16, 16), split_k=hs.SplitK(2, "atomic"), **fields)


def test_the_same_bits_in_each_run_are_no_atomic_sums():
    """As of every sum in any order."""
    _, atomic = scheduled(PROBLEM, (64, 16, 16), split_k=hs.SplitK(2, "atomic"))
    _, serial = scheduled(PROBLEM, (64, 16, 16), split_k=hs.SplitK(2, "serial"))
    with PassContext(config={"tvm_hopper.deterministic": True}):
        with pytest.raises(LoweringError, match=r"whose terms come in any order; need results"):
            load(atomic)
        load(serial)


@pytest.mark.parametrize("mode", ["serial", "atomic"])
def test_a_way_that_nothing_chooses(mode):
    with pytest.raises(ScheduleError, match=f"split_k='{mode}' alone; need a number of parts"):
        hs.MatmulConfig(split_k=mode)
