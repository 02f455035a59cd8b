"""PyTorch: kernels as custom operators, and the backend "tvm_hopper" of `torch.compile`.

    gemm = tvm_hopper.torch.op(ex, "mine::gemm")        # an operator with fake tensors
    model = torch.compile(model, backend="tvm_hopper")  # graphs through Relax

The import needs neither PyTorch nor TVM's compiler; a function that lacks one of them says so.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .dynamo_backend import backend as backend
    from .graph_report import report as report
    from .operators import op as op
    from .signatures import Parameter as Parameter, Signature as Signature

_NAMES = {
    "Parameter": "signatures",
    "Signature": "signatures",
    "backend": "dynamo_backend",
    "op": "operators",
    "report": "graph_report",
}
__all__ = ["Parameter", "Signature", "backend", "op", "report"]


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in _NAMES:
            raise AttributeError(f"module 'tvm_hopper.torch' has no attribute {name!r}")
        found = getattr(importlib.import_module(f"{__name__}.{_NAMES[name]}"), name)
        globals()[name] = found
        return found
