"""`hs.paged_attention`: values in the simulator against float64 and TVM's kernels; refusals."""

from dataclasses import replace

import numpy as np
import pytest
import tvm
from tvm.script import tirx as T

from tests.schedule.attention.caches import (
    TARGET,
    Cache,
    our_kernel,
    paged_arguments,
    ragged_arguments,
    reference,
    tvm_kernel,
)
from tvm_hopper import ir, pipeline, schedule as hs, verify
from tvm_hopper.errors import LoweringError, ScheduleError
from tvm_hopper.reference.evaluate import Reference
from tvm_hopper.requests.keys import ROW_TABLE
from tvm_hopper.simulation import simulate
from tvm_hopper.verification.lengths import WAYS, find_lengths

SMALL = {"tile": (64, 32), "consumers": 1, "persistent": 0}
MANY = {**SMALL, "persistent": -1}


def run(func, given, **options):
    done = simulate(func, {**given}, target=TARGET, **options)
    assert done.findings == ()
    return done.outputs["output"].astype("float64"), done.outputs["lse"]


def check(case, ragged=False, **config):
    """Simulate a kernel of ours, and compare its values with float64."""
    given, parts = (ragged_arguments if ragged else paged_arguments)(case)
    output, lse = run(our_kernel(case, ragged, **config), given)
    out, log_sum = reference(case, parts)
    tolerance = 1e-2 if case.dtype == "bfloat16" else 2e-3
    np.testing.assert_allclose(output, out, atol=tolerance, rtol=tolerance)
    np.testing.assert_allclose(lse, log_sum, atol=1e-4, rtol=1e-4)


ONE = Cache(keys=(70,), queries=(70,))
EMPTY = Cache(keys=(0, 70, 5, 150, 0), queries=(3, 70, 0, 130, 0))
RAGGED = {
    "one": ONE,
    "any empty": EMPTY,
    "not causal": replace(EMPTY, causal=0),
    "fewer queries than keys": Cache(keys=(90, 33), queries=(20, 1), kv_heads=2, heads=4),
    "bfloat16, a group of 8": replace(ONE, heads=8, dtype="bfloat16"),
    "no queries": Cache(keys=(5,), queries=(0,)),
    "no keys": Cache(keys=(0, 0), queries=(3, 1)),
    "few keys": Cache(keys=(3, 0), queries=(0, 1)),
}


@pytest.mark.parametrize("name", RAGGED)
def test_ragged_prefill(name):
    check(RAGGED[name], ragged=True, **SMALL)


@pytest.mark.parametrize("name", ["any empty", "not causal", "no queries", "no keys"])
def test_tiles_in_turn(name):
    """Persistent blocks: tiles without keys take no step."""
    check(RAGGED[name], ragged=True, **MANY)
    check(replace(RAGGED[name], d=64), **MANY)


def test_the_host_chooses_whether_blocks_are_persistent():
    text = our_kernel(ONE, ragged=True).script()
    assert "qo_len * 2 // 128 > 1056 and qo_len <= batch_size * 1024" in text
    assert text.count('T.sblock("attention_of_many")') == 1
    assert text.count('T.sblock("attention")') == 1


def test_ragged_prefill_as_it_is_chosen():
    """Tiles of 128 rows, two consumers that take turns."""
    check(replace(EMPTY, d=64), ragged=True)


PAGED = {
    "one": ONE,
    "any empty": EMPTY,
    "not causal": replace(EMPTY, causal=0),
    "shared pages": Cache(keys=(48, 70, 33), queries=(8, 40, 33), shared=True),
    "more keys than a step": Cache(keys=(200,), queries=(3,), heads=4, kv_heads=2),
    "windows with sinks": Cache(
        (150, 70, 0, 20, 90), (130, 3, 2, 0, 70), windows=((30, 4), (0, 0), (0, 0), (3, 3), (9, 2)),
        window_size=80,
    ),
    "a window, not causal": Cache((150,), (70,), causal=0, windows=((30, 4),), window_size=40),
    "no window in the mask": Cache((150,), (70,), windows=((30, 4),), window_size=0),
    "pages of 1": Cache((40, 3), (9, 3), page=1),
    "pages of 64": Cache((140, 3), (9, 3), page=64),
}  # fmt: skip


@pytest.mark.parametrize("name", PAGED)
def test_paged_prefill(name):
    check(PAGED[name], **SMALL)


