"""Kernels here are built as soon as they are scheduled: nothing is lowered for a look before.

`tests/schedule`, `tests/relax` and the fuzzer schedule as users do.
"""

from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest

from tvm_hopper.schedule.dry_run import left_to_the_build
from tvm_hopper.sim.machine.load_store import LoadStore


@pytest.fixture(autouse=True)
def _lowered_once(request: pytest.FixtureRequest) -> Iterator[None]:
    """Leave what a build refuses to the build; `looks_ahead` marks tests of the refusal."""
    if request.node.get_closest_marker("looks_ahead"):
        yield
        return
    with left_to_the_build():
        yield


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the bytes that runs load, by tensor."""
    counts: Counter[str] = Counter()
    gather = LoadStore.gather

    def counting(self, region, offsets, dtype, count):
        counts[region.name] += np.size(offsets) * count * dtype.itemsize
        return gather(self, region, offsets, dtype, count)

    monkeypatch.setattr(LoadStore, "gather", counting)
    return counts
