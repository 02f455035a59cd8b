"""The CUDA build step for our kernels.

TVM builds CUDA modules one by one, each by the global function `target.build.cuda`:

    target.build.cuda(module, target)
      tvm_callback_cuda_postproc(text, target)     what listeners make of the printed text
      tvm_callback_cuda_compile(text)              where CUDA's runtime is there, else never

All of it happens in one call, in one thread.  A module of ours is checked before that call,
and known inside of it; there its text is recorded, compiled as its build asked, and the log is
checked.  Any other module goes through with the callbacks that were there before.  TVM's functions
are wrapped when the first kernel of ours is lowered, not at import; `integration/foreign.py`, which
is requested kernels of TVM's own, is after them.

TVM hands the finalised device module to this step as it is.  What else the step needs, the host
half and the options, travels on that module as an attribute.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import StringImm
from tvm.ir.transform import Pass, PassContext

from tvm_hopper import disk_cache, ir, pipeline
from tvm_hopper.codegen_patches.extremes import add_extremes
from tvm_hopper.codegen_patches.trigonometry import add_trigonometry
from tvm_hopper.errors import CompileError, HopperError
from tvm_hopper.pipeline import Remembered, remember_half
from tvm_hopper.requests import keys, marks, options
from tvm_hopper.requests.targets import arch_of

from . import records
from .records import BuildRecord
from .source_lines import with_lines

BUILD = "target.build.cuda"
POSTPROC = "tvm_callback_cuda_postproc"
COMPILE = "tvm_callback_cuda_compile"
ATTR = "tvm_hopper.build"  # on a device module, between the finalisers and this step


@dataclass(frozen=True)
class Settings:
    """Build settings of a module's marked functions."""

    compiler: str
    fast_math: bool
    checks: str
    strict: bool  # some function of the module is compiled so
    line_info: str = ""  # folder for their TIR

    @staticmethod
    def of(mod: tvm.IRModule) -> Settings:
        """Read the options of a module's marked functions; refuse two values of one."""
        values: dict[str, Any] = {}
        strict = False
        for gv, func in mod.functions.items():
            if not marks.is_marked(func):
                continue
            for name in (keys.CHECKS, keys.COMPILER, keys.LINE_INFO):
                value = options.read(name, func)
                if values.setdefault(name, value) != value:
                    raise HopperError(
                        f"{gv.name_hint}: found {name} = {value!r} next to {values[name]!r} in the "
                        f"same module; need one value, since kernels are compiled together"
                    )
            strict = strict or bool(options.read(keys.STRICT, func))
        return Settings(
            compiler=str(values[keys.COMPILER]),
            fast_math=options.fast_math(),
            checks=str(values[keys.CHECKS]),
            strict=strict,
            line_info=str(values[keys.LINE_INFO]),
        )

    def header(self) -> str:
        """Return the first line of a text, which alone tells builds of one kernel apart."""
        return (
            f"// {keys.COMPILER}={self.compiler}, {keys.FAST_MATH}={self.fast_math}, "
            f"{keys.CHECKS}={self.checks}\n"
        )

    def requires(self, check: str) -> bool:
        """Tell whether the build is to pass a check, one of the values of `keys.CHECKS`."""
        return self.checks in ("all", check)


# -- what the finalisers hand over


@dataclass
class Halves:
    """The two finalisers of one build: they leave host half and settings on the device module."""

    settings: Settings
    lowered: Remembered  # which both halves come from
    host: Remembered | None = None

    def keep_host(self, finalize: Pass) -> Pass:
        """Wrap the host finaliser so that its result is known to the other."""

        def keep(mod: tvm.IRModule) -> tvm.IRModule:
            self.host = remember_half("host", mod, self.lowered, finalize)
            return self.host.module

        return _named(keep)

    def join_device(self, finalize: Pass) -> Pass:
        """Wrap the device finaliser so that a module of ours carries what the build step needs."""

        def join(mod: tvm.IRModule) -> tvm.IRModule:
            half = remember_half("device", mod, self.lowered, finalize)
            if not _is_ours(half.module):
                return half.module
            host = self.host or Remembered(tvm.IRModule({}))
            noted = {**asdict(self.settings), "host": host.module, "device": half.module}
            if host.key is not None and half.key is not None:
                noted["checked"] = disk_cache.key_of("checked", host.key, half.key)
            return half.module.with_attr(ATTR, noted)

        return _named(join)


def _named(change: Callable[[tvm.IRModule], tvm.IRModule]) -> Pass:
    @tvm.transform.module_pass(opt_level=0, name="tvm_hopper.HandOver")
    def _hand_over(mod: tvm.IRModule, _ctx: PassContext) -> tvm.IRModule:
        return change(mod)

    return _hand_over


def _is_ours(mod: tvm.IRModule) -> bool:
    return any(map(marks.is_marked, mod.functions.values()))


# -- the step


