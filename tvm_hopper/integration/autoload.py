"""Entry point that `import tvm` runs (group `tvm.backends`).

A leaf on purpose: `tvm` and `tvm_hopper` may both be half imported when it is called.  Where TVM's
compiler is missing it only helps to load modules (`foreign`). `TVM_HOPPER_AUTOLOAD=0` leaves TVM's
default pipeline and its callbacks as they are (the pipeline named "tvm_hopper" can still be asked
for).
"""

from __future__ import annotations

import os

_done = False


def register() -> None:
    """Register our pipeline, its gate, target tags and PassContext keys, once."""
    global _done
    from tvm_hopper.requests.pins import check_pins

    check_pins()
    from tvm.base import _RUNTIME_ONLY

    if _done:
        return
    _done = True
    asked = os.environ.get("TVM_HOPPER_AUTOLOAD", "1") != "0"
    if asked:
        from tvm_hopper.integration import foreign

        foreign.install()
        foreign.load_runtime()
    if _RUNTIME_ONLY:
        return
    from tvm_hopper.integration import gate, on_demand
    from tvm_hopper.requests import tags

    on_demand.register()
    gate.register_named()
    gate.register_model_pipeline()
    tags.register_tags()
    gate.accept_options()
    if asked:
        gate.install()
