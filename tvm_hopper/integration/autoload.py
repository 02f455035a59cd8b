"""What `import tvm` runs when this package is installed (entry point group `tvm.backends`).

A leaf on purpose: `tvm` and `tvm_hopper` may both be half imported when it is called.  It does
nothing where TVM's compiler is missing, and `TVM_HOPPER_AUTOLOAD=0` leaves TVM's default pipeline
as it is (the pipeline named "tvm_hopper" can still be asked for).
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

    if _RUNTIME_ONLY or _done:
        return
    _done = True
    from tvm_hopper.integration import gate, on_demand
    from tvm_hopper.requests import targets

    on_demand.register()
    gate.register_named()
    targets.register_tags()
    gate.accept_options()
    if os.environ.get("TVM_HOPPER_AUTOLOAD", "1") != "0":
        gate.install()
