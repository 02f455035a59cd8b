"""`online`: rewrite softmax attention to its running form."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import tvm
from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.errors import cannot_schedule
from tvm_hopper.facts.dtypes import HALF_DTYPES
from tvm_hopper.requests.keys import MOST_CONSUMERS
from tvm_hopper.schedule import origins
from tvm_hopper.schedule.arguments import as_choice, as_int, as_pair, check_type

from .few_rows import pack_heads
from .recognize import recognize
from .running_form import AttentionTile, RunningForm

# Function attribute: rows of a tile, keys of a step, parts of a tile, splits, packs. It is no key
# of this package's requests (it has another prefix): the running form is plain loops.
ONLINE = "online_attention.tile"
ROWS_OF_A_WARP_GROUP = 64
KEYS_OF_AN_INSTRUCTION = 16


def online(
    mod: tvm.IRModule | tirx.PrimFunc,
    tile: tuple[int, int] = (128, 128),
    parts: int = 2,
    *,
    probabilities: str | None = None,
    splits: int = 1,
    packs: bool = False,
) -> Any:
    """Rewrite softmax attention in plain loops to one loop over keys with running sums.

    The scores are any elementwise expression of one product of queries and keys, of indices and of
    other tensors: a scale, a softcap, a bias, masks by comparisons of indices or by a tensor.
    Steps of keys that a mask of index arithmetic hides from all rows of a tile are left out.

    Parameters
    ----------
    mod : IRModule or PrimFunc
        Plain loops, as te, Relax and TVM's legalizer write them; it is left as it is. Each function
        of a module is rewritten.
    tile : (int, int)
        Rows of a tile, a multiple of 64 for each part, and keys of a step, a multiple of 16.
    parts : int
        Pieces that the rows of a tile are cut into, one for each consumer warp group.
    probabilities : str, optional
        Type in which weights multiply values: "float16", "bfloat16" or "float32". None: the type
        that the program rounds them to before this product, float32 if it does not.
    splits : int
        Parts that the keys are split into, each with thread blocks of its own: their results are
        merged by a second kernel.
    packs : bool
        Whether heads that share keys and values are rows of one tile, as suits few queries.

    Returns
    -------
    mod : IRModule or PrimFunc
        The running form, still plain loops. Scores, maxima and sums are float32, without roundings
        to narrower types in between.

    Raises
    ------
    ScheduleError
        A function is no attention, or one in a form that is not supported.

    Notes
    -----
    A row whose keys are all masked by minus infinity is NaN, as in the program, or what the program
    selects for it. What a masked key holds never changes a result; a NaN in its value may.
    """
    if not isinstance(mod, (tvm.IRModule, tirx.PrimFunc)):
        raise cannot_schedule("online", f"{type(mod).__name__}", "an IRModule or a PrimFunc")
    shape = replace(_as_shape(tile, parts), splits=as_int("online", "splits", splits, 1) or 1)
    check_type("online", "packs", packs, bool, "a bool")
    dtype = as_choice("online", "probabilities", probabilities, (*HALF_DTYPES, "float32"))
    if isinstance(mod, tirx.PrimFunc):
        return _rewrite(mod, shape, dtype, packs)
    result = tvm.IRModule(mod.functions, attrs=mod.attrs, global_infos=mod.global_infos)
    for gv, func in mod.functions.items():
        if isinstance(func, tirx.PrimFunc):
            result.update_func(gv, _rewrite(func, shape, dtype, packs))
    origins.note(result, mod)
    return result


def _as_shape(tile: Any, parts: Any) -> AttentionTile:
    count = as_int("online", "parts", parts, 1, MOST_CONSUMERS) or 1
    least = ROWS_OF_A_WARP_GROUP * count
    need = f"rows, a multiple of {least}, and keys, one of {KEYS_OF_AN_INSTRUCTION}"
    pair = as_pair("online", "tile", tile, need)
    sizes = least, KEYS_OF_AN_INSTRUCTION
    if pair is None or any(x <= 0 or x % y for x, y in zip(pair, sizes, strict=True)):
        raise cannot_schedule("online", f"tile={tile}", need)
    return AttentionTile(*pair, count)


def _rewrite(
    func: tirx.PrimFunc, shape: AttentionTile, dtype: str | None, packs: bool
) -> tirx.PrimFunc:
    attention = recognize(func)
    if packs:
        attention = pack_heads(attention)
    body, buffers = RunningForm(attention, shape, dtype or attention.probabilities).build()
    root = func.body
    block = ir.with_block(root.block, body=body, alloc_buffers=buffers)
    func = func.with_body(ir.SBlockRealize(root.iter_values, root.predicate, block))
    sizes = [shape.rows, shape.keys, shape.parts, shape.splits, int(packs)]
    return func.with_attr(ONLINE, sizes)
