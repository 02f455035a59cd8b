"""Save and load modules as text, between processes with the same TVM."""

from __future__ import annotations

from typing import Any

from tvm_ffi.serialization import from_json_graph_str


def load_saved(text: str) -> Any:
    """Load what `tvm.ir.save_json` of this very version made.

    `tvm.ir.load_json` looks through the text for what older versions wrote: that takes Python 20 ms
    for a scheduled product, several times for each trial.
    """
    return from_json_graph_str(text)
