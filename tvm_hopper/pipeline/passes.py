"""The lowering, as a table of contents: TVM's own pass list, with ours at four places of it.

TVM's list stands in `stock.py`; it depends on the PassContext:

      -> early_passes()     functions as they are scheduled
    stock passes, up to exact buffer regions
      -> hook_passes()      blocks and regions become barriers, TMA and WGMMA instructions
    s_tir.InjectSoftwarePipeline ... s_tir.InjectDoubleBuffer
      -> late_passes()      shared buffers become one allocation with final offsets
    tirx.StorageRewrite ... tirx.SplitHostDevice, tirx.MakePackedAPI ...
      -> host_passes()      checks of the arguments, and the device that they are on

Our passes see only the functions that carry the mark of `marks.mark_requests`; every other
function of the module goes through the stock list as it is.

Every prefix of hook_passes() gives a right, slower kernel if InsertSyncs and LowerChannels, which
realise what is open, follow it (`tests/sim_kernels/test_prefixes.py`). RefuseLeftovers belongs to
the whole list: it refuses what none of the passes acted on. MergeShared is always needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import tvm
from tvm import tirx
from tvm.ir import BaseFunc
from tvm.ir.transform import Pass, PassContext

from tvm_hopper.requests import marks
from tvm_hopper.requests.targets import find_processor

from .checks import check_well_formed
from .stock import stock_passes

# The passes that act on a processor without threads, too; the others are about those.
ON_EVERY_PROCESSOR = {
    "tvm_hopper.LowerCopies",
    "tvm_hopper.PlanPipeline",
    "tvm_hopper.ExpandPipeline",
    "tvm_hopper.InsertSyncs",
    "tvm_hopper.LowerChannels",
    "tvm_hopper.RefuseLeftovers",
}
HOOK = "s_tir.InjectSoftwarePipeline"
LATE = "s_tir.InjectDoubleBuffer"  # the pass before StorageRewrite, which an option can leave out


def early_passes() -> list[Pass]:
    """List the passes that run on functions as they are scheduled, before TVM's first."""
    from tvm_hopper import transforms

    return [
        transforms.SimplifyRegisterIndices(),  # TVM sizes registers by their indices' ranges
    ]


def hook_passes() -> list[Pass]:
    """List the passes that run where regions are exact and blocks still exist, in order."""
    from tvm_hopper import transforms

    return [
        transforms.RestoreAxisNotes(),  # unification left annotations of bound loops on unit loops
        transforms.AskCaller(),  # before anything is noted of a kernel: one becomes two
        transforms.AddAnyOrder(),  # copies are requests yet: they become reductions
        transforms.NoteRows(),  # for `explain` alone
        transforms.CompactTiles(),  # what TVM gave no static extent, before copies look at it
        transforms.KeepConditions(),  # before any copy is looked at: its condition is part of it
        transforms.ResolveBounds(),  # the passes below read plain indices of compact buffers
        transforms.LoadFragments(),  # vectors and registers of a lane from here on, as others have
        transforms.OwnRegisters(),  # vectors are cut by what is left of an index: a thread's part
        transforms.HoistInitials(),  # a thread without rows has its sums' initial values, too
        transforms.SumOnline(),  # whole loops over parts of rows, before a tail comes apart
        transforms.ValuesAhead(),  # loops that ask for rows still say so
        transforms.StageRows(),  # what a turn loads is a block yet, with its condition
        transforms.PrefetchRows(),  # what a turn loads is a block yet, with its condition
        transforms.SplitTails(),  # of a condition on an element TVM makes a loop over all
        transforms.GatherVectors(),  # while a thread's elements are a loop, and conditions simple
        transforms.DivideByRows(),  # while stores still name the row that they belong to
        transforms.UnstageRows(),  # the next cuts what is staged to what a thread block has of it
        transforms.SpreadRows(),  # registers are a thread's own; the next asks who reduces together
        transforms.MergeMoments(),  # who reduces together is known, and each sum is a call yet
        transforms.ReduceAcrossThreads(),  # stock passes reduce by two barriers, and only warps
        transforms.GuardTurns(),  # what a turn sends and waits for is in it, and no copy is yet
        transforms.SkewTurns(),  # a turn is one condition and one wait for its cluster
        transforms.ExpandInner(),  # a loop's stages count what pipelines inside of it come apart to
        transforms.CutVectors(),  # of 16 bytes at most, which the swizzle leaves whole
        transforms.IndexRows(),  # what fragments are loaded from follows its tile from here on
        transforms.WidenFunctions(),  # those that stay are of types that CUDA has them for
        transforms.ShortenFunctions(),  # each element's value stands once, its register not yet
        transforms.StageInPlace(),  # whole tiles yet, in the order of the program
        transforms.HoistConditions(),  # what is left of a condition a store's mechanism serves
        transforms.SelectCopies(),  # dealt out to threads or not, a copy is a tile from here on
        transforms.LayoutShared(),  # early: descriptors and boxes follow the panels chosen here
        transforms.LowerMma(),  # the accumulator goes to registers, rows and columns to threads
        transforms.FuseThreads(),  # roles and elections number the threads along one axis
        transforms.LowerCopies(),  # copies become boxes of a tensor map, without a barrier yet
        transforms.BindAcrossBlocks(),  # what combines in memory is known now
        transforms.ShareSums(),  # before trips are counted: each block of a cluster has its own
        transforms.PlanPipeline(),  # loads get slots, and trips are counted
        transforms.SpecializeWarps(),  # or not: a producer, and consumers that it hands slots to
        transforms.ScheduleTiles(),  # the passes above reason about plain block indices
        transforms.SkewStages(),  # the numbers of trips are final, who gives slots back is known
        transforms.ExpandPipeline(),  # where there is no producer, loads run ahead in the loop
        transforms.OverlayShared(),  # what is dead before another array lives may give it room
        transforms.InsertSyncs(),  # what a role has to wait for depends on all of the above
        transforms.ShareLoads(),  # last of what is right without: each block loads for itself
        transforms.LowerChannels(),  # slots that are handed over become mbarriers
        transforms.BesideProducts(),  # where products are waited for, and what threads then do
        transforms.PairStores(),  # pointers are asked for by no pass below
        transforms.WidenIndices(),  # accesses are final: large tensors are indexed by 64 bits
        transforms.LimitRegisters(),  # threads are final
        transforms.LaunchTogether(),  # so are thread blocks, and clusters that share something
        transforms.NoteChoices(),  # nobody asks for the mark of such a kernel any more
        transforms.WaitForLaunches(),  # vectors are loads yet, and stand in their order
        transforms.UnrollRegisters(),  # no pass below makes a loop
        transforms.HintVectors(),  # vectors become instructions, which no pass above looks for
        transforms.RefuseLeftovers(),  # last: what no pass acted on would fall away in silence
    ]


