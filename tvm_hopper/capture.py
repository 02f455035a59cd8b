"""Keep the final host and device module of each build of ours, found again by its CUDA source.

An executable holds CUDA text and machine code but no TIR, which `simulate`, `verify` and `explain`
need.  The text is the link: TVM hands it to `tvm_callback_cuda_postproc` in the thread that
builds, right after the modules were finalised there.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import BaseFunc, StringImm
from tvm.ir.transform import Pass, PassContext

from tvm_hopper import ir, keys, options, pipeline, request
from tvm_hopper.errors import HopperError

KEPT = 256  # builds; a tuning run makes thousands

_LATE_OPTIONS = (keys.VERIFY, keys.COMPILER, keys.CHECK_ASSEMBLER_LOG)
_TEXT_OPTIONS = (keys.COMPILER, keys.FAST_MATH, keys.CHECK_ASSEMBLER_LOG)
_POSTPROC = "tvm_callback_cuda_postproc"
_records: OrderedDict[str, Captured] = OrderedDict()
_lock = threading.Lock()
_building = threading.local()


@dataclass(frozen=True)
class Captured:
    """One CUDA module of ours: its text, and the TIR that it was printed from."""

    source: str
    host: tvm.IRModule  # every host function of the build
    device: tvm.IRModule  # our kernels alone
    compiler: str  # "nvrtc" or "nvcc"
    fast_math: bool
    check_assembler_log: bool
    strict: bool = False  # some function of the module is compiled so

    @property
    def key(self) -> str:
        """Return the hash under which the record is kept."""
        return source_hash(self.source)

    @property
    def kernels(self) -> tuple[str, ...]:
        """Return the names of the kernels, as the CUDA text has them."""
        return tuple(gv.name_hint for gv in self.device.functions)


@dataclass
class Build:
    """One build in progress: what the finalisers have seen so far."""

    settings: dict[str, object]
    host: tvm.IRModule | None = None
    devices: list[tvm.IRModule] = field(default_factory=list)

    def keep_host(self, finalize: Pass) -> Pass:
        """Wrap the host finaliser so that its result is kept."""

        def keep(mod: tvm.IRModule) -> None:
            self.host = mod
            self.devices = []

        return _then(finalize, keep)

    def keep_device(self, finalize: Pass) -> Pass:
        """Wrap the device finaliser so that our kernels are kept, and their text awaited."""

        def keep(mod: tvm.IRModule) -> None:
            if any(map(request.is_marked, mod.functions.values())):
                if self.settings[keys.VERIFY]:
                    self.check(mod)
                self.devices.append(mod)
                _building.current = self
                install()

        return _then(finalize, keep)

    def check(self, device: tvm.IRModule) -> None:
        """Run the final checks on each kernel, together with the host function that launches it."""
        hosts = self.host.functions.values() if self.host is not None else ()
        for gv, kernel in device.functions.items():
            launching = (host for host in hosts if _launches(host, gv.name_hint))
            host = next(launching, None)
            for check in pipeline.final_checks():
                check(kernel, host)


def _launches(host: BaseFunc, kernel: str) -> bool:
    return isinstance(host, tirx.PrimFunc) and bool(
        ir.find_all(host.body, StringImm, lambda text: text.value == kernel)
    )


def start(mod: tvm.IRModule) -> Build:
    """Begin a build: note the options of its marked functions that concern what comes after."""
    settings: dict[str, object] = {keys.FAST_MATH: options.fast_math()}
    for gv, func in mod.functions.items():
        if not request.is_marked(func):
            continue
        for name in _LATE_OPTIONS:
            value = options.read(name, func)
            if settings.setdefault(name, value) != value:
                raise HopperError(
                    f"{gv.name_hint}: found {name} = {value!r} beside {settings[name]!r} in the "
                    f"same module; need one value, since kernels are compiled together"
                )
        settings[keys.STRICT] = settings.get(keys.STRICT, False) or options.read(keys.STRICT, func)
    return Build(settings)


def _then(finalize: Pass, keep: Callable[[tvm.IRModule], None]) -> Pass:
    @tvm.transform.module_pass(opt_level=0, name="tvm_hopper.Capture")
    def _capture(mod: tvm.IRModule, _ctx: PassContext) -> tvm.IRModule:
        mod = finalize(mod)
        keep(mod)
        return mod

    return _capture


def source_hash(source: str) -> str:
    """Return the hash that names a CUDA text."""
    return hashlib.sha256(source.encode()).hexdigest()


def install() -> None:
    """Listen to TVM's CUDA texts; whatever listened before us is still asked."""
    global _listener
    previous = tvm_ffi.get_global_func(_POSTPROC, allow_missing=True)
    if previous is not None and _listener is not None and previous.same_as(_listener):
        return

    def listen(code: str, target: object) -> str:
        if previous is not None:
            code = previous(code, target)
        return _keep(str(code), str(target))

    tvm_ffi.register_global_func(_POSTPROC, listen, override=True)
    _listener = tvm_ffi.get_global_func(_POSTPROC)


