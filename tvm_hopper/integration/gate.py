"""Gate before TVM's default pipeline: sends marked functions to our lowering.

`tvm.compile`, `tvm.tirx.build`, `relax.build` and MetaSchedule's workers all take the factory in
`PIPELINE_MAP["s_tir"]`. The gate wraps whatever is there: a module with one of our annotations is
lowered by `tvm_hopper.pipeline`, any other by the wrapped factory. A function for a GPU that
touches tensors on the host is an error, whoever lowers it (`host_loops`). Heavy imports wait for
the first build.

TVM checks PassContext keys against a table that Python cannot extend. So its constructor passes
ours inside a TVM key that TVM does not read (`tvm_hopper.requests.options`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

NAME = "tvm_hopper"
_CONFIG = 4  # where `config` is among the arguments of PassContext

MIN_CACHED_FUNCTIONS = 4  # fewer are lowered about as fast as they are read

Factory = Callable[..., tuple[Any, ...]]


def gated(previous: Factory) -> Factory:
    """Wrap a pipeline factory: modules that request our lowering get it."""

    def factory(**options: object) -> tuple[Any, ...]:
        import tvm

        pipeline, finalize_host, finalize_device = previous(**options)
        halves = None

        @tvm.transform.module_pass(opt_level=0, name="tvm_hopper.Gate")
        def gate(mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
            nonlocal halves
            from tvm_hopper.integration import host_loops
            from tvm_hopper.requests import marks

            halves = None
            marked = marks.mark_requests(mod)
            host_loops.check_host_code(marked)
            if not any(map(marks.is_marked, marked.functions.values())):
                return pipeline(marked)
            from tvm_hopper import pipeline as ours
            from tvm_hopper.cuda_build import build, runtime
            from tvm_hopper.errors import LoweringError

            try:
                lowered = ours.remember(
                    "lowered", marked, lambda: ours.run(marked), least=MIN_CACHED_FUNCTIONS
                )
            except LoweringError as error:
                marked = ours.leave_refused(mod, error)
                if not any(map(marks.is_marked, marked.functions.values())):
                    return pipeline(marked)
                lowered = ours.Remembered(ours.run(marked))
            halves = build.Halves(build.Settings.of(marked), lowered)
            build.install()
            runtime.ensure()
            return lowered.module

        def host() -> tvm.transform.Pass:
            return finalize_host() if halves is None else halves.keep_host(finalize_host())

        def device() -> tvm.transform.Pass:
            return finalize_device() if halves is None else halves.join_device(finalize_device())

        return gate, host, device

    factory.gate_of = previous  # type: ignore[attr-defined]  # how `install` knows a gate
    return factory


def install() -> None:
    """Put the gate before the default pipeline, once."""
    from tvm.tirx.compilation_pipeline import PIPELINE_MAP

    if not hasattr(PIPELINE_MAP["s_tir"], "gate_of"):
        PIPELINE_MAP["s_tir"] = gated(PIPELINE_MAP["s_tir"])


def accept_options() -> None:
    """Let PassContext take the keys of our options and show them in its `config`, once."""
    from tvm.ir.transform import PassContext

    stock = PassContext.__init__
    if hasattr(stock, "gate_of"):
        return

    @functools.wraps(stock)
    def init(self: PassContext, *arguments: Any, **named: Any) -> None:
        from tvm_hopper.requests import options  # late: `import tvm` reads no options

        if len(arguments) > _CONFIG:
            config = options.to_carrier(arguments[_CONFIG])
            arguments = (*arguments[:_CONFIG], config, *arguments[_CONFIG + 1 :])
        elif "config" in named:
            named["config"] = options.to_carrier(named["config"])
        stock(self, *arguments, **named)

    stock_config = PassContext.config

    def config(self: PassContext) -> Any:
        from tvm_hopper.requests import options

        return options.from_carrier(stock_config.fget(self))

    init.gate_of = stock  # type: ignore[attr-defined]
    PassContext.__init__ = init
    PassContext.config = property(config, doc=stock_config.__doc__)


def register_named() -> None:
    """Register the pipeline under its own name, for `tir_pipeline="tvm_hopper"`."""
    from tvm.s_tir.pipeline import default_s_tir_pipeline
    from tvm.tirx import compilation_pipeline

    if NAME not in compilation_pipeline.PIPELINE_MAP:
        compilation_pipeline.register_tir_pipeline(NAME, gated(default_s_tir_pipeline))


def register_model_pipeline() -> None:
    """Register the Relax pipeline's name, for `relax_pipeline="tvm_hopper"`; it imports nothing."""
    from tvm.relax import pipeline

    if NAME not in pipeline.PIPELINE_MAP:
        pipeline.register_pipeline(NAME)(_make_model_pipeline)


def _make_model_pipeline(**options: Any) -> Any:
    from tvm_hopper.relax.lowering import model_pipeline

    return model_pipeline(**options)
