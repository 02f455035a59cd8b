"""Load an exported library where the package is hidden, and run its functions.

python _load_exported.py LIBRARY.so [--gpu]
"""

import importlib.metadata
import sys

importlib.metadata.entry_points = lambda **_: ()  # nothing is installed


class _Hidden:
    """Make `import tvm_hopper` fail, as it does where the package is not installed."""

    def find_spec(self, name: str, *_: object) -> None:
        if name.split(".")[0] == "tvm_hopper":
            raise ModuleNotFoundError(name)


sys.meta_path.insert(0, _Hidden())

import numpy as np  # noqa: E402
import tvm  # noqa: E402

if tvm.get_global_func("ffi.Module.load_from_bytes.cuda", allow_missing=True) is None:
    # TVM refuses any library with a kernel where it has no CUDA runtime: stand in for its loader.
    empty = tvm.compile(tvm.IRModule({}), target="llvm").mod
    tvm.register_global_func("ffi.Module.load_from_bytes.cuda", lambda _: empty)
library = tvm.runtime.load_module(sys.argv[1])
a = np.arange(64, dtype="float32")
b = tvm.runtime.tensor(np.zeros(64, "float32"))
library["double_it"](tvm.runtime.tensor(a), b)
np.testing.assert_array_equal(b.numpy(), 2 * a)
if "--gpu" in sys.argv:
    x = (np.random.default_rng(0).integers(-2, 3, (2, 256, 256))).astype("float16")
    device = tvm.cuda(0)
    p, q = (tvm.runtime.tensor(part, device) for part in x)
    c = tvm.runtime.tensor(np.full((256, 256), np.nan, "float32"), device)
    library["gemm"](p, q, c)
    np.testing.assert_array_equal(c.numpy(), x[0].astype("float32") @ x[1].astype("float32").T)
assert "tvm_hopper" not in sys.modules
print("ran")
