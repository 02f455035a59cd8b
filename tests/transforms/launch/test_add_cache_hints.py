"""AddCacheHints: vectors that are loaded with a word to the caches."""

import pytest
import tvm

from tests.transforms.scripts import check, parse, run
from tvm_hopper import ir, pipeline
from tvm_hopper.errors import LoweringError
from tvm_hopper.requests import marks
from tvm_hopper.transforms.launch.add_cache_hints import AddCacheHints

BEFORE = """
def func(X: T.Buffer((8, 512), "float16"), Y: T.Buffer((8, 512), "float16")):
    for bx in T.thread_binding(8, thread="blockIdx.x"):
        for tx in T.thread_binding(32, thread="threadIdx.x"):
            with T.sblock("work", reads=[X[bx, 0:512]], writes=[Y[bx, 0:512]]):
                kept = T.sblock_alloc_buffer((2, 8), "float16", scope="local")
                for c in T.unroll(2):
                    for v in T.vectorized(8):
                        with T.sblock("load", where=WHERE, reads=[X[bx, c * 256 + tx * 8 + v]],
                            writes=[kept[c, v]], load_hint="evict_last"):
                            kept[c, v] = X[bx, c * 256 + tx * 8 + v]
"""
AFTER = """
def func(X: T.Buffer((8, 512), "float16"), Y: T.Buffer((8, 512), "float16")):
    for bx in T.thread_binding(8, thread="blockIdx.x"):
        for tx in T.thread_binding(32, thread="threadIdx.x"):
            with T.sblock("work", reads=[X[bx, 0:512]], writes=[Y[bx, 0:512]]):
                kept = T.sblock_alloc_buffer((2, 8), "float16", scope="local")
                policy = T.sblock_alloc_buffer((1,), "uint64", scope="local")
                T.ptx["createpolicy.fractional.L2::evict_last.b64"](policy[0])
                for c in T.unroll(2):
                    words = T.decl_buffer((8,), "uint32", data=kept.data, scope="local")
                    T.ptx["ld.global.L1::evict_last.L2::cache_hint.v4.b32"](words[c * 4],
                        words[c * 4 + 1], words[c * 4 + 2], words[c * 4 + 3],
                        T.address_of(X[bx, c * 256 + tx * 8]), policy[0])
"""
ALWAYS = ("where=WHERE, ", "")
PLAIN = (', load_hint="evict_last"', "")


def loads(func):
    """Return the PTX loads of a function, as text."""
    return [x.script() for x in ir.find_all(func.body, ir.Call) if "ld_vec" in str(x.op)]


def test_a_vector_is_loaded_with_a_policy():
    check(run(parse(BEFORE, ALWAYS), AddCacheHints()), parse(AFTER))


def test_the_condition_of_a_load_stays():
    got = run(parse(BEFORE, ("WHERE", "tx < 7")), AddCacheHints())
    (branch,) = ir.find_all(got.body, ir.IfThenElse)
    tvm.ir.assert_structural_equal(
        branch.condition, ir.thread_axes(got.body)["threadIdx.x"].loop_var < 7
    )


def test_each_kind_has_a_policy_of_its_own():
    twice = BEFORE + BEFORE[BEFORE.index("                for c in") :].replace(
        "evict_last", "evict_first"
    ).replace('"load"', '"again"')
    text = run(parse(twice, ALWAYS), AddCacheHints()).script()
    assert text.count("createpolicy") == 2
    assert '"L1::evict_first", "L2::cache_hint"' in text


@pytest.mark.parametrize(
    "vector", [("T.vectorized(8)", "T.unroll(8)"), ("T.vectorized(8)", "T.vectorized(2)")]
)
def test_what_is_no_long_vector_is_loaded_without(vector):
    got = run(parse(BEFORE, ALWAYS, vector), AddCacheHints())
    check(got, parse(BEFORE, ALWAYS, vector, PLAIN))


def test_a_copy_by_hardware_has_a_word_of_its_own():
    beside = frozenset({"tvm_hopper.load_hint", "tvm_hopper.async_copy"})
    request = marks.Request("block", "A_shared", "tvm_hopper.load_hint", "evict_last", "", beside)
    match = r"load_hint next to tvm_hopper\.async_copy; need tvm_hopper\.cache_hint there"
    with pytest.raises(LoweringError, match=match):
        marks.check_request("main", request)


