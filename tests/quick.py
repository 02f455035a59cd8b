"""What a change is checked by within a minute: `make quick`.

Lint, layout, then the tests of what differs from the merge base with `main`: changed test files
first, then test files named like a changed module, then the folders of tests of changed folders.
At the end of the time the rest is left out and named; `make test` runs all.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LAYOUT = "tests/packaging/test_layout.py"
MOST_FILES = 30  # of tests: collecting more takes longer than running them
LINT = (["ruff", "check", "."], ["ruff", "format", "--check", "."], ["mypy"])


def changed(base: str) -> list[str]:
    """List the files that differ from the merge base with a branch, untracked ones too."""
    start = _git("merge-base", base, "HEAD") or ["HEAD"]
    names = {*_git("diff", "--name-only", start[0]), *_git("ls-files", "-o", "--exclude-standard")}
    return sorted(name for name in names if (ROOT / name).exists())


def _git(*words: str) -> list[str]:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.split()


def select_tests(files: Iterable[str], every_test: Iterable[str]) -> list[str]:
    """Return the test files for changed files, the closest first."""
    files, every_test = list(files), list(every_test)
    named = {f"test_{Path(x).stem}.py" for x in files if x.endswith(".py")}
    folders = {part for x in files for part in Path(x).parts[:-1]} - {"tests", "tvm_hopper"}
    if any(x.endswith(".md") for x in files):
        folders |= {"docs"}
    groups = (
        [x for x in every_test if x in files],
        [x for x in every_test if Path(x).name in named],
        [x for x in every_test if Path(x).parts[1] in folders],
    )
    return list(dict.fromkeys(x for group in groups for x in group if x != LAYOUT))


class StopInTime:
    """Ends a session of pytest at a time; the rest is counted."""

    def __init__(self, until: float) -> None:
        self.until = until
        self.left = 0

    def pytest_runtest_logfinish(self) -> None:
        """Let the session end before the next test."""
        if time.monotonic() > self.until and self.session.shouldstop is False:
            self.session.shouldstop = "the time of `make quick` is over; `make test` runs the rest"

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Keep the session."""
        self.session = session


def lint() -> Iterator[str]:
    """Run the linters; yield those that object."""
    for words in LINT:
        if subprocess.run([sys.executable, "-m", *words], cwd=ROOT, check=False).returncode:
            yield " ".join(words)


def main(argv: list[str]) -> int:
    """Run lint, layout and the tests of what changed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", default="main", help="branch to compare with")
    parser.add_argument("--seconds", type=float, default=50.0, help="until no further test begins")
    options = parser.parse_args(argv)
    until = time.monotonic() + options.seconds
    objections = list(lint())
    every = sorted(str(x.relative_to(ROOT)) for x in (ROOT / "tests").glob("*/**/test_*.py"))
    wanted = [LAYOUT, *select_tests(changed(options.base), every)]
    print(f"{min(len(wanted), MOST_FILES)} of {len(wanted)} files of tests")
    words = ["-q", "-x", "-m", "not slow and not gpu", *wanted[:MOST_FILES]]
    code = pytest.main(words, plugins=[StopInTime(until)])
    for one in objections:
        print(f"objects: {one}")
    stopped = code == pytest.ExitCode.INTERRUPTED and time.monotonic() > until
    return int(bool(objections) or not (stopped or code == pytest.ExitCode.OK))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
