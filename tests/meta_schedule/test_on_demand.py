"""What a process finds that did no more than `import tvm`."""

import subprocess
import sys

import pytest
import tvm_ffi

from tvm_hopper.cuda_build import runtime
from tvm_hopper.errors import HopperError
from tvm_hopper.integration import on_demand

CODE = """
import sys
import tvm
from tvm_hopper.integration import autoload
autoload.register()  # what the entry point calls
assert tvm.get_global_func("tvm_hopper.rpc.measure") is not None
assert not [x for x in sys.modules if x.startswith("tvm_hopper.meta_schedule")]
try:
    tvm.get_global_func("tvm_hopper.rpc.measure")("{}", b"", b"", b"")
except Exception as error:
    assert "a server without a device" in str(error), error
    print("known")
"""


def test_the_function_that_clients_call_is_known_and_nothing_is_loaded_for_it():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True)
    assert done.stdout == "known\n", done.stderr


def test_both_mean_the_same_loader():
    assert on_demand.LOADER == runtime.LOADER


@pytest.fixture
def loader():
    """Keep what is registered as the loader of CUDA modules."""
    before = tvm_ffi.get_global_func(runtime.LOADER, allow_missing=True)
    yield
    if tvm_ffi.get_global_func(runtime.LOADER, allow_missing=True) is not None:
        tvm_ffi.registry.remove_global_func(runtime.LOADER)
    if before is not None:
        tvm_ffi.register_global_func(runtime.LOADER, before)


@pytest.mark.skipif(runtime.loadable("libcuda.so.1"), reason="here is a CUDA driver")
def test_a_library_with_kernels_says_what_is_missing(loader):
    on_demand.register()
    with pytest.raises(HopperError, match="library with CUDA kernels: found no CUDA driver"):
        tvm_ffi.get_global_func(runtime.LOADER)(b"")


def test_a_library_with_kernels_loads_the_runtime_first(loader, monkeypatch):
    """The runtime's own loader takes the place of ours, and gets the module."""

    def ensure():
        tvm_ffi.registry.remove_global_func(runtime.LOADER)
        tvm_ffi.register_global_func(runtime.LOADER, lambda data: f"loaded {len(data)} bytes")
        return True

    if tvm_ffi.get_global_func(runtime.LOADER, allow_missing=True) is not None:
        tvm_ffi.registry.remove_global_func(runtime.LOADER)
    on_demand.register()
    monkeypatch.setattr(runtime, "ensure", ensure)
    assert tvm_ffi.get_global_func(runtime.LOADER)(b"1234") == "loaded 4 bytes"


def test_a_loader_of_tvms_own_stays(loader):
    if tvm_ffi.get_global_func(runtime.LOADER, allow_missing=True) is not None:
        tvm_ffi.registry.remove_global_func(runtime.LOADER)
    tvm_ffi.register_global_func(runtime.LOADER, lambda data: "TVM's")
    on_demand.register()
    assert tvm_ffi.get_global_func(runtime.LOADER)(b"") == "TVM's"


def test_loading_the_runtime_makes_room_for_its_loader(loader, monkeypatch):
    """The library registers without replacing: what stands there would end the process."""
    if tvm_ffi.get_global_func(runtime.LOADER, allow_missing=True) is None:
        on_demand.register()
    seen = []
    monkeypatch.setattr(runtime, "is_loaded", lambda: False)
    monkeypatch.setattr(runtime, "loadable", lambda name: True)

    def load(**_named):
        seen.append(tvm_ffi.get_global_func(runtime.LOADER, allow_missing=True))
        raise OSError("not here")

    monkeypatch.setattr("tvm_ffi.libinfo.load_lib_ctypes", load)
    assert not runtime.ensure()
    assert seen == [None]