_listener: tvm_ffi.Function | None = None


def _keep(source: str, target: str) -> str:
    """Record a text of ours and return it, headed by the options that it is compiled with.

    The text is all that an executable keeps, so it has to tell two builds apart.
    """
    build = getattr(_building, "current", None)
    if build is None:
        return source
    matching = [
        device
        for device in build.devices
        if all(str(func.attrs["target"]) == target for func in device.functions.values())
    ]
    if not matching:
        return source
    device = matching[0]
    settings = ", ".join(f"{name}={build.settings[name]}" for name in _TEXT_OPTIONS)
    source = f"// {settings}\n{source}"
    build.devices.remove(device)
    if not build.devices:
        _building.current = None
    record = Captured(
        source,
        build.host,
        device,
        compiler=str(build.settings[keys.COMPILER]),
        fast_math=bool(build.settings[keys.FAST_MATH]),
        check_assembler_log=bool(build.settings[keys.CHECK_ASSEMBLER_LOG]),
        strict=bool(build.settings[keys.STRICT]),
    )
    with _lock:
        _records[record.key] = record
        _records.move_to_end(record.key)
        while len(_records) > KEPT:
            _records.popitem(last=False)
    return source


def find(source: str) -> Captured | None:
    """Return the record of a CUDA text, if it was built here and is still kept."""
    with _lock:
        return _records.get(source_hash(source))


def cuda_sources(executable: object) -> list[str]:
    """Return the CUDA texts inside an executable or a runtime module, ours or not."""
    module = getattr(executable, "mod", executable)
    if not isinstance(module, tvm.runtime.Module):
        raise TypeError(
            f"capture: found {type(executable).__name__}; need what tvm.compile returned"
        )
    found, queue = [], [module]
    while queue:
        current = queue.pop(0)
        if current.kind == "cuda":
            found.append(str(current.inspect_source()))
        queue.extend(current.imports)
    return found


def lookup_all(executable: object) -> list[Captured]:
    """Return the records of every CUDA module of ours in an executable; refuse a foreign one."""
    sources = cuda_sources(executable)
    if not sources:
        raise HopperError(
            "executable: found no CUDA module; need one built for a cuda target with tvm_hopper"
        )
    records = [record for record in map(find, sources) if record is not None]
    if records:
        return records
    if not any(sources):
        found = "CUDA binaries without their text (loaded from a file)"
    else:
        found = f"{len(sources)} CUDA module(s) that this process did not lower with tvm_hopper"
    raise HopperError(
        f"executable: found {found}; need one that this process built from an annotated function "
        f"(the last {KEPT} builds are kept); build it here, or pass the TIR module itself"
    )


def lookup(executable: object) -> Captured:
    """Return the one record of an executable; refuse a foreign one and one with several."""
    records = lookup_all(executable)
    if len(records) > 1:
        names = ", ".join(name for record in records for name in record.kernels)
        raise HopperError(
            f"executable: found {len(records)} CUDA modules of ours ({names}); need one; "
            "use tvm_hopper.capture.lookup_all"
        )
    return records[0]
