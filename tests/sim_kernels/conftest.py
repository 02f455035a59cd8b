"""Kernels here are built as soon as they are scheduled: nothing is lowered for a look before.

`tests/schedule`, `tests/relax` and the fuzzer schedule as users do.
"""

from collections.abc import Iterator

import pytest

from tvm_hopper.schedule.dry_run import left_to_the_build


@pytest.fixture(autouse=True)
def _lowered_once(request: pytest.FixtureRequest) -> Iterator[None]:
    """Leave what a build refuses to the build; `looks_ahead` marks tests of the refusal."""
    if request.node.get_closest_marker("looks_ahead"):
        yield
        return
    with left_to_the_build():
        yield
