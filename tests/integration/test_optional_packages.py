"""What needs a package that may be missing says which, and the command that installs it."""

from __future__ import annotations

import importlib.util
import re
import types

import pytest

from tvm_hopper import HopperError
from tvm_hopper.meta_schedule.drawing import draw
from tvm_hopper.meta_schedule.remote import serve
from tvm_hopper.reports import doctor
from tvm_hopper.sim.timeline.timeline import Timeline


@pytest.fixture
def without(monkeypatch):
    """Hide a package."""
    found = importlib.util.find_spec

    def hide(name: str) -> None:
        hidden = lambda x, *rest: None if x == name else found(x, *rest)  # noqa: E731
        monkeypatch.setattr(importlib.util, "find_spec", hidden)

    return hide


def timeline() -> Timeline:
    made = object.__new__(Timeline)
    vars(made).update(title="a run", findings=())
    return made


USES = {
    "matplotlib": [lambda: timeline().figure(), lambda: draw("nowhere")],
    "bokeh": [lambda: timeline().html("page.html")],
    "psutil": [lambda: serve.ServerGroup._start(types.SimpleNamespace(), "")],
}


@pytest.mark.parametrize("package", USES)
def test_missing(without, package):
    without(package)
    for use in USES[package]:
        with pytest.raises(HopperError, match=f"found no {package}; .*; pip install {package}$"):
            use()


def test_a_notebook_shows_the_line(without):
    without("matplotlib")
    assert re.search("<pre>a run: found no matplotlib; .*</pre>", timeline()._repr_html_())


def test_doctor_names_what_is_missing(without):
    without("tornado")
    row = doctor.check_extras()
    assert (row.found, row.remedy) == ("without tornado", "pip install tornado")
