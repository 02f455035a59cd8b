"""Every code block of the documents runs as printed, and every command that they name exists."""

from __future__ import annotations

import importlib.util
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.docs.blocks import DOCUMENTS, ROOT, TUTORIALS, Block, blocks, names_after
from tvm_hopper import cli
from tvm_hopper.relax.options import CLASSES, ModelOptions

LANGUAGES = {"python", "sh", "text", "{eval-rst}", "{toctree}"}
COMMANDS = {add.__name__.removeprefix("add_") for add in cli.COMMANDS}
TARGETS = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))
WITH_PYTHON = [path for path in DOCUMENTS if any(b.language == "python" for b in blocks(path))]
# Here without Jupyter, whose start takes most of the time; `make test-all` runs the notebooks.
# Those of `make test-all` alone, since quicker tests have the same kinds: docs/relax.md, tests of
# tuning with its processes (tests/meta_schedule), of one schedule on two chips
# (tests/integration/test_async_schedules.py), of attention and caches
# (tests/schedule/attention), and of experts (tests/schedule/test_ragged.py).
LONG = {
    *("02_relax_model", "03_tuning_a_matmul", "07_one_schedule_two_chips"),
    *("08_many_gpus", "09_attention_from_loops", "10_products_of_experts"),
    *("11_serving_with_pages", "12_bring_your_model"),
}
RUN = [
    *WITH_PYTHON,
    *(
        pytest.param(path, marks=pytest.mark.slow) if path.stem in LONG else path
        for path in TUTORIALS
    ),
]


def test_the_long_tutorials_are_there() -> None:
    assert {path.stem for path in TUTORIALS} > LONG


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", RUN, ids=name_of)
def test_python_runs_as_printed(
    path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one size class where a model has seven: each is a kernel more of each product."""
    init: Any = ModelOptions.__init__
    few = tuple((64,) if value is CLASSES else value for value in init.__defaults__)
    monkeypatch.setattr(init, "__defaults__", few)
    monkeypatch.chdir(path.parent)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    assert names_after(path)


def test_the_readme_shows_a_tensor_core_kernel() -> None:
    names = names_after(ROOT / "README.md")
    assert "wgmma.mma_async" in str(names["tvm_hopper"].explain(names["ex"]))


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_blocks_say_what_they_are(path: Path) -> None:
    text = path.read_text()
    assert len(re.findall(r"^ *```", text, re.M)) == 2 * len(blocks(path))  # none is overlooked
    for block in blocks(path):
        assert block.language in LANGUAGES, f"{name_of(path)}:{block.line}"
        if block.not_run:
            compile(block.text, name_of(path), "exec")
            assert len(block.not_run.split()) > 2  # a reason
    said = re.findall(r"^<!-- (not run|continues)", text, re.M)
    assert len(said) == sum(bool(b.not_run or b.continues) for b in blocks(path))


def commands(path: Path) -> list[str]:
    """Return the lines of shell blocks, and the commands in running text."""
    text = path.read_text()
    lines = [
        line.partition(" #")[0].strip()
        for block in blocks(path)
        if block.language == "sh"
        for line in block.text.splitlines()
    ]
    plain = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    inline = re.findall(r"`((?:make|python -m|pip install|pytest) [^`]+)`", plain)
    return [line for line in [*lines, *inline] if line]


@pytest.mark.parametrize(
    ("path", "line"),
    [(path, line) for path in DOCUMENTS for line in dict.fromkeys(commands(path))],
    ids=lambda value: name_of(value) if isinstance(value, Path) else value,
)
def test_commands_exist(path: Path, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "is_file", lambda _: True)  # of `kernel.py:make_module`
    check_command(line)


def check_command(line: str) -> None:
    """Fail unless a command line names what is there."""
    words = shlex.split(re.sub(r"^(\w+=\S+ )+", "", line))
    program = words[0].removeprefix(".venv/bin/")
    if program == "make":
        named = [word for word in words[1:] if "=" not in word]
        assert set(named) <= TARGETS
    elif program == "python" and words[1:2] == ["-m"]:
        check_module(words[2], words[3:])
    elif program == "pip":
        assert words[1] == "install"
        for extras in re.findall(r"\[([\w,]+)\]", line):
            assert set(extras.split(",")) <= extras_of_the_project()
    else:
        assert program in ("pytest", "pre-commit", "...", "tvm-hopper"), line


def check_module(name: str, words: list[str]) -> None:
    if name == "tvm_hopper":
        named = len(words) == 1 and words[0] in COMMANDS  # in running text, without arguments
        assert not words or named or exit_code(words) == 0
        return
    if name in ("pytest", "sphinx", "pip"):
        return
    file, folder = ROOT / f"{name.replace('.', '/')}.py", ROOT / name.replace(".", "/")
    spec = importlib.util.find_spec(name)
    assert spec, name
    if name.startswith("tvm."):  # a program of TVM's
        file = Path(str(spec.origin))
    files = [file] if file.exists() and not folder.is_dir() else sorted(folder.glob("*.py"))
    source = "\n".join(path.read_text() for path in files)
    for option in (word for word in words if word.startswith("--")):
        assert f'"{option}"' in source, f"{name} {option}"


def exit_code(words: list[str]) -> int:
    """Return what the command line is worth to the parser, without running anything."""
    try:
        cli.build_parser().parse_args(words)
    except SystemExit as stop:  # a mistake, or --help
        return int(stop.code or 0)
    return 0


def extras_of_the_project() -> set[str]:
    text = (ROOT / "pyproject.toml").read_text()
    section = text[text.index("[project.optional-dependencies]") :].split("\n[")[0]
    return set(re.findall(r"^(\w+) = \[", section, re.M))


def test_a_wrong_command_is_noticed() -> None:
    for line in (
        "make soap",
        "python -m benchmarks.soap",
        "python -m tvm_hopper soap",
        "python -m tvm_hopper verify soap",
        "python -m benchmarks.gemm --soap",
        'pip install ".[soap]"',
        "soap",
    ):
        with pytest.raises(AssertionError):
            check_command(line)


def test_a_block_knows_its_place(tmp_path: Path) -> None:
    path = tmp_path / "some.md"
    path.write_text("# T\n\n<!-- not run: needs a machine -->\n\n```python\nx = 1\n```\n")
    (block,) = blocks(path)
    assert block == Block(path, 5, "python", "x = 1\n", "not run: needs a machine")
    assert block.not_run == "needs a machine"
    assert block.continues is None
