"""Switch plain `relax.build` to our pipeline, for this process.

`relax.get_default_pipeline` and `relax.pipeline.legalize_passes` read one function under two names.
Both get a wrapper, which hands over to what stood there for any target that is not ours.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from tvm import relax
from tvm.relax.backend.cuda import pipeline as stock
from tvm.target import Target

from tvm_hopper.requests.targets import is_ours

from . import cache_kernels
from .lowering import legalize_passes
from .options import ModelOptions, as_options

PLACES = (stock, relax.backend.cuda)
NAME = "legalize_passes"

_LOCK = threading.RLock()  # two threads would each wrap what the other one has put there

Legalize = Callable[[Target], list[Any]]


def enable(**options: Any) -> None:
    """Make `relax.build(mod, target)` use this package on sm_90a, for the functions it supports.

    Paged caches of TVM's frontend get kernels of ours where they are made, whichever pipeline
    builds the model. A second call changes the options.

    Parameters
    ----------
    options
        Those of the pipeline "tvm_hopper": accumulate, batch_invariant, classes, database.

    Raises
    ------
    OptionError
        An option is unknown, or its value is illegal.
    """
    given = as_options(options)
    with _LOCK:
        disable()
        for place in PLACES:
            setattr(place, NAME, _wrapped(getattr(place, NAME), given))
        cache_kernels.wrap_makers(given)


def disable() -> None:
    """Undo `enable`; nothing where it was not called."""
    with _LOCK:
        for place in PLACES:
            now = getattr(place, NAME)
            setattr(place, NAME, getattr(now, "switch_of", now))
        cache_kernels.unwrap_makers()


def _wrapped(previous: Legalize, options: ModelOptions) -> Legalize:
    def passes(target: Target) -> list[Any]:
        return legalize_passes(options) if is_ours(target) else previous(target)

    passes.switch_of = previous  # type: ignore[attr-defined]  # how `disable` finds it
    return passes
