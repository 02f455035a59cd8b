"""`matmul`: schedule a whole matmul kernel, from the steps in `steps.py`.

  hs.matmul(sch, "C")
->
  blockIdx.y   tiles of rows
    blockIdx.x   tiles of columns
      threadIdx.y  consumer warp groups
        accumulator = 0
        for k0: copy A's tile, copy B's tile, multiply-add        (pipelined)
        store the accumulator, with the epilogue inlined
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tvm import s_tir

from tvm_hopper import ir
from tvm_hopper.errors import ScheduleError, cannot_schedule
from tvm_hopper.requests import keys
from tvm_hopper.requests.targets import chip_of_target
from tvm_hopper.schedule import origins
from tvm_hopper.schedule.arguments import (
    as_block,
    check_program,
    check_sampled,
    check_type,
    label,
    last_stage,
)
from tvm_hopper.schedule.dry_run import block_names, check_lowering, check_nothing_left
from tvm_hopper.schedule.reasons import as_refusal
from tvm_hopper.schedule.trial import as_one_step, is_thrown_away, rehearse

from . import fuse
from .branches import branched, class_block
from .class_choice import estimate_all
from .classes import Asked, ClassKernel, as_asked, find_kernels, product_of, ranges_of
from .config import MatmulConfig
from .converted import for_converted
from .few_rows import (
    apply_few_rows,
    by_threads,
    by_tiles,
    form_of_converted,
    may_be_few_rows,
    trials_of,
)
from .fit import extents, fit
from .gather import check_gather, for_gather
from .model import in_rows, listed
from .normalize import normalized
from .operands import operand_dtypes
from .outputs import find_gather, output_dtypes
from .parts import for_any_rows
from .pixel_boxes import in_boxes
from .recognize import (
    Matmul,
    check_operands,
    check_outputs,
    check_product,
    find_matmul,
    product_loads,
)
from .several import matmul_together
from .split import check_known, check_spread
from .staging import (
    EpilogueTypes,
    leaves_operands_open,
)
from .tile_groups import in_groups
from .tile_kernel import TilePlan, apply_tiles, oriented
from .views import make_views


def matmul(
    sch: s_tir.Schedule,
    block: Any,
    config: MatmulConfig | None = None,
    *,
    classes: Sequence[int] | Mapping[int, MatmulConfig | int] | None = None,
    rows: int | None = None,
) -> None:
    """Schedule one matmul block, its casts and its epilogue as a Hopper kernel.

    A product with symbolic rows gets a kernel for each size class, and the host launches one of
    them by the number of rows. Block C becomes C_16, C_256 and so on, see `hs.size_classes`.

    Parameters
    ----------
    sch : Schedule
        Changed in place; left as it was when the matmul is refused.
    block : SBlockRV or str, or a sequence of these
        The multiply-add, in plain loops. Several are products of one shape that share their left
        operand and are read by one block, as the two of a gated activation: they become one kernel
        that loads the operand once. Or a product and reductions over the rows of what it stores,
        as a norm needs them: the kernel reduces each tile, and another one the tiles.
    config : MatmulConfig, optional
        Tile sizes and so on; fields left out are chosen from the shape. The tile is that of each
        product.
    classes : sequence of int, or mapping of int to MatmulConfig or to int, optional
        For symbolic rows: the upper bounds of size classes, ascending, at most eight. The last
        class also serves more rows. A class is chosen for its bound, or for the number of rows it
        maps to, or has the configuration it maps to; classes with equal values share a kernel.
        None: chosen by the model (`hs.choose_ranges`), or one kernel if `config` has a tile,
        stages, consumers or registers. Empty: one kernel for many rows.
    rows : int, optional
        For symbolic rows: one kernel, tuned for this number and correct for any.

    Raises
    ------
    ScheduleError
        The block is not a supported matmul, or the configuration does not fit it.
    """
    check_program("matmul", sch)
    check_type("matmul", "config", config, MatmulConfig, "an hs.MatmulConfig")
    asked = as_asked(config, classes, rows)
    given = config or MatmulConfig()
    check_sampled(sch, "matmul", "tile", *(given.tile or ()))
    check_sampled(sch, "matmul", "stages", last_stage(given.stages))

    if isinstance(block, (tuple, list)):
        matmul_together(sch, block, given, asked)
    else:
        _matmul_alone(sch, block, given, asked)


def _matmul_alone(sch: s_tir.Schedule, block: Any, given: MatmulConfig, asked: Asked) -> None:
    """Schedule one product, by a kernel or by one for each size class."""
    fresh = normalized(sch, block)
    if fresh is not None:
        _check_nothing_sampled(given, "hs.normalize(mod)")
        block = label(sch, block).removeprefix("block ")
    plain = fresh or sch
    tiles = _in_sorted_rows(plain, block, given, asked) or in_groups(plain, block, given)
    if tiles is not None:
        rewritten = "hs.tile_groups(mod, block, rows of the tile)"
    elif (tiles := in_boxes(plain, block, given)) is not None:
        rewritten = "hs.box_pixels(mod, block, rows of the tile)"
    if tiles is not None:
        _check_nothing_sampled(given, rewritten)
        block = label(sch, block).removeprefix("block ")
        plain, given = tiles
        fresh = plain
    kernels = find_kernels(plain, block, given, asked)
    if len(kernels) > 1:
        for kernel in kernels:
            _check_nothing_sampled(kernel.config, "hs.size_classes(mod, ...)")
        fresh = _schedule_classes_somehow(plain, block, kernels)
        with origins.noted(sch):
            ir.replace_schedule(sch, fresh)
        return
    (kernel,) = kernels
    before = block_names(plain)
    known = None
    if not is_thrown_away():
        kernel, known = _try(plain, block, kernel, before)
    with origins.noted(sch):
        if fresh is not None:
            ir.replace_schedule(sch, fresh)
        with as_one_step():
            product, _ = _schedule(sch, block, kernel, known)
            if is_thrown_away():
                _accept(sch, product, before, given)


def _in_sorted_rows(
    plain: s_tir.Schedule, block: Any, given: MatmulConfig, asked: Asked
) -> tuple[s_tir.Schedule, MatmulConfig] | None:
    """Sort rows by the matrix that a table names for each, where a kernel can have them so."""
    with contextlib.suppress(ScheduleError):
        if (found := in_groups(plain, block, given, by_table=True)) is not None:
            sch, config = found
            name = label(plain, block).removeprefix("block ")
            (kernel,) = find_kernels(sch, name, config, asked)
            _try(sch, name, kernel, block_names(sch))
            return found
    return None


def _check_nothing_sampled(config: MatmulConfig, rewritten: str) -> None:
    """Refuse samples of a schedule that begins again, with `rewritten`: they would be void."""
    if config.is_sampled:
        raise cannot_schedule(
            "matmul",
            "a sampled tile or stages for a product that has to be rewritten first",
            "a schedule of what it becomes",
            f"make it: s_tir.Schedule({rewritten}), and sample there",
        )


def _accept(sch: s_tir.Schedule, product: Any, before: frozenset[str], given: MatmulConfig) -> None:
    """Refuse a schedule that leaves something next to the kernel, or that a build would refuse."""
    check_nothing_left(sch, product, before)
    if not given.is_sampled:
        check_lowering(sch, product)


def _try(
    plain: s_tir.Schedule, block: Any, kernel: ClassKernel, before: frozenset[str]
) -> tuple[ClassKernel, Matmul | None]:
    """Schedule copies; return the first kernel that fits, and the product as a copy has it."""
    known: Matmul | None = None
    for last, trial in trials_of(kernel):

        def step(copy: s_tir.Schedule, same: Callable[[Any], Any], one: Any = trial) -> Any:
            nonlocal known
            product, known = _schedule(copy, same(block), one, known)
            return product

        def accept(copy: s_tir.Schedule, product: Any, one: Any = trial) -> None:
            _accept(copy, product, before, one.config)

        try:
            rehearse(plain, step, accept)
        except ScheduleError:
            if last:
                raise
        else:
            return trial, known
    return kernel, known


def _schedule_classes_somehow(
    plain: s_tir.Schedule, block: Any, kernels: tuple[ClassKernel, ...]
) -> s_tir.Schedule:
    """Schedule the size classes; where dot products do not fit what follows them, by tiles."""
    try:
        return _schedule_classes(plain, block, kernels)
    except ScheduleError:
        if any(leaves_operands_open(x.config) for x in kernels):
            kernels = tuple(map(by_threads, kernels))
            with contextlib.suppress(ScheduleError):
                return _schedule_classes(plain, block, kernels)
        if not any(may_be_few_rows(x.config) for x in kernels):
            raise
        return _schedule_classes(plain, block, tuple(map(by_tiles, kernels)))


def _schedule_classes(
    plain: s_tir.Schedule, block: Any, kernels: tuple[ClassKernel, ...]
) -> s_tir.Schedule:
    """Schedule a kernel for each size class, on a schedule that begins again."""
    bounds = tuple(kernel.rows for kernel in kernels if kernel.rows is not None)
    fresh = branched(plain, block, ranges_of(kernels))
    before = block_names(fresh)
    name = label(plain, block).removeprefix("block ")
    with as_one_step():
        for bound, kernel in zip(bounds, kernels, strict=True):
            product, _ = _schedule(fresh, class_block(name, bound), kernel)
            check_nothing_left(fresh, product, before)
            if kernel.config != kernels[0].config or bound in (bounds[0], bounds[-1]):
                check_lowering(fresh, product)  # else chosen by the model, so plans allow it
    return fresh


def _schedule(
    sch: s_tir.Schedule, block: Any, kernel: ClassKernel, known: Matmul | None = None
) -> tuple[Any, Matmul]:
    """Schedule a product; return its block, and the product as it was recognised."""
    block = as_block(sch, block)
    name = sch.get(block).name_hint
    need = "a matmul that is padded and tiled by itself"
    with as_refusal(f"block {name}", need, fuse.SEPARATE):
        return _apply(sch, block, kernel, known)


def _apply(
    sch: s_tir.Schedule, block: Any, kernel: ClassKernel, known: Matmul | None
) -> tuple[Any, Matmul]:
    """Schedule a product; return its block, and what was recognised."""
    check_product(sch, block)
    fuse.fuse_prologue(sch, block)
    node = sch.get(block)
    loads = product_loads(f"block {node.name_hint}", node)
    _check_in_place(sch, block, loads)
    views = make_views(sch, block, loads)
    gathered = find_gather(sch, block)
    problem = find_matmul(sch, block, known)
    problem = for_converted(sch, block, problem)
    epilogue = EpilogueTypes(output_dtypes(sch, block), operand_dtypes(sch, block))
    if problem.stored_bytes:
        check_outputs(problem, epilogue.outputs)  # which the choice of a form has to know
        kernel = form_of_converted(problem, kernel, views, epilogue.outputs)
    config = kernel.config
    check_operands(problem, config, views)
    check_outputs(problem, epilogue.outputs)
    if epilogue.operands:
        config = in_rows(config, extents(problem, kernel)[0])
        kernel = replace(kernel, config=config)
    choices = _choices(problem, kernel, epilogue.outputs)
    if gathered is not None:
        kernel, lines = for_gather(problem, kernel, gathered, epilogue.outputs[0])
        choices = "\n".join(lines)
    if few := apply_few_rows(sch, block, problem, kernel, views, epilogue.outputs):
        return few, problem
    check_known(problem, config.split_mode, config.is_sampled)
    fitted, axis = fit(sch, problem, kernel, epilogue)
    assert fitted.tile is not None
    if gathered is not None and not fitted.is_sampled:
        sharers = fitted.sharers if axis == "n" else 1
        check_gather(problem, fitted.tile[1], sharers, gathered.columns)
    noted = _chosen_for(problem, kernel, fitted, epilogue.outputs)
    tiles = TilePlan(fitted, axis, gathered, config.operand_slots, choices, noted)
    _check_sampled_sizes(problem, fitted)
    check_spread(oriented(problem, fitted), fitted.cluster, fitted.tile)
    return apply_tiles(sch, block, problem, tiles, len(epilogue.outputs)), problem


def _check_sampled_sizes(problem: Matmul, config: MatmulConfig) -> None:
    """Refuse parts of sums and clusters of which some sizes are sampled."""
    for name, is_asked, why in (
        ("split_k", config.parts > 1, "a tile of each part is padded"),
        ("cluster", config.in_cluster, "tiles of a cluster are padded together"),
    ):
        if is_asked and config.is_sampled:
            raise cannot_schedule(
                f"block {problem.name}",
                f"{name}={getattr(config, name)!r} with a sampled tile or stages",
                f"sizes that are known: {why}",
                f"give the tile and the stages, or leave {name} out",
            )


def _choices(problem: Matmul, kernel: ClassKernel, outputs: tuple[str, ...]) -> str:
    """Return the best configurations for `explain`, a line each; nothing where a tile is given."""
    if kernel.config.tile is not None:
        return ""
    wanted, config = product_of(problem, kernel, outputs), kernel.config
    if not isinstance(problem.m.extent, int):
        config = for_any_rows(config, extents(problem, kernel)[0])
    return "\n".join(listed(wanted, config, chip_of_target()))


def _chosen_for(
    problem: Matmul, kernel: ClassKernel, config: MatmulConfig, outputs: tuple[str, ...]
) -> list[int]:
    """Return what `keys.CHOSEN_FOR` says; nothing of rows that are known, or of a sampled tile."""
    if kernel.rows is None or config.is_sampled:
        return []
    (time,) = estimate_all([product_of(problem, kernel, outputs)], [config])[0]
    return [kernel.rows, min(max(1, round(10 * time)), keys.INT32_MAX)]


def _check_in_place(sch: s_tir.Schedule, block: Any, loads: tuple[Any, Any]) -> None:
    """Refuse a block after the product that writes an operand: other tiles still read it."""
    place = sch.get_sref(block).parent
    while not isinstance(place.stmt, ir.SBlock):
        place = place.parent
    blocks = ir.find_all(place.stmt.body, ir.SBlock)
    product = sch.get(block)
    start = next(i for i, node in enumerate(blocks) if node.same_as(product))
    where = f"block {product.name_hint}"
    for load in loads:
        for node in blocks[start:]:
            if any(region.source.same_as(load.source) for region in node.writes):
                raise cannot_schedule(
                    f"{where}, tensor {load.source.name}",
                    f"block {node.name_hint}, which writes it after the product",
                    "a separate output, since other tiles still read the operand",
                    "write another tensor, and copy that in a separate kernel",
                )
