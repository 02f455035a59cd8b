"""What the schedule's budget accepts, the passes accept too, with the same sums."""

import random
import re
from dataclasses import replace

import pytest
from tvm import s_tir
from tvm.ir.transform import PassContext

from tests.transforms.scripts import notes_of
from tvm_hopper import pipeline, schedule as hs
from tvm_hopper.errors import ScheduleError
from tvm_hopper.facts import registers
from tvm_hopper.facts.arch import SM_80, SM_90A
from tvm_hopper.schedule.dry_run import LAST, TARGET
from tvm_hopper.schedule.products import fit
from tvm_hopper.schedule.products.config import find_violations, most_stages, ring_slots
from tvm_hopper.schedule.products.staging import EpilogueTypes, choose_staging, staging_memory
from tvm_hopper.testing import workloads
from tvm_hopper.transforms.common.explain_notes import MmaNote, SmemNote
from tvm_hopper.transforms.common.shared_memory_size import ring_memory

SPLITS = {1: [(24, 256), (56, 256)], 2: [(40, 232), (24, 240), (96, 200)], 3: [(32, 160)]}


def draw(rng):
    """Draw a tile, a ring and a split of registers near the limits of the chip."""
    consumers = rng.choice((1, 2, 3))
    tile = 64 * rng.randint(1, 6), 8 * rng.randint(1, 40), 16 * rng.choice((1, 2, 3, 4, 5, 8))
    dtype = rng.choice(("float16", "bfloat16"))
    stages = max(1, most_stages(tile, dtype, SM_90A) + rng.choice((-1, 0, 0, 0, 1)))
    split = rng.choice([None, *SPLITS[consumers]])
    return hs.MatmulConfig(tile, stages=stages, consumers=consumers, registers=split), dtype


def accepted(seed):
    """Return the first configuration that the schedule's budget accepts."""
    rng = random.Random(seed)
    while True:
        config, dtype = draw(rng)
        if not find_violations(config.tile, config.stages, config, dtype, SM_90A):
            return config, dtype, rng


def scheduled(config, dtype, rng):
    """Schedule a product of whole tiles."""
    m, n, k = (2 * size for size in config.tile)
    layout = rng.choice(workloads.LAYOUTS)
    sch = s_tir.Schedule(workloads.matmul(m, n, k, dtype=dtype, layout=layout))
    hs.matmul(
        sch, "C", config
    )  # lowers it up to MergeSharedBuffers, and raises what a pass refuses
    return sch.mod


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("seed", range(16))
def test_what_the_schedule_accepts_the_passes_accept(seed):
    config, dtype, rng = accepted(seed)
    mod = scheduled(config, dtype, rng)
    with PassContext():
        (func,) = pipeline.lower(mod, TARGET, until=LAST).functions.values()
    noted = notes_of(func)
    memory = ring_memory(ring_slots(config.tile, dtype), config.stages)
    assert max(x.offset + x.size for x in noted if isinstance(x, SmemNote)) == memory.num_bytes
    held = registers.accumulator_registers(*config.tile[:2], config.consumers)
    budget = registers.accumulator_budget([held], config.consumers, SM_90A)
    (mma,) = (x for x in noted if isinstance(x, MmaNote))
    assert mma.accumulator_registers == budget.held


@pytest.mark.parametrize("seed", range(4))
def test_what_the_schedule_finds_too_large_the_passes_refuse(seed, monkeypatch):
    config, dtype, rng = accepted(seed)
    stages = most_stages(config.tile, dtype, SM_90A) + 1
    (found,) = find_violations(config.tile, stages, config, dtype, SM_90A)
    total = re.search(r"= (\d+) B of shared memory", found).group(1)
    monkeypatch.setattr(fit, "find_violations", lambda *_: [])
    with pytest.raises(
        ScheduleError, match=f" = {total} bytes of shared memory.*take {stages - 1}"
    ):
        scheduled(replace(config, stages=stages), dtype, rng)


@pytest.mark.parametrize("seed", range(4))
def test_accumulators_that_the_schedule_finds_too_many_the_passes_refuse(seed, monkeypatch):
    rng = random.Random(seed)
    while True:
        config, dtype = draw(rng)
        found = find_violations(config.tile, config.stages, config, dtype, SM_90A)
        if len(found) == 1 and "accumulators a thread" in found[0]:
            break
    held, room = re.match(r"found (\d+) acc.*need at most (\d+) of", found[0]).groups()
    monkeypatch.setattr(fit, "find_violations", lambda *_: [])
    with pytest.raises(ScheduleError, match=f": {held} registers a thread; need at most {room} of"):
        scheduled(config, dtype, rng)


def test_the_most_stages_are_the_most_that_fit():
    for seed in range(200):
        config, dtype = draw(random.Random(seed))
        slots = ring_slots(config.tile, dtype)
        stages = most_stages(config.tile, dtype, SM_90A)
        assert ring_memory(slots, stages).num_bytes <= SM_90A.smem_per_block, seed
        assert ring_memory(slots, stages + 1).num_bytes > SM_90A.smem_per_block, seed


def test_a_smaller_chip_takes_fewer_stages():
    tile, config = (128, 256, 64), hs.MatmulConfig(consumers=2)
    assert find_violations(tile, 4, config, "float16", SM_90A) == []
    (found,) = find_violations(tile, 4, config, "float16", SM_80)
    assert "= 196672 B of shared memory; need at most 166912 B, which 3 stages of this" in found


# -- staging