def late_passes() -> list[Pass]:
    """List the passes that run on flat buffers, before TVM could merge or alias them."""
    from tvm_hopper import transforms

    return [
        transforms.SplitWarps(),  # TVM takes threadIdx.x for a warp where buffers belong to one
        transforms.LowerWarpMemory(),  # TVM's own leaves whole fragments to each of its lanes
        transforms.MeetBehindLoops(),  # pipelines are apart, and TVM's barriers not placed yet
        transforms.MergeShared(),  # TVM would overlap what copies in flight still read and write
    ]


def host_passes() -> list[Pass]:
    """List the passes after all of TVM's.

    They act on both halves of functions that are ours; the last on kernels, as they are printed.
    """
    from tvm_hopper import transforms

    return [
        transforms.OwnWorkspace(),  # what lies between two kernels outlives the call, on its stream
        transforms.LoadInOrder(),  # TVM marks every kernel that it splits off
        transforms.AssertLimits(),  # a launch that is too large is an error that says of what
        transforms.SkipEmpty(),  # TVM's barriers stand, and what is counted says so yet
        transforms.CountBlocks(),  # only now is the device of a call known
        transforms.JoinConditions(),  # conditions are written out; the next looks for neighbours
        transforms.UnpackPairs(),  # registers have their numbers, and share what is dead
        transforms.ForbidContraction(),  # no pass behind it looks for sums
        transforms.AssertAlignment(),  # kernels are final: which accesses are vectors is known
    ]


def final_checks() -> list[Callable[[tirx.PrimFunc, tirx.PrimFunc | None], object]]:
    """List the checks of what will be printed: each takes a kernel and the host function of it.

    They run in every build unless the option `tvm_hopper.verify` is off, and raise a HopperError.
    """
    from tvm_hopper.static_check import require_room, require_sync

    return [
        require_room,  # what threads copy gets its slots from TVM, and the driver says nothing
        require_sync,  # what the assembler mends without a word, and what would hang or race
    ]


# -- TVM's side, and where ours go


def names(passes: Iterable[Pass]) -> list[str]:
    """Return the names of passes, in order."""
    return [p.info.name for p in passes]


def full_list() -> list[Pass]:
    """List every pass of a build of ours, in order, under the current PassContext."""
    passes: list[Pass] = [*map(on_our_functions, early_passes())]
    for p in stock_passes():
        if p.info.name == HOOK:
            passes += map(on_our_functions, hook_passes())
        passes.append(p)
        if p.info.name == LATE:
            passes += map(on_our_functions, late_passes())
    return [*passes, *map(on_our_functions, host_passes())]


def on_our_functions(inner: Pass) -> Pass:
    """Wrap a pass so that it sees only the functions marked as ours, where it has to act."""

    @tvm.transform.module_pass(opt_level=0, name=inner.info.name)
    def _apply(mod: tvm.IRModule, _ctx: PassContext) -> tvm.IRModule:
        ours = {gv: f for gv, f in mod.functions.items() if _is_for(inner, f)}
        if not ours:
            return mod
        changed = inner(tvm.IRModule(ours, attrs=mod.attrs, global_infos=mod.global_infos))
        result = tvm.IRModule(mod.functions, attrs=mod.attrs, global_infos=mod.global_infos)
        result.update(changed)
        check_well_formed(before=ours.values(), mod=changed, after=inner.info.name)
        return result

    return _apply


def _is_for(inner: Pass, func: BaseFunc) -> bool:
    if not marks.is_marked(func):
        return False
    processor = find_processor(func.attrs["target"])  # None: the host half of a function
    return inner.info.name in ON_EVERY_PROCESSOR or processor is None or processor.has_threads
