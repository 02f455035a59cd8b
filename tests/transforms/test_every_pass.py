"""What holds of every pass: run again it finds nothing to do, and kernels of others stay."""

import importlib

import pytest

from tests.transforms.scripts import check, check_other_kernel_stays, run

# The test of a pass, a kernel there that it changes, and the pass or step.
PASSES = """
copies.test_lower_async_copies : before : LowerAsyncCopies()
copies.test_reuse_operand_tiles : parse(BEFORE) : ReuseOperandTiles()
copies.test_share_equal_tiles : parse(BEFORE) : ReuseOperandTiles()
copies.test_select_copy_mechanisms : parse(BY_THREADS) : SelectCopyMechanisms()
layouts.test_swizzle_shared_tiles : before : SwizzleSharedTiles()
legalize.test_legalize_vectors : parse(BEFORE, ("VALUE", WIDE)) : LegalizeVectors()
legalize.test_unroll_register_loops : parse(BEFORE) : UnrollRegisterLoops()
math.test_hoist_row_reciprocals : parse(BEFORE, ("STORE", DIVISION)) : hoist_row_reciprocals
mbarriers.test_lower_channels_to_mbarriers : parse(TOGETHER) : LowerChannelsToMbarriers()
memory_bound.test_align_row_vectors : parse(BEFORE, ("THREADS", "32")) : align_row_vectors
memory_bound.test_guard_row_loop : before() : guard_row_loop
memory_bound.test_hoist_index_numbers : parse(BEFORE, ("VALUE", PADDED)) : hoist_index_numbers
memory_bound.test_hoist_reduction_inits : before() : HoistReductionInits()
memory_bound.test_join_vector_rows : parse(KERNEL, ("PLACE", CROSSING)) : join_vector_rows
memory_bound.test_pipeline_row_loop : before() : PipelineRowLoop()
memory_bound.test_prefetch_row_scalars : parse(KERNEL) : prefetch_row_scalars
memory_bound.test_prefetch_rows_to_l2 : parse(KERNEL) : prefetch_rows_to_l2
memory_bound.test_split_vector_tails : parse(BEFORE, ("CONDITION", BOUND)) : split_vector_tails
memory_bound.test_stage_rows_in_shared : parse(KERNEL) : stage_rows_in_shared
memory_bound.test_unstage_rows : of_ampere(STAGED) : unstage_rows
memory_bound.test_vectorize_gathers : before(CHOICE) : vectorize_gathers
mma_sync.test_pair_fragment_stores : parse(BEFORE) : PairFragmentStores()
pipeline.test_expand_pipeline : parse(LOOP) : ExpandPipeline()
pipeline.test_pipeline_compute_stages : parse(BEFORE) : pipeline_compute_stages
pipeline.test_plan_ring_buffers : parse(BEFORE) : PlanRingBuffers()
prepare.test_expand_inner_pipelines : parse(BEFORE) : ExpandInnerPipelines()
prepare.test_fuse_thread_axes : before : FuseThreadAxes()
prepare.test_index_row_pointers : parse(BEFORE) : IndexRowPointers()
prepare.test_record_configuration : parse(KERNEL) : RecordConfiguration()
prepare.test_simplify_index_bounds : kernel(SHIFTED) : simplify_index_bounds
reductions.test_reduce_across_threads : before(256) : ReduceAcrossThreads()
reductions.test_split_rows_across_cluster : parse(BEFORE) : split_rows_across_cluster
split_k.test_lower_split_k : parse(BEFORE) : LowerSplitK()
sync.test_insert_syncs : parse(ROLES) : InsertSyncs()
sync.test_overlay_shared_buffers : parse(BEFORE) : OverlaySharedBuffers()
tile_scheduling.test_multicast_loads : parse(BEFORE) : MulticastLoads()
tile_scheduling.test_schedule_tiles : parse(KERNEL, noted(raster_group=2)) : ScheduleTiles()
warp_specialization.test_specialize_warps : parse(PLANNED) : SpecializeWarps()
wgmma.test_lower_wgmma : parse(BEFORE) : LowerWgmma()
wgmma.test_overlap_epilogue_loads : before() : OverlapEpilogueLoads()
"""
# Their scripts are no single kernel, or what they see is not one kernel alone.
AGAIN = """
legalize.test_unpack_half_pairs : plain() : UnpackHalfPairs()
legalize.test_unpack_half_pairs : guarded() : UnpackHalfPairs()
mma_sync.test_lower_warp_memory : parse(BEFORE) : LowerWarpMemory()
prepare.test_restore_axis_annotations : before : RestoreAxisAnnotations()
tile_scheduling.test_stream_k : streamed() : ScheduleTiles()
launch.test_allocate_workspace : parse(HOST) : AllocateWorkspace()
launch.test_check_launches : parse(HOST) : CheckLaunches()
launch.test_widen_indices : parse(KERNEL) : WidenIndices()
sync.test_merge_shared_buffers : parse(BEFORE) : MergeSharedBuffers()
tile_scheduling.test_size_persistent_grid : parse(HOST) : SizePersistentGrid()
"""
# Its plan refuses what it has left.
ONCE = """
split_k.test_bind_reduction_loop_to_grid : parse(BEFORE) : bind_reduction_loop_to_grid
"""


def found(row: str):
    """Return the kernel and the pass of a row."""
    module, kernel, made = row.split(" : ")
    names = vars(importlib.import_module(f"tests.transforms.{module}"))
    return eval(kernel, names), eval(made, names)


@pytest.mark.parametrize("row", [*filter(None, (PASSES + AGAIN).split("\n"))])
def test_again_it_finds_nothing(row: str) -> None:
    func, one = found(row)
    once = run(func, one)
    check(run(once, one), once)


@pytest.mark.parametrize("row", [*filter(None, (PASSES + ONCE).split("\n"))])
def test_other_kernels_stay(row: str) -> None:
    func, one = found(row)
    check_other_kernel_stays(func, run(func, one), one)
