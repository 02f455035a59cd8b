"""`attention`: schedule the running form of attention as one kernel.

  hs.attention(sch)
->
  blockIdx.y, blockIdx.x     heads, tiles of query rows
    copy Q's tile
    threadIdx.y                consumer warp groups
      for j0: copy K's tile, copy V's tile                              (rings)
              scores, maxima, weights and sums, in registers
              the sum of values multiplied by weights, in registers
      store
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from tvm import s_tir, tirx

from tvm_hopper import ir
from tvm_hopper.errors import cannot_schedule
from tvm_hopper.facts import wgmma
from tvm_hopper.facts.dtypes import HALF_DTYPES
from tvm_hopper.requests.keys import CHOSEN, PAIRS
from tvm_hopper.schedule import origins, steps
from tvm_hopper.schedule.arguments import check_program, check_type
from tvm_hopper.schedule.dry_run import block_names, check_lowering, check_nothing_left
from tvm_hopper.schedule.products.config import Roles
from tvm_hopper.schedule.tile_order import raster
from tvm_hopper.schedule.trial import as_one_step, rehearse

from .choose import AttentionShape, rank_attention
from .config import KEY_STEP, AttentionConfig
from .few_rows import group_of
from .online import ONLINE, online
from .recognize import recognize
from .running_form import AttentionTile, RunningForm

SHARED = "shared.dyn"
MOST_HEADS = 65535  # thread blocks along blockIdx.y
TILES = ("Q_tile", "K_tile", "V_tile")
IN_REGISTERS = (
    *("S_init", "P", "acc_init"),
    *("row_max_init", "old_max", "offset", "row_sum_init", "rescale"),
)
CONFIGS_SHOWN = 5
LIMITS = {"limit", "first_key"}  # of the keys that a row sees, where device memory tells


def attention(sch: s_tir.Schedule, config: AttentionConfig | None = None) -> None:
    """Schedule the running form of attention, see `hs.online`, as a Hopper kernel.

    Parameters
    ----------
    sch : Schedule
        Of `hs.online(mod)`. Changed in place; left as it was when the form is refused. Where the
        configuration asks for another tile than the form has, the schedule begins again with that
        form.
    config : AttentionConfig, optional
        Tile, stages and so on; what is left out is chosen.

    Raises
    ------
    ScheduleError
        The schedule is of another program, or the configuration does not fit it.
    """
    check_program("attention", sch)
    check_type("attention", "config", config, AttentionConfig, "an hs.AttentionConfig")
    form = find_form(sch)
    given = form.fixed(config or AttentionConfig())
    ranked = rank_attention(form.shape, given)
    chosen, listed = ranked[0].config, "\n".join(map(str, ranked[:CONFIGS_SHOWN]))
    fresh = _with_tile(sch, form, chosen)
    plain = fresh or sch
    before = block_names(plain)

    def step(copy: s_tir.Schedule, _: Callable[[Any], Any] | None = None) -> Any:
        return _apply(copy, chosen, "" if given.tile else listed)

    def accept(copy: s_tir.Schedule, tile: Any) -> None:
        check_nothing_left(copy, tile, before)
        check_lowering(copy, tile)

    rehearse(plain, step, accept)
    with origins.noted(sch):
        if fresh is not None:
            ir.replace_schedule(sch, fresh)
        with as_one_step():
            step(sch)


@dataclass(frozen=True)
class OnlineForm:
    """The running form of a schedule, and what was computed.

    - `sizes`: of `hs.online`: tile, parts, splits and whether heads are packed.
    - `weights`: type in which weights multiply values.
    - `plain`: what it was made of; None if that is not known.
    """

    name: str
    sizes: tuple[tuple[int, int], int, int, bool]
    weights: str
    shape: AttentionShape
    plain: Any

    def fixed(self, given: AttentionConfig) -> AttentionConfig:
        """Return a configuration with the sizes of a form that cannot be made again."""
        if self.plain is not None:
            return given
        tile, parts, splits, packs = self.sizes
        return replace(
            given,
            tile=given.tile or tile,
            consumers=given.consumers or (None if given.tile else parts),
            splits=given.splits or splits,
            packs=packs if given.packs is None else given.packs,
        )


def find_form(sch: s_tir.Schedule) -> OnlineForm:
    """Return the one running form of a schedule's module."""
    forms = {
        gv.name_hint: func
        for gv, func in sch.mod.functions.items()
        if isinstance(func, tirx.PrimFunc) and ONLINE in func.attrs
    }
    if len(forms) != 1:
        names = ", ".join(forms) or "no running form"
        fix = "make one: s_tir.Schedule(hs.online(mod))"
        raise cannot_schedule("attention", names, "one function that hs.online made", fix)
    ((name, func),) = forms.items()
    rows, keys, parts, splits, packs = (int(x) for x in func.attrs[ONLINE])
    written = _block(func, "P").writes[0].source
    if str(written.scope()) == "local":
        found, fix = f"{name}, scheduled already", "begin with a schedule of the running form"
        raise cannot_schedule("attention", found, "loops as hs.online leaves them", fix)
    weights = ir.dtype_of(written)
    if weights not in HALF_DTYPES:
        raise cannot_schedule(
            f"block P of {name}",
            f"weights of {weights}, as the program multiplies them",
            " or ".join(HALF_DTYPES),
            'allow this rounding: hs.online(mod, probabilities="float16")',
        )
    plain = origins.plain_of(sch)
    shape = _shape_of_form(func, (rows, keys)) if plain is None else attention_shape(plain[name])
    return OnlineForm(name, ((rows, keys), parts, splits, bool(packs)), weights, shape, plain)


