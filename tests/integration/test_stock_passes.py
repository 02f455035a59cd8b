"""The pass list that is written down is TVM's own, under every option that TVM reads."""

from __future__ import annotations

import itertools
import types

import pytest
import tvm
from tvm.s_tir import pipeline as tvm_pipeline

from tvm_hopper import pipeline
from tvm_hopper.pipeline import stock

OPTIONS = (
    "tirx.disable_vectorize",
    "tirx.disable_storage_rewrite",
    "tirx.use_async_copy",
    "tirx.instrument_bound_checkers",
    "tirx.s_tir.ldg32",
    "tirx.disable_cse_tir",
    "tirx.instrument_lwp",
)
CONFIGS = [
    dict.fromkeys(chosen, True)
    for count in (0, 1, 2, len(OPTIONS))
    for chosen in itertools.combinations(OPTIONS, count)
]


class Calls:
    """A namespace whose functions return what they were called with."""

    def __init__(self, name: str = "") -> None:
        self.name = name

    def __getattr__(self, name: str) -> Calls:
        return Calls(f"{self.name}.{name}")

    def __call__(self, *arguments: object) -> tuple:
        return (self.name, *arguments)


class Config(dict):
    """A config that remembers what it was asked for."""

    def __init__(self, values: dict[str, bool]) -> None:
        super().__init__(values)
        self.asked: set[str] = set()

    def get(self, name: str, default: object = None) -> object:
        self.asked.add(name)
        return super().get(name, default)


def context(config: Config) -> types.SimpleNamespace:
    return types.SimpleNamespace(current=lambda: types.SimpleNamespace(config=config))


def tvms(config: Config) -> list[tuple]:
    """Run TVM's own factory with names of its own for what it calls; nothing global is touched."""
    kept: list[tuple] = []
    transform = types.SimpleNamespace(
        PassContext=context(config),
        Sequential=lambda passes: lambda _mod: kept.extend(passes),
        module_pass=lambda **_: lambda function: function,
    )
    names = types.SimpleNamespace(
        ir=types.SimpleNamespace(IRModule=tvm.IRModule, transform=transform), transform=transform
    )
    original = tvm_pipeline.default_s_tir_pipeline
    globals_ = {
        **original.__globals__,
        "tvm": names,
        "s_tir": Calls("s_tir"),
        "tirx": Calls("tirx"),
    }
    run, *_ = types.FunctionType(original.__code__, globals_)()
    run(None, None)
    return kept


def ours(config: Config) -> list[tuple]:
    names = {"s_tir": Calls("s_tir"), "tirx": Calls("tirx"), "PassContext": context(config)}

    def renamed(original, **more):
        return types.FunctionType(original.__code__, {**original.__globals__, **names, **more})

    return renamed(stock.stock_passes, opaque_block_passes=renamed(stock.opaque_block_passes))()


@pytest.mark.parametrize("values", CONFIGS, ids=lambda v: ",".join(v) or "none")
def test_the_list_is_tvms(values) -> None:
    config = Config(values)
    theirs = tvms(config)
    assert ours(Config(values)) == theirs
    assert len(theirs) > 40
    assert config.asked == set(OPTIONS)  # no option that TVM reads is left out of this test


def test_the_passes_of_ours_have_a_place_in_it() -> None:
    names = [p.info.name for p in stock.stock_passes()]
    assert names.count(pipeline.passes.HOOK) == names.count(pipeline.passes.LATE) == 1