@dataclass
class ModuleBuild:
    """One module of ours, while TVM prints and compiles it."""

    module: tvm.IRModule  # as TVM handed it over
    host: tvm.IRModule
    settings: Settings
    checked: str | None = None  # the entry on disk that says that this has passed the checks
    is_printed: bool = False
    record: BuildRecord | None = None  # from when its text is known

    @staticmethod
    def of(mod: tvm.IRModule) -> ModuleBuild:
        """Read what the finalisers left; without it, options are those of the PassContext."""
        noted = mod.attrs[ATTR] if mod.attrs is not None and ATTR in mod.attrs else None
        if noted is None:
            return ModuleBuild(mod, tvm.IRModule({}), Settings.of(mod))
        values: dict[str, Any] = {str(name): options.plain(x) for name, x in noted.items()}
        host, device, checked = (values.pop(x, None) for x in ("host", "device", "checked"))
        if not Remembered(device, checked).holds(mod):
            checked = None
        return ModuleBuild(mod, host, Settings(**values), checked)

    def check(self) -> None:
        """Run the final checks on each kernel, together with the host function that launches it."""
        if not self.settings.requires(keys.SYNCHRONIZATION):
            return
        if self.checked is not None and disk_cache.get(self.checked) is not None:
            return
        hosts: dict[str, tirx.PrimFunc] = {}  # by the texts in them, which name their kernels
        for func in self.host.functions.values():
            if isinstance(func, tirx.PrimFunc):
                for text in ir.find_all(func.body, StringImm):
                    hosts.setdefault(str(text.value), func)
        for gv, kernel in self.module.functions.items():
            host = hosts.get(gv.name_hint)
            for check in pipeline.passes.final_checks():
                check(kernel, host)
        if self.checked is not None:
            disk_cache.put(self.checked, b"clean")

    def keep(self, text: str) -> str:
        """Record the printed text and return it, headed by the options that it is compiled with."""
        settings = self.settings
        kernels = [f for f in self.module.functions.values() if isinstance(f, tirx.PrimFunc)]
        if settings.line_info:
            text = with_lines(text, tvm.IRModule(self.module.functions), settings.line_info)
        self.record = BuildRecord(
            settings.header() + add_trigonometry(add_extremes(text, kernels)),
            self.host,
            tvm.IRModule(self.module.functions),
            compiler=settings.compiler,
            fast_math=settings.fast_math,
            check_assembler_log=settings.requires(keys.ASSEMBLER_LOG),
            strict=settings.strict,
            arch=next(arch_of(f) for f in self.module.functions.values() if marks.is_marked(f)),
        )
        records.keep(self.record)
        return self.record.source

    def compile(self, text: str) -> bytes:
        """Compile the text that TVM ended up with; refuse what the assembler had to fix.

        TVM tells PTX from a cubin by its first character, a slash.
        """
        assert self.record is not None, f"TVM called {COMPILE} without {POSTPROC}"
        return replace(self.record, source=text).compile().image


_building = threading.local()  # `step`: what this thread builds, inside of `target.build.cuda`


def _current() -> ModuleBuild | None:
    return getattr(_building, "step", None)


@contextmanager
def _during(step: ModuleBuild | None) -> Iterator[None]:
    outer = _current()
    _building.step = step
    try:
        yield
    finally:
        _building.step = outer


# -- before TVM's functions


def install() -> None:
    """Stand before TVM's three functions, whatever is there; what is ours already, stays."""
    with _lock:
        _stand_before(BUILD, _build)
        _stand_before(POSTPROC, _postprocess)
        _stand_before(COMPILE, _compile)


_lock = threading.Lock()
_ours: dict[str, tvm_ffi.Function] = {}


def _stand_before(name: str, make: Callable[[Any], Callable[..., Any]]) -> None:
    previous = tvm_ffi.get_global_func(name, allow_missing=True)
    if previous is not None and name in _ours and previous.same_as(_ours[name]):
        return
    tvm_ffi.register_global_func(name, make(previous), override=True)
    _ours[name] = tvm_ffi.get_global_func(name)


def _build(previous: Any) -> Callable[..., Any]:
    def build_cuda(mod: tvm.IRModule, target: tvm.target.Target) -> Any:
        running = _current()
        if running is not None and running.module.same_as(mod):
            return previous(mod, target)  # another wrapper is between two of ours
        if not _is_ours(mod):
            with _during(None):
                return previous(mod, target)
        step = ModuleBuild.of(mod)
        step.check()
        install()  # the last word on the text: it has to be the one that is recorded
        with _during(step):
            return previous(mod, target)

    return build_cuda


def _postprocess(previous: Any) -> Callable[..., Any]:
    def postprocess(code: str, target: Any) -> str:
        step = _current()
        is_last = step is not None and not step.is_printed  # the outermost, of several of ours
        if step is not None:
            step.is_printed = True
        if previous is not None:
            code = previous(code, target)
        return step.keep(str(code)) if step is not None and is_last else code

    return postprocess


def _compile(previous: Any) -> Callable[..., Any]:
    def compile_cuda(code: str) -> bytes:
        step = _current()
        if step is not None:
            return step.compile(str(code))
        if previous is None:
            raise CompileError(f"{COMPILE}: found no compiler; need one for a foreign kernel")
        return previous(code)

    return compile_cuda
