"""Load a saved file where TVM's CUDA runtime and the chip are made up; print what happens.

python _load_with_fakes.py FILE FUNCTION
"""

import functools
import importlib.util
import sys
from pathlib import Path

import numpy as np
import tvm_ffi

import tvm_hopper
from tvm_hopper.cuda_build import runtime

CHIPS = {"NVIDIA H200": "9.0", "NVIDIA A100-SXM4-80GB": "8.0", "NVIDIA B200": "10.0"}
folder = importlib.util.find_spec("tvm").submodule_search_locations[0]
assert runtime.loadable(f"{folder}/lib/libtvm_runtime.so")
runtime.ensure_alone = lambda: True
loaded = []


def load_cuda(data: bytes) -> object:
    loaded.append(data)
    return tvm_ffi.system_lib("nobody_has_this_prefix_")


tvm_ffi.register_global_func("ffi.Module.load_from_bytes.cuda", load_cuda, override=True)
for chip, version in CHIPS.items():
    answers = {4: version, 5: chip}
    ask = functools.partial(lambda said, kind, number, what: said[what], answers)
    tvm_ffi.register_global_func("runtime.GetDeviceAttr", ask, override=True)
    try:
        saved = tvm_hopper.load(sys.argv[1])
        print(f"{chip}: loaded")
        tensor = tvm_ffi.from_dlpack(np.zeros((4, 4), "float16"))
        saved[sys.argv[2]](tensor, tensor, tensor)
    except (ValueError, RuntimeError) as error:
        print(str(error).splitlines()[0])
try:
    if "saved" in globals():
        saved["absent"]
except tvm_hopper.HopperError as error:
    print(error)
assert b"\x7fELF" in loaded[0]
assert b"__global__" not in loaded[0]
maps = Path("/proc/self/maps").read_text()
assert "libtvm_runtime" in maps
assert "libtvm_compiler" not in maps
assert "nvrtc" not in maps
assert "tvm" not in sys.modules
