"""Bare annotations, function attributes, PassContext keys: legal, misspelt, of odd types, astray.

`why_illegal` is an independent statement of the vocabulary: which key stands where, with which type
of value. What it calls illegal must be refused; what it lets pass may still be refused for its
value, or be served.
"""

import re
from dataclasses import dataclass, replace

from ..case import TARGET, Case, Step
from ..draw import Draw
from .matmul import matmul_step
from .steps import draw_plain

STAGE = "software_pipeline_stage"
ORDER = "software_pipeline_order"
ASYNC = "software_pipeline_async_stages"


@dataclass(frozen=True)
class Form:
    """Where a key may stand (names of `PLACES`), and what its value is."""

    places: tuple[str, ...]
    kind: type
    is_list: bool = False
    usual: str = "1"


FORMS = {
    STAGE: Form(("k0",), int, True, "[0, 0, 1]"),
    ORDER: Form(("k0",), int, True, "[0, 1, 2]"),
    ASYNC: Form(("k0",), int, True, "[0]"),
    "tvm_hopper.consumers": Form(("k0",), int),
    "tvm_hopper.registers": Form(("k0",), int, True, "[40, 232]"),
    "tvm_hopper.in_order": Form(("k0",), int),
    "tvm_hopper.wgmma_pending": Form(("k0", "func", "context"), int),
    "tvm_hopper.raster_group": Form(("j0", "func", "context"), int, usual="2"),
    "tvm_hopper.raster_curve": Form(("j0",), str, usual='"hilbert"'),
    "tvm_hopper.persistent": Form(("j0",), int, usual="2"),
    "tvm_hopper.turns": Form(("j0",), int, usual="2"),
    "tvm_hopper.stream": Form(("j0",), int),
    "tvm_hopper.async_copy": Form(("a_copy", "b_copy", "func", "context"), str, usual='"tma"'),
    "tvm_hopper.swizzle": Form(("a_copy", "b_copy"), int, usual="128"),
    "tvm_hopper.store_slots": Form(("a_copy", "b_copy"), int, usual="2"),
    "tvm_hopper.cache_hint": Form(("a_copy", "b_copy"), str, usual='"evict_first"'),
    "tvm_hopper.spare_rows": Form(("a_copy", "b_copy"), int),
    "tvm_hopper.load_hint": Form(("a_copy", "b_copy"), str, usual='"evict_last"'),
    "tvm_hopper.early_loads": Form(("a_copy", "b_copy"), int),
    "tvm_hopper.reduce": Form(("a_copy", "b_copy"), str, usual='"add"'),
    "tvm_hopper.across_blocks": Form(("k0",), str, usual='"blockIdx.z"'),
    "tvm_hopper.row_table": Form(("j0", "wgmma"), str, usual='"A"'),
    "tvm_hopper.share_loads": Form(("j0",), int),
    "tvm_hopper.across_cluster": Form(("k0",), int),
    "tvm_hopper.memory_bound": Form(("j0",), str, usual='"pointwise"'),
    "tvm_hopper.blocks_per_sm": Form(("j0",), int),
    "tvm_hopper.early_launch": Form(("j0",), int),
    "tvm_hopper.kept_end": Form(("j0",), int, usual="2"),
    "tvm_hopper.launched_together": Form(("j0",), int, usual="2"),
    "tvm_hopper.row_cluster": Form(("j0",), int, usual="2"),
    "tvm_hopper.prefetch_rows": Form(("k0",), int),
    "tvm_hopper.stage_rows": Form(("k0",), int),
    "tvm_hopper.skew_turns": Form(("k0",), int, usual="1"),
    "tvm_hopper.chosen": Form(("j0", "wgmma"), str, usual='"1"'),
    "tvm_hopper.chosen_for": Form(("j0",), int, True, "[64, 53]"),
    "tvm_hopper.configuration": Form(("j0",), str, usual='"matmul"'),
    "tvm_hopper.wgmma": Form(("wgmma",), int),
    "tvm_hopper.mma_sync": Form(("wgmma",), int),
    "tvm_hopper.accumulate": Form(("wgmma",), str, usual='"float32"'),
    "tvm_hopper.operands": Form(("wgmma",), str, usual='"tf32"'),
    "tvm_hopper.strict": Form(("func", "context"), bool, usual="True"),
    "tvm_hopper.checks": Form(("func", "context"), str, usual='"all"'),
    "tvm_hopper.compiler": Form(("func", "context"), str, usual='"nvrtc"'),
    "tvm_hopper.deterministic": Form(("func", "context"), bool, usual="True"),
    "tvm_hopper.functions": Form(("func", "context"), str, usual='"library"'),
    "tvm_hopper.line_info": Form(("func", "context"), str, usual='""'),
}
MISSPELT = (
    "TVM_HOPPER.wgmma_pending", "Tvm_Hopper.wgmma", "tvm_hopper_wgmma", "tvm_hopper:consumers",
    "tvm.hopper.wgmma_pending", "hopper.wgmma_pending", "tvm_hopper.wgma", "tvm_hoper.async_copy",
    "tvm_hopper.foo",
    "tvm_hopper.fast_math", "tvmhopper.swizzle", "tvm-hopper.consumers", "tvm_hopper.Async_copy",
    "sofware_pipeline_stage", "software_pipeline_stages", "software_pipeline_async_stage",
    "tvm_hopper.tile_loop", "tvm_hopper.async_op", "tvm_hopper.release", "tvm_hopper.plan",
)  # fmt: skip
FOREIGN = ("mykey", "my.tvm")
VALUES = (
    "1", "0", "2", "-1", "100", "2**31", "2**40", "[0, 0, 1]", "[0, 0, 2]", "[0, 1, 2]",
    "[1, 0, 2]", "[0, 0, 0]", "[0, 0, -1]", "[2, 2, 0]", "[0, 0, 100]", "[0]", "[0, 0, 0, 0]",
    "[40, 232]", "True", "False", '"tma"', '"nvcc"', '"float32"', '"1"', '""', "1.5", "1.0",
    "[0.0, 0.0, 2.0]",
    "[0, 0, 1.5]", '["0", "0", "2"]', '"0,0,2"', '{"a": 1}', 'tirx.IntImm("int64", 2)',
    '[tirx.IntImm("int64", 0), 0, 2]', "[True, True, False]", "[]",
)  # fmt: skip
PLACES = {
    "k0": "sch.get_loops(outer)[-1]",
    "j0": "sch.get_loops(outer)[-3]",
    "i0": "sch.get_loops(outer)[-4]",
    "part": "sch.get_loops(outer)[-2]",
    "a_copy": "a_copy",
    "b_copy": "b_copy",
    "a_loop": "sch.get_loops(a_copy)[-1]",
    "wgmma": "outer",
    "init": 'sch.get_sblock("C_init")',
    "update": 'sch.get_sblock("C_update")',
    "update_loop": 'sch.get_loops(sch.get_sblock("C_update"))[-1]',
    "store": "store",
    "store_loop": "sch.get_loops(store)[-1]",
    "root": 'sch.get_sblock("root")',
}
# blocks of a schedule by what they write, whatever their names are
LOOKUP = (
    "from tvm_hopper import ir",
    "names = [str(b.name_hint) for b in ir.find_all(sch.mod['main'].body, ir.SBlock)]",
    "a_copy, b_copy = [sch.get_sblock(x) for x in names if 'shared' in x and '_o' not in x][:2]",
    'outer = sch.get_sblock("C_update_o")',
    "store = sch.get_sblock([x for x in names if x.endswith('_local')][0])",
)