@pytest.mark.parametrize("seed", range(6))
def test_staging_that_the_schedule_accepts_the_passes_accept(seed):
    config, dtype, rng = accepted(seed)
    config = replace(config, store="tma", persistent=1)
    mod = scheduled(replace(config, stages=None), dtype, rng)
    with PassContext():
        (func,) = pipeline.lower(mod, TARGET, until=LAST).functions.values()
    noted = [x for x in notes_of(func) if isinstance(x, SmemNote)]
    assert max(x.offset + x.size for x in noted) <= SM_90A.smem_per_block
    assert any("C_shared" in x.name for x in noted)


def staged(
    stages,
    may_take_stages=True,
    persistent=1,
    outputs=("float16",),
    tile=(128, 256, 64),
    operands=(),
    in_place=False,
):
    """Return the stages, the parts, and the slots of operands that a product gets."""
    given = hs.MatmulConfig(tile, stages, 2, persistent=persistent, store="tma")
    sizes = tuple((x,) for x in tile)
    behind = EpilogueTypes(outputs, operands, in_place)
    found = choose_staging(given, sizes, may_take_stages, "float16", behind, SM_90A)
    chosen = (found.stages, found.store_parts)
    return (*chosen, found.operand_slots) if operands else chosen


def test_as_few_parts_as_leave_the_ring_its_slots():
    assert staged(4) == (3, 1)  # all of a tile is worth the fourth stage
    assert staged(4, False) == (4, 2)
    assert staged(4, outputs=("float32",)) == (4, 4)
    assert staged(4, outputs=("float16", "float32")) == (4, 8)
    assert staged(3) == (3, 1)
    assert staged(4, tile=(192, 192, 64)) == (3, 1)  # warp groups share the columns: one part
    assert staged(4, persistent=0) == (4, 1)  # in the bytes of the ring, which is dead by then


def test_slots_are_given_up_only_where_nobody_asked_for_them():
    tile = (128, 192, 96)  # 61440 bytes a slot: three of them leave 48 KiB
    stages, parts = staged(3, tile=tile, outputs=("float32", "float32", "float32", "float32"))
    behind = EpilogueTypes(("float32",) * 4)
    config = hs.MatmulConfig(store=hs.TmaStore(parts))
    memory = staging_memory(tile, stages, config, "float16", behind)
    assert memory.num_bytes <= SM_90A.smem_per_block
    full = (128, 256, 64)
    assert staged(4, tile=full, outputs=("float16",) * 40)[0] < 4
    assert staged(4, False, tile=full, outputs=("float16",) * 40)[0] == 4


@pytest.mark.parametrize("rows", [512, 4096], ids=["a tile each", "persistent"])
def test_operands_that_the_schedule_accepts_are_built(rows):
    """Where a thread block has one tile its staging lies in the ring, but not beside operands."""
    form = {"out_dtype": "float16", "epilogue": ("residual", "relu")}
    sch = s_tir.Schedule(workloads.matmul(rows, 4096, 4096, **form))
    hs.matmul(sch, "C")
    with PassContext():
        (func,) = pipeline.lower(sch.mod, TARGET, until=LAST).functions.values()
    noted = [x for x in notes_of(func) if isinstance(x, SmemNote)]
    assert any("residual" in x.name for x in noted)
    assert max(x.offset + x.size for x in noted) <= SM_90A.smem_per_block


def test_a_whole_tile_of_an_operand_is_worth_a_stage():
    half = {"operands": ("float16",)}
    assert staged(4, **half) == (3, 4, 4)
    assert staged(3, False, **half) == (3, 4, 4)
    assert staged(4, persistent=0, **half) == (3, 4, 4)  # the ring's bytes are not free yet
    # nobody gives up a stage that was asked for: then some parts are loaded ahead
    assert staged(4, False, **half) == (4, 4, 1)
    assert staged(4, tile=(128, 128, 64), **half) == (4, 1, 1)
    # most of a tile, in rows of the widest pattern, is worth a stage as well
    assert staged(4, tile=(256, 160, 64), **half) == (3, 5, 3)
    # what finds no room is loaded by the threads
    assert staged(4, False, operands=("float32",) * 20) == (4, 2, 0)


def test_an_output_in_the_slots_of_an_operand_takes_no_room_of_its_own():
    there = {"operands": ("float16",), "in_place": True}
    assert staged(4, **there) == (3, 4, 5)  # the fifth is the last store's
    assert staged(4, tile=(128, 128, 64), **there) == (4, 2, 3)
    assert staged(4, False, **there) == (4, 4, 2)
    assert staged(4, tile=(128, 64, 64), **there) == (4, 1, 1)


@pytest.mark.parametrize(
    ("rows", "type_of_sum", "slots"),
    [(512, "float32", 5), (500, "float32", 4), (512, "float16", 4)],
    ids=["whole tiles", "an edge", "sums of 16 bits"],
)
def test_what_is_taken_to_be_in_place_is(rows, type_of_sum, slots):
    """Else more slots are asked for than there is room for, and the next choice is tried."""
    form = {"out_dtype": "float16", "epilogue": ("residual", "relu"), "acc_dtype": type_of_sum}
    sch = s_tir.Schedule(workloads.matmul(rows, 4096, 1024, **form))
    given = hs.MatmulConfig((128, 256, 64), consumers=2, persistent=132)
    hs.matmul(sch, "C", replace(given, accumulate="float32"))
    with PassContext():
        (func,) = pipeline.lower(sch.mod, TARGET, until=LAST).functions.values()
    noted = [x for x in notes_of(func) if isinstance(x, SmemNote)]
    (ring,) = (x for x in noted if "residual" in x.name)
    assert ring.size == slots * 128 * 64 * 2
