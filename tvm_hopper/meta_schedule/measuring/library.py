"""Time the same product in cuBLAS, if torch is installed, for comparison."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from typing import Any

from . import artifact

NAME = "cuBLAS"


def find(
    request: Mapping[str, Any] | None, arguments: tuple[artifact.TensorArgument, ...]
) -> tuple[str, Callable[..., Any] | None]:
    """Return the name of a library and a call of its product; an empty name where there is none.

    - `request`: its `majors` tell of A and of B whether the sum runs along their rows ("k") or not
      ("mn"). None: the function is no plain product.
    - `arguments`: A, B and the output.
    """
    if request is None or importlib.util.find_spec("torch") is None:
        return "", None
    dtypes = [x.dtype for x in arguments]
    if len(set(dtypes)) > 1 or dtypes[0] not in ("float16", "bfloat16", "float32"):
        return "", None
    try:
        torch: Any = importlib.import_module("torch")
        device: Any = importlib.import_module("torch.cuda")
        if not device.is_available():
            return "", None
    except Exception:  # a torch that does not load is none
        return "", None
    transpose_a, transpose_b = request["majors"][0] != "k", request["majors"][1] == "k"

    def call(*values: Any) -> None:
        import tvm_ffi

        a, b, c = (torch.from_dlpack(x) for x in values)
        a, b = a.mT if transpose_a else a, b.mT if transpose_b else b
        stream = tvm_ffi.get_raw_stream(tvm_ffi.device("cuda", 0))
        with device.stream(device.ExternalStream(stream) if stream else None):
            torch.matmul(a, b, out=c)

    return NAME, call
