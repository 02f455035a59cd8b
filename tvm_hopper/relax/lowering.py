"""The Relax pass list: from a model to kernels, in order, with a reason for each pass.

    ex = relax.build(mod, target="nvidia/nvidia-h200", relax_pipeline="tvm_hopper")

TVM's own pipeline for CUDA is around ours: libraries are dispatched before, memory is planned
after it.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.ir import GenericConst
from tvm.relax.backend.cuda import pipeline as stock
from tvm.target import Target

from tvm_hopper import ir
from tvm_hopper.dlight.rule import remember_schedules
from tvm_hopper.errors import cannot_configure, warn
from tvm_hopper.pipeline import remember
from tvm_hopper.requests.tags import ARCH, GENERIC_ARCH
from tvm_hopper.requests.targets import is_ours, name_target, target_arch

from .channels_last import ChannelsLast
from .check_served import CheckServed
from .elements_first import ElementsFirst, TransposesLast
from .flatten_batch import FlattenBatch
from .fuse_decoders import FuseDecoders
from .fuse_gates import FuseGates
from .fuse_lookups import FuseLookups
from .fuse_memory_bound import FuseMemoryBound
from .fuse_transposes import FuseTransposes
from .join_attention import JoinAttention
from .keep_records import KeepRecords
from .mutator_passes import JoinEqual
from .narrow_activations import NarrowActivations
from .options import WHERE, ModelOptions, as_options
from .pad_operands import PadOperands
from .peel_views import PeelViews
from .row_places import RowPlaces
from .schedule_functions import ScheduleFunctions
from .simplify_operands import SimplifyOperands
from .slice_splits import SliceSplits
from .space_to_depth import SpaceToDepth
from .wide_functions import WideFunctions
from .wide_scans import WideScans

MAX_CONSTANT_BYTES = 1 << 24


def operand_passes(options: ModelOptions) -> list[Any]:
    """Return the passes that decide on operators how operands lie in memory."""
    return [
        SliceSplits(),  # parts that are looked at are read where they lie
        ElementsFirst(),  # what lies between a product and its view is part of its kernel
        JoinAttention(options),  # one function, whose scores are never stored
        SpaceToDepth(),  # colour images have more channels, and no stride
        ChannelsLast(),  # TMA loads channels that lie next to each other
        SimplifyOperands(),  # weights are neither repeated for a batch nor transposed before a cast
        ElementsFirst(),  # casts for what was joined, too
        JoinEqual(),  # one transpose, of which all readers count
        TransposesLast(),  # images that lie alike are added as they lie
        PadOperands(),  # tensor copies take rows of multiples of 16 bytes
        JoinEqual(),  # operands are cast once for all their readers
        FuseTransposes(),  # weights stay as they lie, instead of a copy a call
    ]


def prepare_passes(options: ModelOptions) -> list[Any]:
    """Return the passes that turn a model into functions in plain loops, after library dispatch."""
    return [
        *operand_passes(options),
        WideFunctions(),  # activations and norms in float32, where TVM has them in 16 bits
        RowPlaces(),  # of rows of -inf TVM says -1
        relax.transform.LegalizeOps(),
        relax.transform.AnnotateTIROpPattern(),
        relax.transform.FoldConstant(),
        relax.transform.FuseOps(),
        PeelViews(),  # a product's tiles are stored as they are
        relax.transform.FuseTIR(),
        relax.transform.RewriteDataflowReshape(),  # views, before they become kernels
        NarrowActivations(),  # where `to_half` asks for it
        FuseLookups(options),  # experts are read where they lie
        FuseMemoryBound(options),  # a norm and what it reads, several reductions of a row
        FlattenBatch(),  # batch and sequence are rows
        relax.transform.DeadCodeElimination(),  # functions and views that nothing reads any more
        FuseDecoders(options),  # weights of a few bits are never in memory as 16
        FuseGates(options),  # what a gate opens, in the kernel of both products
        relax.transform.DeadCodeElimination(),
    ]


def dispatch_passes(target: Target) -> list[Any]:
    """Return TVM's passes that give operators to libraries and to kernels of its own."""
    return [WideScans(), *stock.library_dispatch_passes(target)]