LENGTHS = (70, 0, 130, 16, 1)
DECODE = {
    "one part": (Cache(LENGTHS), {"splits": 1}),
    "three parts": (Cache(LENGTHS), {"splits": 3}),
    "as many parts as fill the chip": (Cache((0, 300)), {}),
    "one head a group": (Cache(LENGTHS, heads=2, kv_heads=2), {"splits": 1}),
    "a group of 5": (Cache(LENGTHS, heads=10, kv_heads=2, d=64), {"splits": 2}),
    "bfloat16": (Cache((40,), dtype="bfloat16"), {"splits": 1}),
    "shared pages": (Cache((48, 70, 33), shared=True), {"splits": 1}),
    "windows with sinks": (
        Cache((70, 40, 130, 0), windows=((20, 4), (0, 0), (67, 17), (0, 0))),
        {"splits": 2},
    ),
    "no parts, as the host counts": (Cache((20, 3, 5, 1), heads=34, kv_heads=34), {}),
    "no parts, whatever it counts": (Cache((3,), heads=133, kv_heads=133), {}),
    "two stages, one step": (Cache((70,)), {"splits": 1, "stages": 2, "tile": (64, 80)}),
}


@pytest.mark.parametrize("name", DECODE)
def test_paged_decode(name):
    case, config = DECODE[name]
    check(case, **config)


# -- next to TVM's kernels


@pytest.mark.parametrize(
    ("case", "ragged"),
    [
        (Cache(keys=(9, 0, 20), queries=(9, 1, 4)), True),
        (Cache(keys=(9, 0, 20), queries=(9, 1, 4)), False),
        (Cache(keys=(9, 0, 40), heads=4, kv_heads=2), False),
        (Cache(keys=(40, 33), windows=((8, 2), (17, 0))), False),
        (Cache((40, 33), (9, 33), windows=((8, 2), (17, 0)), window_size=34), False),
    ],
    ids=["ragged", "prefill", "decode", "window", "window of a prefill"],
)
def test_tvm_s_kernel_agrees(case, ragged):
    given, _ = (ragged_arguments if ragged else paged_arguments)(case)
    ours, lse = run(our_kernel(case, ragged), given)
    # in its decode kernel threads write the same result to the same element
    theirs, their_lse = run(tvm_kernel(case, ragged), given, detect_races=False)
    np.testing.assert_allclose(ours, theirs, atol=2e-3, rtol=2e-3)
    # each of its 32 warps' denominators begins at 1: -5e4 + log2(33) where there is no key
    np.testing.assert_allclose(lse, their_lse, atol=1e-4, rtol=2e-4)


def test_it_keeps_the_parameters():
    case = Cache((70,))
    theirs, ours = tvm_kernel(case), our_kernel(case)
    assert [str(x.name) for x in ours.params] == [str(x.name) for x in theirs.params]
    assert ours.attrs["global_symbol"] == theirs.attrs["global_symbol"]
    assert our_kernel(ONE, ragged=True, **SMALL).attrs["tirx.is_scheduled"]


def test_a_table_read_out_of_bounds_is_found():
    """The page table of a sequence that is longer than it says."""
    case = Cache((70,))
    given, _ = paged_arguments(case)
    given["page_table_values"] = np.full_like(given["page_table_values"], 1000)
    done = simulate(our_kernel(case, splits=1), given, target=TARGET)
    assert {x.rule for x in done.findings} >= {"OOB_ACCESS"}


def test_pools_beyond_32_bits():
    """Elements of pages are counted in 64 bits, from the page's number on."""
    mod = tvm.IRModule({"main": our_kernel(Cache((70,)), splits=1)})
    kernels = pipeline.lower_final(mod, TARGET).device.functions.values()
    loads = [x for k in kernels for x in ir.find_all(k.body, ir.TensorLoad)]
    places = [i for x in loads if str(x.source.name).startswith("pages") for i in x.indices]
    assert places
    assert {ir.dtype_of(x) for x in places} == {"int64"}
    casts = [y for x in places for y in ir.find_all(x, tvm.tirx.Cast)]
    wide = {str(x.value.source.name) for x in casts if isinstance(x.value, ir.TensorLoad)}
    assert "page_table_values" in wide


def test_rows_that_a_table_places_need_a_word():
    """That no two tiles store the same row follows from the table's contents alone."""

    def forget(block):
        notes = {k: v for k, v in block.annotations.items() if k != ROW_TABLE}
        return ir.with_block(block, annotations=notes)

    func = our_kernel(ONE, ragged=True, **SMALL)
    func = func.with_body(ir.replace(func.body, ir.SBlock, forget))
    with pytest.raises(LoweringError, match="several elements of the product can meet"):
        pipeline.lower(tvm.IRModule({"main": func}), TARGET)


# -- refusals


@T.prim_func(s_tir=True)
def other(a: T.Buffer((4,), "float32")):
    a[0] = T.float32(0)


