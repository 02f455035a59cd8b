"""Entry point that `import tvm` runs (group `tvm.backends`).

A leaf on purpose: `tvm` and `tvm_hopper` may both be half imported when it is called.  Where TVM's
compiler is missing it only helps to load modules (`foreign`). `TVM_HOPPER_AUTOLOAD=0` leaves TVM's
default pipeline and its callbacks as they are (the pipeline named "tvm_hopper" can still be asked
for).
"""

from __future__ import annotations

import os
import sys

GROUP = "tvm.backends"
_done = False


def register_with_tvm() -> None:
    """Register now, or at the import of TVM where that is still to come and will call `register`.

    A process that runs saved kernels alone never imports TVM, whose compiler takes 0.9 s.
    """
    from importlib.metadata import entry_points

    switched_off = os.environ.get("TVM_DEVICE_BACKEND_AUTOLOAD", "1") == "0"
    if "tvm" in sys.modules or switched_off or "tvm_hopper" not in entry_points(group=GROUP).names:
        register()
        return
    from tvm_hopper.requests.pins import check_pins

    check_pins()


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
