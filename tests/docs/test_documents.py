"""What the documents promise: passes and options are those of the code."""

import dataclasses
import inspect
import re

import pytest

from tests.docs import stage_lists
from tests.docs.blocks import ROOT, blocks
from tvm_hopper.meta_schedule.tuning import TuneOptions
from tvm_hopper.requests import keys, options
from tvm_hopper.simulation import SimulateOptions
from tvm_hopper.verification.verifier import Limits


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


@pytest.mark.parametrize("document", stage_lists.DOCUMENTS)
def test_the_stages_are_listed_as_they_are(document):
    text = (ROOT / document).read_text()
    assert text == stage_lists.written(text), "run python -m tests.docs.stage_lists"


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


# Of functions whose last keywords are the fields of a class.
KEYWORDS = {
    name: {x.name for x in dataclasses.fields(fields)}
    for name, fields in (("tune", TuneOptions), ("simulate", SimulateOptions), ("verify", Limits))
}


@pytest.mark.parametrize("function", list(public_functions()))
def test_public_functions_say_what_they_take_give_and_raise(function):
    text = inspect.getdoc(function)
    named = re.findall(r"^(\w[\w, ]*) : ", text, re.MULTILINE)
    described = {name for line in named for name in line.split(", ")}
    assert not KEYWORDS.get(function.__name__, set()) - described
    parameters = inspect.signature(function).parameters.values()
    assert not {x.name for x in parameters if x.kind is not x.VAR_KEYWORD} - described
    assert "\nRaises\n------\n" in text
    returns_nothing = inspect.signature(function).return_annotation == "None"
    assert returns_nothing or "\nReturns\n-------\n" in text