@pytest.mark.parametrize(
    ("func", "match"),
    [
        (lambda: other, "PrimFunc; need a function with the parameters of a kernel of TVM's paged"),
        (lambda: 3, "int; need a function with the parameters"),
        (
            lambda: _without_a_body(tvm_kernel(replace(ONE, windows=((0, 0),)))),
            "paged prefill: found a sliding window; need TVM's mask of one, max",
        ),
        (
            lambda: tvm_kernel(Cache((70,), heads=65, d=128)),
            "paged decode: found 65 heads that share keys; need at most 64",
        ),
        (
            lambda: _of_type(tvm_kernel(ONE, ragged=True), "float32"),
            "ragged prefill: found q of float32; need float16 or bfloat16",
        ),
        (
            lambda: _of_type(tvm_kernel(ONE), "float8_e4m3fn", "pages"),
            "paged prefill: found pages of float8_e4m3fn with q of float16; need one type",
        ),
    ],
    ids=["another", "no function", "window", "heads", "float32", "float8"],
)
def test_refusals(func, match):
    with pytest.raises(ScheduleError, match=match):
        hs.paged_attention(func(), "tvm_s")


def _without_a_body(func):
    return tvm.tirx.PrimFunc(func.params, tvm.tirx.Evaluate(0))


def _of_type(func, dtype, *names):
    params = [
        tvm.tirx.decl_buffer(x.shape, dtype, name=x.name)
        if tvm.tirx.is_buffer_var(x)
        and (str(x.name) in names if names else ir.dtype_of(x) == "float16")
        else x
        for x in func.params
    ]
    return tvm.tirx.PrimFunc(params, tvm.tirx.Evaluate(0))


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ((3,), "need a function's name"),
        (("tvm_s", 3), "need an hs.AttentionConfig"),
        (("tvm_s", hs.AttentionConfig(tile=(64, 4096))), "bytes of shared memory"),
    ],
)
def test_arguments(arguments, match):
    with pytest.raises(ScheduleError, match=match):
        hs.paged_attention(tvm_kernel(ONE, ragged=True), *arguments)


def test_decoding_has_no_persistent_blocks():
    with pytest.raises(ScheduleError, match="found persistent=-1; need 0: a thread block has one"):
        our_kernel(Cache((3,)), persistent=-1)


def test_the_plain_loops_need_a_kernel_of_the_cache():
    with pytest.raises(ScheduleError, match="PrimFunc; need a function with the parameters"):
        hs.cache_loops(other)


PLAIN = {
    "ragged": (replace(EMPTY, heads=4, kv_heads=2), True),
    "prefill": (Cache((20, 33, 5), (7, 33, 2), page=8), False),
    "decode": (Cache((20, 33, 5)), False),
    "window": (Cache((70, 40, 33), windows=((20, 4), (0, 0), (17, 17))), False),
    "window of a prefill": (
        Cache((70, 40), (7, 33), windows=((20, 4), (0, 0)), window_size=30), False
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PLAIN)
def test_plain_loops(name):
    """They compute what float64 does; of tables and lengths they say what these may hold."""
    case, ragged = PLAIN[name]
    loops = hs.cache_loops(tvm_kernel(case, ragged))
    given, parts = (ragged_arguments if ragged else paged_arguments)(case)
    names = [str(x.name) for x in loops.params]
    place, plain = names.index("output"), Reference(loops, moved_roundings=True)
    arguments = [given[x] for x in names]
    found = plain.evaluate(arguments, {place: tuple((0, n - 1) for n in given["output"].shape)})
    want, _ = reference(case, parts)
    assert (np.abs(found[place].value - want) <= found[place].error + 1e-6).all()
    drawn = {names[x.place] for x in find_lengths(loops, plain.sizes(arguments))}
    lengths = {"length_info"} if case.windows is None and not ragged else set()
    assert drawn >= {x for x in names if "indptr" in x} | lengths
    indices = {names[x] for x in plain.legal_indices(arguments)}
    assert indices == {x for x in names if "values" in x}


@pytest.mark.slow
def test_verify_draws_tables_and_lengths():
    case = Cache((1,), d=64)
    given = {"B": 3, "max_num_pages": 9, "nnz_pages": 8}
    given |= {"rotary_mode": 0, "rope_scale": 1.0, "rope_theta": 1e4, "sm_scale": 0.2}
    done = verify(
        our_kernel(case, splits=2), given, (("eager", 0), ("on_wait", 0), ("random", 1)),
        against=hs.cache_loops(tvm_kernel(case)), target=TARGET, budget_s=240,
    )  # fmt: skip
    assert done.verdict == "clean", done
    assert done.values.text.count("on integers") == len(WAYS)
