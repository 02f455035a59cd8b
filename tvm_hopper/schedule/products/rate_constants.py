"""The constants of the product cost model; `rates.py` has their fitted values."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Rates:
    """Measured constants; cycles are those of an SM at `megahertz`, bytes a cycle those of one SM.

    - `operand_bytes`: bytes a cycle that WGMMA reads from shared memory.
    - `shortest_cycles`: of one instruction, however few its columns.
    - `slot_handover_cycles`: of a consumer from one slot to the next: wait, fence, release.
    - `handover_share_pending`: share of it that is left with a group of instructions in flight.
    - `register_pressure_cost`: share by which each 32 accumulators a thread beyond 160 slow
      instructions down.
    - `fill_bytes`: bytes a cycle that TMA writes into shared memory.
    - `narrow_swizzle_cost`: share by which an operand costs more for each halving of the swizzle,
      from 128 bytes, to divide a row of its tile that runs along m or n.
    - `latency_cycles`: from the load of a slot to its arrival; as many loads are under way as there
      are slots, but for the one in use.
    - `off_sector`: share by which an operand costs more whose rows begin off a sector of 32 bytes.
    - `off_line`: the same of rows that begin at sectors, but off a line of 128 bytes.
    - `l2_bytes`: bytes a cycle of the whole L2 cache.
    - `split_k_l2_exponent`: power of the number of parts of a sum by which the L2 cache gives less:
      thread blocks that lie together read the same lines at once, which counts once, but not those
      of a cluster.
    - `out_of_bounds_row_cycles`: of a row of 128 bytes of a box that lies outside of its tensor;
      those of all thread blocks come one after another.
    - `multicast_cycles`: of a launch in clusters whose blocks load for one another, and of leaving
      together, however many there are: fitted, neither a share of the time nor cycles a block are
      left.
    - `multicast_off_sector_cycles`: the same where rows of an operand begin off sectors.
    - `start_cycles`: launch, barriers and the latency of the first tiles.
    - `start_off_sector_cost`: share by which these cost more, by what rows off sectors and off
      lines add to an operand.
    - `wide_store_bytes`, `narrow_store_bytes`: bytes a cycle of stores of 16 bytes and of 4 bytes a
      thread.
    - `transposed_store_bytes`: of stores of 16 bytes after matrices were turned between the lanes
      of a warp. Not fitted: from ten pairs of times with turned and with narrow stores.
    - `transposed_store_bytes_many_rows`: the same of outputs of more than `MANY_ROWS` rows, of
      static products. Of 13.5, 16, 18, 20, 22 and 25 the one by which the choice lost least among
      the times of 31 such problems both ways.
    - `pair_store_bytes`: the same where a thread stores two elements of 4 bytes. Not fitted: read
      from 12 times of 8-bit integers and of tf32.
    - `box_store_bytes`: of stores by TMA, which threads do not wait for. Not fitted: of 14 pairs of
      times of float8 and of 8-bit integers, sums of up to 256 bytes.
    - `shifted_store_bytes`: of 16 bytes a thread into rows that begin off multiples of 16 bytes.
      Not fitted: a warp issues half as many instructions more than for `wide_store_bytes`.
    - `element_store_bytes`: the same where each element is stored by itself: 384 x 197x197x64 in
      tiles of 128x128.
    - `epilogue_overlap`: share of an epilogue that the loads of the next tile hide, where stores
      are wide: after narrow ones, fitted, nothing is hidden.
    - `memory_bytes`: bytes a cycle of the device's memory.
    - `partial_sector_cost`: share by which output rows cost more that begin off a sector.
    - `tma_store_partial_sector_share`: share of that which is left where TMA stores whole boxes.
      Not fitted with the others: of 41 such times of benchmarks/results/tile_times_*.json.
    - `flop_power`: microseconds that 1e9 multiply-adds take of the chip's power.
    - `cluster_sum_cycles`: of a launch in clusters and of the barriers of one, where blocks share a
      sum.
    - `cluster_peer_cycles`: more for each block of the cluster.
    - `exchange_bytes`: bytes a cycle that an SM reads of other SMs' sums.
    - `second_kernel_cycles`, `partial_sum_cycles`: of a second kernel, which adds what thread
      blocks have summed in a workspace, and more for each part.
    - `wide_store_partial_sum_factor`: times that where stores are of 16 bytes a thread.
    - `workspace_bytes`: bytes a cycle that an SM writes to a workspace, or reads from it.
    - `edge_tile_cost`: share of the time that edges of the output cost which cut tiles: stores
      after conditions. Not fitted, since the times of the fit do not tell between 0 and 0.04: the
      same kernel with rows that are symbolic took 0.02 to 0.035 more.
    - `third_consumer_cost`: share of the time that a third consumer costs. Not fitted: at 8192^3
      tiles of three and of two came out alike, and the first take 3% longer (at 4096^3 5% longer
      than estimated).
    - `shared_columns_cost`: share of the time that consumers of one row of instructions cost, which
      all read A. Not fitted: the fit does not tell between 0 and 0.08; three pairs of times of
      float8 took 0.04 to 0.12.
    - `run_store_cost`: share of the time that stores of columns off 32 cost. Not measured: what no
      fit has seen is chosen only for more than that.
    - `single_consumer_tile_cycles`: cycles that each tile after the first costs a thread block with
      one consumer, which does not multiply while it stores. Not fitted: read from 8 times of float8
      and of 8-bit integers.
    - `multi_tile_cost`, `multi_tile_split_k_cost`: share of the time that several tiles a block, or
      several blocks an SM, cost more, of kernels made for any rows; and more where sums are shared,
      since no block loads ahead for the next one. These and the next five say how kernels of one
      product compare, many of which run far from what they are best at: fitted by
      benchmarks/calibration/fit_rows.py to benchmarks/results/row_matrix_*.
    - `third_consumer_cost_any_rows`: share that a third consumer costs more.
    - `any_rows_start_saved_cycles`: cycles of `start_cycles` that kernels made for any rows do
      without.
    - `any_rows_workspace_cycles`: additional cycles of split-K by workspace.
    - `early_launch_saved_cycles`: that are saved where the blocks of two launches fit the chip at
      once: a kernel that may begin early is in place when the one in front ends. Of clusters twice
      that.
    - `sm_memory_bytes`: bytes a cycle that one SM takes from memory: few blocks do not keep it
      busy.
    - `extra_tile_cost`: how much longer memory takes for each further tile of a few rows that
      requests the same weights in the same wave.
    - `step_exponent`, `time_exponent`: exponents.
    """

    operand_bytes: float = 128.0
    shortest_cycles: float = 24.4
    slot_handover_cycles: float = 200.0
    handover_share_pending: float = 0.3
    register_pressure_cost: float = 0.05
    fill_bytes: float = 87.0
    narrow_swizzle_cost: float = 0.3
    latency_cycles: float = 1000.0
    off_sector: float = 0.676
    off_line: float = 0.15
    l2_bytes: float = 9200.0
    split_k_l2_exponent: float = 0.4
    out_of_bounds_row_cycles: float = 0.089
    multicast_cycles: float = 1600.0
    multicast_off_sector_cycles: float = 1000.0
    start_cycles: float = 7800.0
    start_off_sector_cost: float = 0.1
    wide_store_bytes: float = 22.0
    narrow_store_bytes: float = 15.0
    transposed_store_bytes: float = 13.5
    transposed_store_bytes_many_rows: float = 20.0
    pair_store_bytes: float = 24.0
    box_store_bytes: float = 50.0
    shifted_store_bytes: float = 18.0
    element_store_bytes: float = 2.3
    epilogue_overlap: float = 0.2
    memory_bytes: float = 2300.0
    partial_sector_cost: float = 1.4
    tma_store_partial_sector_share: float = 0.35
    flop_power: float = 1.7
    cluster_sum_cycles: float = 3000.0
    cluster_peer_cycles: float = 100.0
    exchange_bytes: float = 32.0
    second_kernel_cycles: float = 2500.0
    partial_sum_cycles: float = 150.0
    wide_store_partial_sum_factor: float = 4.0
    workspace_bytes: float = 40.0
    edge_tile_cost: float = 0.035
    third_consumer_cost: float = 0.01
    shared_columns_cost: float = 0.03
    run_store_cost: float = 0.02
    single_consumer_tile_cycles: float = 400.0
    multi_tile_cost: float = 0.005
    multi_tile_split_k_cost: float = 0.106
    third_consumer_cost_any_rows: float = 0.05
    any_rows_start_saved_cycles: float = 780.0
    any_rows_workspace_cycles: float = 700.0
    early_launch_saved_cycles: float = 470.0
    sm_memory_bytes: float = 66.0
    extra_tile_cost: float = 0.19
    step_exponent: float = 5.3
    time_exponent: float = 3.0