def why_illegal(key: str, place: str, value: str) -> str:
    """Say why no kernel can answer to a key at a place with a value; empty where one may."""
    if key in FOREIGN:
        return ""
    if key not in FORMS:
        return f"{key} is no key"
    form = FORMS[key]
    if place not in form.places:
        return f"{key} does not belong on {place}"
    made = eval(value, {"tirx": _NoTir})
    flat = made if isinstance(made, list) else [made]
    if isinstance(made, list) != form.is_list:
        return f"{key} is {'a list' if form.is_list else 'one value'}"
    legal = {int: (int,), bool: (bool, int), str: (str,)}[form.kind]
    if any(not isinstance(x, legal) for x in flat):
        return f"{key} is of {form.kind.__name__}"
    return ""


class _NoTir:
    """Stands for `tirx` where only the type of a value matters."""

    @staticmethod
    def IntImm(dtype: str, value: int) -> int:
        return value


def _annotate(draw: Draw) -> list[Step]:
    """Set one key at one place: mostly where it belongs, mostly with an odd value."""
    key = draw.choose((*FORMS, *MISSPELT, *FOREIGN))
    form = FORMS.get(key, Form(tuple(PLACES), int))
    place = draw.choose(form.places)
    if draw.chance(25):
        place = draw.choose((*PLACES, "func", "context"))
    value = draw.choose(VALUES) if draw.chance(75) else form.usual
    why = why_illegal(key, place, value)
    if place == "func":
        attribute = f'mod["main"].with_attr("{key}", {value})'
        return [Step(f'mod = tvm.IRModule({{"main": {attribute}}})', must_refuse=why)]
    if place == "context":
        return [Step(f'context["{key}"] = {value}', must_refuse=why)]
    at = PLACES[place]
    return [
        Step(f"where = {at}"),
        Step(f'"{key}" in sch.get(where).annotations and sch.unannotate(where, "{key}")'),
        Step(f'sch.annotate(where, "{key}", {value})', must_refuse=why),
    ]


