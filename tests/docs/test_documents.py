"""What the documents promise: passes and options are those of the code."""

import inspect
import re

import pytest

from tests.docs.blocks import ROOT, blocks
from tvm_hopper import pipeline
from tvm_hopper.requests import keys, options


@pytest.mark.gpu
def test_the_readme_example_runs_on_a_gpu():
    torch = pytest.importorskip("torch")
    names = {}
    for block in blocks(ROOT / "README.md"):
        if block.language == "python":
            block.run(names)
    torch.cuda.synchronize()
    want = (names["x"].double() @ names["y"].double().t()).relu()
    assert float((names["out"].double() - want).norm() / want.norm()) < 5e-4


PASSES = [
    p.info.name.removeprefix("tvm_hopper.")
    for passes in (
        pipeline.passes.hook_passes(),
        pipeline.passes.late_passes(),
        pipeline.passes.host_passes(),
    )
    for p in passes
]


def test_the_passes_are_listed_in_the_pipeline_s_order():
    section = (ROOT / "DESIGN.md").read_text().split("## Contracts between")[1].split("\n## ")[0]
    # A name stands in a table's first column.
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| ")]
    found = [name for row in rows for name in re.findall(r"\w+", row) if name in PASSES]
    assert found == PASSES


def test_every_option_is_listed_with_its_default():
    text = (ROOT / "docs" / "get_started.md").read_text()
    rows = dict(re.findall(r"^\| `(tvm_hopper\.\w+)` \| (.*) \|$", text, re.M))
    wanted = {k.name for k in keys.KEYS.values() if k.option}
    assert set(rows) == wanted
    for name, default in options.DEFAULTS.items():
        if name in rows and isinstance(default, bool):
            assert f"| {default} |" in rows[name]


def public_functions():
    """Return the functions that users call, by name."""
    import tvm_hopper

    for owner in (tvm_hopper, tvm_hopper.schedule):
        for name in owner.__all__:
            if inspect.isfunction(one := getattr(owner, name)):
                yield pytest.param(one, id=name)


@pytest.mark.parametrize("function", list(public_functions()))
def test_public_functions_say_what_they_take_give_and_raise(function):
    text = inspect.getdoc(function)
    named = re.findall(r"^(\w[\w, ]*) : ", text, re.MULTILINE)
    described = {name for line in named for name in line.split(", ")}
    assert not set(inspect.signature(function).parameters) - described
    assert "\nRaises\n------\n" in text
    returns_nothing = inspect.signature(function).return_annotation == "None"
    assert returns_nothing or "\nReturns\n-------\n" in text