def test_vectors_of_8_bytes_have_two_words():
    half = [("T.vectorized(8)", "T.vectorized(4)"), ("(2, 8)", "(2, 4)")]
    assert '"v2", "b32"' in run(parse(BEFORE, ALWAYS, *half), AddCacheHints()).script()


def test_what_has_no_hint_stays():
    func = parse(BEFORE, ALWAYS, PLAIN)
    check(run(func, AddCacheHints()), func)


def test_fallbacks_are_found_before():
    names = pipeline.passes.names(pipeline.passes.hook_passes())
    place = names.index("tvm_hopper.AddCacheHints")
    assert names.index("tvm_hopper.RecordModelChoice") < place


KEPT = ('thread="blockIdx.x"):', 'thread="blockIdx.x", kept_end=2):')
STORED = """
                for c in T.unroll(2):
                    for v in T.vectorized(8):
                        with T.sblock("store", reads=[kept[c, v]],
                            writes=[Y[bx, c * 256 + tx * 8 + v]]):
                            Y[bx, c * 256 + tx * 8 + v] = kept[c, v]
"""
POLICIES = """\
                loads = T.sblock_alloc_buffer((1,), "uint64", scope="local")
                stores = T.sblock_alloc_buffer((1,), "uint64", scope="local")
                first = T.sblock_alloc_buffer((1,), "uint64", scope="local")
                last = T.sblock_alloc_buffer((1,), "uint64", scope="local")
                normal = T.sblock_alloc_buffer((1,), "uint64", scope="local")
                T.ptx["createpolicy.fractional.L2::evict_first.b64"](first[0])
                T.ptx["createpolicy.fractional.L2::evict_last.b64"](last[0])
                T.ptx["createpolicy.fractional.L2::evict_normal.b64"](normal[0])
                loads[0] = T.Select(bx >= 6, first[0], last[0])
                stores[0] = T.Select(bx >= 6, last[0], normal[0])
"""
STORED_BY_POLICY = """
                for c in T.unroll(2):
                    words_1 = T.decl_buffer((8,), "uint32", data=kept.data, scope="local")
                    T.ptx["st.global.L2::cache_hint.v4.b32"](T.address_of(Y[bx, c * 256 + tx * 8]),
                        words_1[c * 4], words_1[c * 4 + 1], words_1[c * 4 + 2], words_1[c * 4 + 3],
                        stores[0])
"""


def test_the_last_thread_blocks_keep_what_they_store():
    one = AFTER[AFTER.index("                policy =") : AFTER.index("                for c in")]
    want = parse(AFTER + STORED_BY_POLICY, (one, POLICIES), ("policy[0])", "loads[0])"))
    check(run(parse(BEFORE + STORED, ALWAYS, KEPT), AddCacheHints()), want)


def test_an_end_of_stores_alone():
    text = run(parse(BEFORE + STORED, ALWAYS, KEPT, PLAIN), AddCacheHints()).script()
    assert "T.ptx.ld(" not in text
    assert text.count("createpolicy") == 2


def test_stores_that_are_no_long_vectors_have_no_word():
    short = [("T.vectorized(8)", "T.vectorized(2)"), ("(2, 8)", "(2, 2)")]
    after = run(parse(BEFORE + STORED, ALWAYS, KEPT, *short), AddCacheHints())
    assert "policy" not in after.script()
    assert "kept_end" not in after.script()


def test_the_end_of_a_grid_that_is_known_at_run_time():
    rows = [
        ("def func(X: T.Buffer((8, 512)", "def func(n: T.int32, X: T.Buffer((n, 512)"),
        ("Y: T.Buffer((8, 512)", "Y: T.Buffer((n, 512)"),
        ("T.thread_binding(8,", "T.thread_binding(n,"),
    ]
    assert (
        "bx >= n - 2" in run(parse(BEFORE + STORED, ALWAYS, *rows, KEPT), AddCacheHints()).script()
    )