def legalize_passes(options: ModelOptions) -> list[Any]:
    """Return the passes that replace TVM's `legalize_passes` for CUDA."""
    return [
        *prepare_passes(options),
        ScheduleFunctions(options),  # a kernel each, ours where a rule of ours takes the function
        CheckServed(),  # a function without a kernel would run on the host
        KeepRecords(),  # for `report`, on the executable too
    ]


def finalize_passes(target: Target, options: ModelOptions) -> list[Any]:
    """Return TVM's passes that plan memory, and CUDA graphs where they are asked for."""
    passes = stock.finalize_passes(target)
    if not options.graph:
        return passes

    @tvm.transform.module_pass(opt_level=0, name="tvm_hopper.FinalizeWithGraphs")
    def run(mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        config = {**ctx.config, "relax.backend.use_cuda_graph": True}
        with tvm.transform.PassContext(ctx.opt_level, config=config):
            return tvm.transform.Sequential(passes)(mod)

    return [run]


def scheduling_passes(target: Target, options: ModelOptions) -> list[Any]:
    """Return the passes that schedule a model's functions and record those that no rule takes."""
    passes = [*prepare_passes(options), ScheduleFunctions(options)]
    return [*dispatch_passes(target), *passes]


def prepare(mod: tvm.IRModule, target: Any = None) -> tvm.IRModule:
    """Return a model as it is before scheduling: functions in plain loops, and calls of them.

    Tuning works on these functions, so that a build finds its records.

    Parameters
    ----------
    mod : IRModule
        A Relax model.
    target : Target, str or dict, optional
        The target; None: the one in scope.

    Raises
    ------
    OptionError
        There is no target, or `mod` is no module.
    """
    where = Target.current(allow_none=True) if target is None else Target(target)
    if where is None:
        need = f"a cuda target with arch {ARCH}"
        fix = 'give it: prepare(mod, "nvidia/nvidia-h200")'
        raise cannot_configure("relax.prepare", "no target", need, fix)
    if not isinstance(mod, tvm.IRModule):
        raise cannot_configure("relax.prepare", f"{mod!r}"[:80], "a Relax module")
    with where:
        passes = [*dispatch_passes(where), *prepare_passes(ModelOptions())]
        return tvm.transform.Sequential(passes)(mod)


def model_pipeline(**given: Any) -> tvm.transform.Pass:
    """Return the Relax pipeline that is registered as "tvm_hopper".

    Parameters
    ----------
    given
        Options, see `ModelOptions`: accumulate, batch_invariant, classes, database, graph.

    Raises
    ------
    OptionError
        An option is unknown, or its value is illegal.
    """
    options = as_options(given)

    @tvm.transform.module_pass(opt_level=0, name="tvm_hopper.Model")
    def run(mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        target = Target.current(allow_none=True)
        if target is None:
            raise cannot_configure(
                WHERE, "no target", f"a cuda target with arch {ARCH}",
                'give it: relax.build(mod, target="nvidia/nvidia-h200", ...)',
            )  # fmt: skip
        if not is_ours(target):
            _warn_of_target(target)
            return relax.get_default_pipeline(target)(mod)
        passes = [
            *dispatch_passes(target),
            *legalize_passes(options),
            *stock.dataflow_lower_passes(target),
            *finalize_passes(target, options),
        ]

        def lower() -> tvm.IRModule:
            with remember_schedules():  # what is fused on trial is scheduled in the end
                return tvm.transform.Sequential(passes)(mod)

        if options.database is not None or not _is_light(mod):
            return lower()
        return remember("model", mod, lower, repr(options)).module

    return run


def _is_light(mod: tvm.IRModule) -> bool:
    """Tell whether a model's constants are few enough to be part of a key."""
    functions = [x for x in mod.functions.values() if isinstance(x, relax.Function)]
    values = (x.value for f in functions for x in ir.find_all(f.body, GenericConst))
    tensors = (x for x in values if isinstance(x, tvm.runtime.Tensor))
    return sum(x.numpy().nbytes for x in tensors) <= MAX_CONSTANT_BYTES


def _warn_of_target(target: Target) -> None:
    from tvm_hopper.dlight.rule import warn_of_generic_arch

    if target_arch(target) == GENERIC_ARCH:
        warn_of_generic_arch()
        return
    warn(
        f"{WHERE}: found target {name_target(target)}; need cuda {ARCH}; TVM's own pipeline "
        "computes all of it",
        stacklevel=2,
    )
