"""What the documents promise: the README's example runs as printed, names and links exist."""

import re
from pathlib import Path

import pytest

from tvm_hopper import keys, options, pipeline

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
DOCUMENTS = [ROOT / "README.md", ROOT / "DESIGN.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(text):
    return re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)


def test_the_readme_example_runs_as_printed(capsys):
    example, _ = blocks(README)
    exec(compile(example, "README.md", "exec"), {})
    assert "wgmma.mma_async" in capsys.readouterr().out


@pytest.mark.gpu
def test_the_readme_example_runs_on_a_gpu():
    torch = pytest.importorskip("torch")
    names = {}
    for example in blocks(README):
        exec(compile(example, "README.md", "exec"), names)
    torch.cuda.synchronize()
    want = (names["x"].double() @ names["y"].double().t()).relu()
    assert float((names["out"].double() - want).norm() / want.norm()) < 5e-4


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: p.name)
def test_links_lead_somewhere(path):
    links = re.findall(r"\[[^\]]*\]\(([^)#\s]+)\)", path.read_text())
    missing = [x for x in links if "://" not in x and not (path.parent / x).exists()]
    assert not missing


def test_the_designs_passes_are_the_pipelines():
    text = (ROOT / "DESIGN.md").read_text()
    lists = [pipeline.hook_passes(), pipeline.late_passes(), pipeline.host_passes()]
    names = [p.info.name.removeprefix("tvm_hopper.") for passes in lists for p in passes]
    places = [text.find(f"{name}") for name in names]
    assert all(place >= 0 for place in places), dict(zip(names, places, strict=True))


def test_every_option_is_listed_with_its_default():
    text = (ROOT / "docs" / "index.md").read_text()
    rows = dict(re.findall(r"^\| `(tvm_hopper\.\w+)` \| (.*) \|$", text, re.M))
    wanted = {k.name for k in keys.KEYS.values() if k.option}
    assert set(rows) == wanted
    for name, default in options.DEFAULTS.items():
        if name in rows and isinstance(default, bool):
            assert f"| {default} |" in rows[name]