def attention_shape(func: tirx.PrimFunc) -> AttentionShape:
    """Return what the choice of a configuration depends on, of attention in plain loops.

    - raises ScheduleError: the function is none, or its head dimensions are not known.
    """
    found = recognize(func)
    tile = AttentionTile(wgmma.INSTRUCTION_M, wgmma.INSTRUCTION_M, 1)
    depth, columns = (ir.static_int(x.extent) for x in (found.depth, found.column))
    if depth is None or columns is None:
        wide = f"head dimensions {found.depth.extent} and {found.column.extent}"
        raise cannot_schedule("function", wide, "dimensions that are known")
    sizes = [ir.static_int(x.extent) for x in found.leads]
    group = group_of(found)
    bounds = RunningForm(found, tile, found.probabilities).bounds
    return AttentionShape(
        rows=ir.static_int(found.row.extent),
        keys=ir.static_int(found.key.extent),
        depth=-(-depth // KEY_STEP) * KEY_STEP,
        columns=columns,
        dtype=ir.dtype_of(found.keys.source),
        is_masked=bounds.grow_with_rows,
        heads=None if None in sizes else prod(x for x in sizes if x),
        group=1 if group is None else group[1],
        may_split=True,
        band=bounds.band,
        is_computed=bounds.leaves_computed,
    )


def _shape_of_form(func: tirx.PrimFunc, size: tuple[int, int]) -> AttentionShape:
    """Return the shape of a form alone: it keeps its splits and its rows."""
    tile, step, scores, values = (_block(func, x) for x in ("tile", "step", "S", "O"))
    own = [x.var for x in tile.iter_vars]
    around = ir.find_all(tile, ir.For, lambda x: ir.uses_node(x, step))
    return AttentionShape(
        _of(tile.iter_vars[-2].dom.extent, size[0]),
        _of(step.iter_vars[0].dom.extent, size[1]),
        int(scores.iter_vars[2].dom.extent),
        int(values.iter_vars[1].dom.extent),
        ir.dtype_of(_block(func, "K_tile").writes[0].source),
        any(ir.depends_on(x.extent, own) for x in around),
    )


def _block(func: tirx.PrimFunc, name: str) -> ir.SBlock:
    found = ir.find_all(func.body, ir.SBlock, lambda x: str(x.name_hint) == name)
    if len(found) != 1:
        need, fix = f"one block {name} of the running form", "schedule what hs.online returns"
        raise cannot_schedule("attention", f"{len(found)} of them", need, fix)
    return found[0]


def _of(tiles: Any, size: int) -> int | None:
    count = ir.static_int(tiles)
    return None if count is None else count * size


def _with_tile(
    sch: s_tir.Schedule, form: OnlineForm, config: AttentionConfig
) -> s_tir.Schedule | None:
    """Return a schedule of the form that a configuration asks for; None if it is this one."""
    assert config.tile is not None
    assert config.consumers is not None
    wanted = (config.tile, config.consumers, config.splits or 1, bool(config.packs))
    if form.sizes == wanted:
        return None
    if form.plain is None or (sch.trace is not None and len(sch.trace.insts)):
        found = f"a form of {_call(form.sizes)}"
        found += "" if form.plain is None else ", scheduled already"
        raise cannot_schedule("attention", found, f"that of {_call(wanted)}", "begin with it")
    tile, parts, splits, packs = wanted
    made = online(form.plain, tile, parts, probabilities=form.weights, splits=splits, packs=packs)
    return s_tir.Schedule(made)


def _call(sizes: tuple[tuple[int, int], int, int, bool]) -> str:
    tile, parts, splits, packs = sizes
    return f"hs.online(mod, tile={tile}, parts={parts}, splits={splits}, packs={packs})"


def _apply(sch: s_tir.Schedule, config: AttentionConfig, listed: str) -> Any:
    """Schedule the form; return the block of a tile. `listed` is what `explain` says of others."""
    tile = sch.get_sblock("tile")
    *heads, rows, parts = sch.get_loops(tile)
    _deal_out(sch, heads, rows, config)
    schedule_tile(sch, parts, config, "tma")
    if listed:
        sch.annotate(sch.get_sblock("S_o"), CHOSEN, listed)
    if config.splits and config.splits > 1:
        schedule_merge(sch)
    return tile


def schedule_tile(
    sch: s_tir.Schedule, parts: Any, config: AttentionConfig, key_copies: str
) -> None:
    """Schedule what a thread block does for its tile.

    - `parts`: the loop over the parts of a tile's rows.
    - `config`: with all fields.
    - `key_copies`: how keys and values are copied, see `hs.async_copy`.
    """
    sch.bind(parts, "threadIdx.y")
    for name in (*IN_REGISTERS, *sorted(LIMITS & block_names(sch))):
        sch.set_scope(name, 0, "local")
    for name in TILES:
        sch.set_scope(name, 0, SHARED)
    sch.compute_at("Q_tile", parts)
    for name in TILES:
        # of one query there is no box of rows: threads of the producer copy it
        steps.async_copy(sch, sch.get_sblock(name), "auto" if name == "Q_tile" else key_copies)
    for name in ("S", "O"):
        steps.wgmma(sch, name)
    (keys,) = sch.get_loops(sch.get_sblock("step"))
    assert config.stages is not None
    assert config.consumers is not None
    roles = Roles(config.consumers, config.registers)
    late = ["O"] if config.overlap else []
    steps.pipeline(sch, keys, config.stages, roles, late=late, in_order=bool(config.in_order))


def schedule_merge(sch: s_tir.Schedule) -> None:
    """Let a thread merge an element: threads of a block have those of a row."""
    *rows, column = sch.get_loops(sch.get_sblock("merge"))
    sch.bind(sch.fuse(*rows), "blockIdx.x")
    sch.bind(column, "threadIdx.x")
    for name in ("merge_max_init", "merge_sum_init", "merge_values_init"):
        sch.set_scope(name, 0, "local")


def _deal_out(sch: s_tir.Schedule, heads: list[Any], rows: Any, config: AttentionConfig) -> None:
    """Deal tiles out to thread blocks: those of a head after each other, if the grid allows it."""
    persistent = config.persistent or 0
    if not heads and persistent:
        heads = [sch.add_unit_loop(rows)]
    head = sch.fuse(*heads) if len(heads) > 1 else heads[0] if heads else None
    if head is None:
        sch.bind(rows, "blockIdx.x")
        return
    count = ir.static_int(sch.get(head).extent)
    is_few = persistent or (count is not None and count <= MOST_HEADS)
    sch.bind(head, "blockIdx.y" if is_few else "blockIdx.x")
    sch.bind(rows, "blockIdx.x" if is_few else "blockIdx.y")
    if persistent:
        own = [x.var for x in sch.get(sch.get_sblock("tile")).iter_vars]
        step = sch.get(sch.get_loops(sch.get_sblock("step"))[-1])
        grows = ir.depends_on(step.extent, own)
        raster(sch, rows, persistent=persistent, curve=PAIRS if grows else None)