def _remove(draw: Draw) -> list[Step]:
    """Take a key away."""
    place, key = draw.choose(
        (
            ("k0", STAGE), ("k0", ORDER), ("k0", ASYNC), ("k0", "tvm_hopper.consumers"),
            ("a_copy", "tvm_hopper.async_copy"), ("wgmma", "tvm_hopper.wgmma"),
        )
    )  # fmt: skip
    return [
        Step(f"where = {PLACES[place]}"),
        Step(f'"{key}" in sch.get(where).annotations and sch.unannotate(where, "{key}")'),
    ]


def _misspell(draw: Draw) -> list[Step]:
    """Exchange a key for a misspelt one: what it asked for is asked for by nobody then."""
    old, new = draw.choose(
        (
            (STAGE, "sofware_pipeline_stage"),
            (STAGE, "software_pipeline_stages"),
            ("tvm_hopper.consumers", "tvm_hopper_consumers"),
            ("tvm_hopper.consumers", "TVM_HOPPER.consumers"),
        )
    )
    keys = (STAGE, ORDER, ASYNC, "tvm_hopper.consumers") if new.startswith("sof") else (old,)
    steps = [Step(f"where = {PLACES['k0']}; held = dict(sch.get(where).annotations)")]
    for key in keys:
        named = key.replace("software_", "sofware_") if len(keys) > 1 else new
        steps.append(Step(f'sch.unannotate(where, "{key}")'))
        if key.startswith("software") or len(keys) == 1:
            steps.append(Step(f'sch.annotate(where, "{named}", held["{key}"])'))
    last = steps[-1]
    steps[-1] = Step(last.text, must_refuse=f"{new} is no key")
    return steps


def make(draw: Draw) -> Case:
    """Make one case."""
    consumers = draw.choose((1, 2))
    config = {
        "tile": (64 * consumers, 64, 64),
        "stages": draw.choose((2, 1, 3)),
        "consumers": consumers,
        "raster": draw.choose((1, 2)),
        "persistent": draw.choose((0, 2)),
    }
    # without what it asks for: an annotation may ask for something else
    steps = [Step(matmul_step("C", config).text), *map(Step, LOOKUP), Step("context = {}")]
    for _ in range(draw.choose((1, 2, 3), (75, 20, 5))):
        kind = draw.choose((_annotate, _remove, _misspell), (85, 8, 7))
        steps += kind(draw)
    script = draw_plain(draw, draw.choose(((64, 64, 64), (128, 128, 128), (100, 72, 200))))
    return Case(
        script.program(),
        tuple(_ordered(steps)),
        build=(
            "with tvm.transform.PassContext(config=context):\n"
            f'    ex = tvm.compile(mod, target="{TARGET}")'
        ),
        judged_at_build="annotations are read by the build",
        verify=draw.chance(5),
        cubin=draw.chance(10),
    )


def _ordered(steps: list[Step]) -> list[Step]:
    """Put what changes the module behind what changes the schedule.

    What a later statement about the same key may undo need not be refused.
    """
    late = [s for s in steps if s.text.startswith("mod = ")]
    found = [s for s in steps if s not in late] + [Step("mod = sch.mod")] * bool(late) + late
    for place, step in enumerate(found):
        key = re.search(r'"([\w.: -]*(?:hopper|pipeline)[\w.:-]*)"', step.text)
        if step.must_refuse and key and any(key[0] in s.text for s in found[place + 1 :]):
            found[place] = replace(step, must_refuse="")
    return found
