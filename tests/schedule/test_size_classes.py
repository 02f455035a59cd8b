"""`hs.size_classes` and `hs.matmul(classes=, rows=)`: a kernel for each range of symbolic rows."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import s_tir
from tvm.script import tirx as T

from tvm_hopper import ir, schedule as hs
from tvm_hopper.analysis.launches import as_text, conditions_around
from tvm_hopper.errors import ScheduleError
from tvm_hopper.requests.keys import CHOSEN, CHOSEN_FOR, PERSISTENT, RASTER_GROUP
from tvm_hopper.schedule.origins import plain_of
from tvm_hopper.schedule.products.branches import look_at
from tvm_hopper.testing import workloads
from tvm_hopper.testing.serial import as_serial, run_serially

BOUNDS = (4, 64, 100)
EDGES = (0, 1, 4, 5, 64, 65, 101)
PLAIN = {"m": "m", "n": 40, "k": 72}
RICH = {
    "m": "m",
    "n": 40,
    "k": 72,
    "layout": "NN",
    "index": "int64",
    "batch": True,
    "cast_stage": True,
    "out_dtype": "float16",
    "epilogue": ("bias_row", "relu", "residual"),
}


def block_names(mod, name="main"):
    return [str(x.name_hint) for x in ir.find_all(mod[name].body, ir.SBlock)]


def conditions(mod, name="main"):
    return [str(x.condition) for x in ir.find_all(mod[name].body, ir.IfThenElse)]


def check_values(mod, changed, options, rows=EDGES):
    executable = tvm.compile(as_serial(changed), target="llvm")
    for m in rows:
        inputs = workloads.make_inputs(mod, m=m)
        shape, dtype = workloads.argument_types(mod, m=m)[-1]
        output = tvm.runtime.tensor(np.full(shape, -1, workloads.numpy_type(dtype)))
        executable["main"](*map(tvm.runtime.tensor, inputs), output)
        got = output.numpy()
        want = workloads.reference(inputs, options.get("layout", "NT"), options.get("epilogue", ()))
        np.testing.assert_array_equal(got.astype(float), want)


@pytest.mark.parametrize("options", [PLAIN, RICH], ids=["plain", "rich"])
def test_branches_compute_what_the_product_did(options):
    mod = workloads.matmul(**options)
    changed = hs.size_classes(mod, "C", BOUNDS)
    assert [x for x in block_names(changed) if x.startswith("C_rows")] == [
        f"C_rows_{bound}" for bound in BOUNDS
    ]
    assert {f"C_{bound}" for bound in BOUNDS} < set(block_names(changed))
    assert "C" not in block_names(changed)
    assert [x.replace("T.int64", "") for x in conditions(changed)] in (
        ["m <= 4", "m <= 64"],
        ["m <= (4)", "m <= (64)"],
    )
    check_values(mod, changed, options)


@pytest.mark.parametrize("options", [PLAIN, RICH], ids=["plain", "rich"])
def test_kernels_compute_what_the_product_did(options):
    mod = workloads.matmul(**options)
    sch = s_tir.Schedule(mod)
    hs.matmul(sch, "C", classes=BOUNDS)
    func = sch.mod["main"]
    assert len(ir.kernels(func)) == len(BOUNDS)
    chosen = [ir.thread_axes(x)["blockIdx.x"].annotations for x in ir.kernels(func)]
    assert [int(x[CHOSEN_FOR][0]) for x in chosen] == list(BOUNDS)
    assert [PERSISTENT in x for x in chosen] == [False, False, True]  # there is no last row
    check_values(mod, sch.mod, options)


RANGES = {4: 4, 40: 64, 64: 4, 100: 64, 128: 200, 150: 4}


@pytest.mark.parametrize("options", [PLAIN, RICH], ids=["plain", "rich"])
def test_a_kernel_of_several_ranges(options):
    mod = workloads.matmul(**options)
    changed = hs.size_classes(mod, "C", RANGES)
    names = [x for x in block_names(changed) if x.startswith("C_rows")]
    assert names == ["C_rows_64", "C_rows_200", "C_rows_4"]  # the one without an end comes last
    sch = s_tir.Schedule(mod)
    hs.matmul(sch, "C", classes=RANGES)
    kernels = ir.kernels(sch.mod["main"])
    assert [as_text(conditions_around(sch.mod["main"].body, x)) for x in kernels] == [
        "5 <= m <= 40 or 65 <= m <= 100",
        "101 <= m <= 128",
        "m <= 4 or 41 <= m <= 64 or m >= 129",
    ]
    chosen = [ir.thread_axes(x)["blockIdx.x"].annotations for x in kernels]
    assert [int(x[CHOSEN_FOR][0]) for x in chosen] == [64, 200, 4]
    # Also above the rows that it is chosen for, unless SMs are enough for all tiles there.
    assert [PERSISTENT in x for x in chosen] == [False, False, True]
    check_values(mod, sch.mod, options, (0, 4, 5, 40, 41, 64, 65, 100, 101, 128, 129, 151))


def test_a_kernel_of_more_rows_than_it_is_chosen_for_shares_out_its_tiles():
    sch = s_tir.Schedule(workloads.matmul("m", 4096, 64))
    hs.matmul(sch, "C", classes={64: 64, 2048: 128, 4096: 64, 8192: 2048})
    chosen = [ir.thread_axes(x)["blockIdx.x"].annotations for x in ir.kernels(sch.mod["main"])]
    assert {int(x[CHOSEN_FOR][0]): PERSISTENT in x for x in chosen} == {
        64: True, 128: True, 2048: True,
    }  # fmt: skip


def test_a_bound_is_known_in_each_of_several_ranges():
    changed = hs.size_classes(workloads.matmul(**PLAIN), "C", {4: 4, 40: 64, 64: 4, 90: 64, 99: 8})
    sch = s_tir.Schedule(changed)
    for name, bound in (("C_64", 90), ("C_4", 64), ("C_8", None)):
        assert look_at(sch, sch.get_sblock(name)).most_rows == bound


def test_a_function_and_one_of_a_module():
    mod = workloads.matmul(**PLAIN)
    func = hs.size_classes(mod["main"], "C", [8])
    want = hs.size_classes(mod, "C", [8])["main"]
    tvm.ir.assert_structural_equal(func, want)
    assert conditions({"main": func}) == []  # one class has no bound
    two = tvm.IRModule({"main": mod["main"], "other": workloads.matmul(64, 64, 64)["main"]})
    with pytest.raises(ScheduleError, match="functions main, other, which all have it; need one"):
        hs.size_classes(two, "C", BOUNDS)


def test_each_class_is_scheduled_by_itself_too():
    mod = workloads.matmul(**PLAIN)
    together = s_tir.Schedule(mod)
    configs = {
        4: hs.MatmulConfig((64, 8, 64), stages=1),
        100: hs.MatmulConfig((128, 40, 64), stages=2, consumers=2),
    }
    hs.matmul(together, "C", classes=configs)
    apart = s_tir.Schedule(hs.size_classes(mod, "C", tuple(configs)))
    hs.matmul(apart, "C_4", configs[4])  # the branch says for how many rows
    hs.matmul(apart, "C_100", configs[100], rows=100)
    tvm.ir.assert_structural_equal(apart.mod, together.mod)


def test_tiles_are_ordered_for_the_most_rows_of_a_kernel():
    """Else B is loaded anew for each few rows of tiles."""
    groups = []
    for ranges in ({128: 128, 8192: 512}, {128: 128, 512: 512, 2048: 128, 8192: 512}):
        sch = s_tir.Schedule(workloads.matmul("m", 4096, 4096, out_dtype="float16"))
        hs.matmul(sch, "C", classes=ranges)
        axes = [ir.thread_axes(x)["blockIdx.x"].annotations for x in ir.kernels(sch.mod["main"])]
        groups.append([int(x.get(RASTER_GROUP, 1)) for x in axes])
    assert groups == [[2, 16], [16, 16]]


def test_what_is_given_holds_for_every_class():
    sch = s_tir.Schedule(workloads.matmul("m", 64, 64, acc_dtype="float16", cast="none",
                                          out_dtype="float16"))  # fmt: skip
    config = hs.MatmulConfig(swizzle=32, accumulate="float32")
    hs.matmul(sch, "C", config, classes=(64, 256))
    blocks = ir.find_all(sch.mod["main"].body, ir.SBlock)
    assert [int(x.annotations["tvm_hopper.swizzle"]) for x in blocks
            if "tvm_hopper.swizzle" in x.annotations] == [32] * 4  # fmt: skip


def test_classes_are_the_models_unless_the_configuration_is_one_kernels():
    mod = workloads.matmul("m", 4096, 256)
    chosen = set(hs.choose_ranges(4096, 256, out_dtype="float32").values())
    assert len(chosen) > 1
    wide = hs.MatmulConfig(swizzle=64)
    of_tiles = set(hs.choose_ranges(4096, 256, given=wide, out_dtype="float32").values())
    assert 1 not in of_tiles  # which excludes dot products
    for config, count in ((None, len(chosen)), (wide, len(of_tiles)),
                          (hs.MatmulConfig((64, 64, 64)), 1), (hs.MatmulConfig(stages=2), 1),
                          (hs.MatmulConfig(consumers=1), 1)):  # fmt: skip
        sch = s_tir.Schedule(mod)
        hs.matmul(sch, "C", config)
        assert len(ir.kernels(sch.mod["main"])) == count


def test_one_kernel_on_request():
    mod = workloads.matmul("m", 4096, 256)
    one, many, few = (s_tir.Schedule(mod) for _ in range(3))
    hs.matmul(one, "C", classes=())
    hs.matmul(many, "C", hs.choose_config(4096, 4096, 256, out_dtype="float32"))
    choices = [x for x in ir.find_all(one.mod["main"].body, ir.SBlock) if CHOSEN in x.annotations]
    assert len(choices) == 1  # noted where the tile was left open
    one.unannotate(one.get_sblock(choices[0].name_hint), CHOSEN)
    tvm.ir.assert_structural_equal(one.mod, many.mod)
    hs.matmul(few, "C", rows=64)
    (kernel,) = ir.kernels(few.mod["main"])
    notes = ir.thread_axes(kernel)["blockIdx.x"].annotations
    assert int(notes[CHOSEN_FOR][0]) == 64
    assert int(notes[PERSISTENT]) == hs.BY_DEVICE  # although 64 rows have few tiles
    small = hs.choose_config(64, 4096, 256, out_dtype="float32")
    axis = "blockIdx.y" if small.transposed else "blockIdx.x"
    columns = small.tile[0 if small.transposed else 1]
    assert int(ir.thread_axes(kernel)[axis].extent) == -(-4096 // columns)


def test_the_plain_program_stays_known():
    mod = workloads.matmul(**PLAIN)
    sch = s_tir.Schedule(mod)
    hs.matmul(sch, "C", classes=BOUNDS)
    assert plain_of(sch).same_as(mod)
    changed = hs.size_classes(mod, "C", BOUNDS)
    assert plain_of(changed).same_as(mod)
    assert tvm_ffi.structural_equal(plain_of(sch.mod), mod)


@T.prim_func(s_tir=True)
def adds(A: T.handle, B: T.Buffer((40, 72), "float16"), C: T.handle):
    m = T.int32()
    a = T.match_buffer(A, (m, 72), "float16")
    c = T.match_buffer(C, (m, 40), "float32")
    for i, j, k in T.grid(m, 40, 72):
        with T.sblock("C"):
            v_i, v_j, v_k = T.axis.remap("SSR", [i, j, k])
            c[v_i, v_j] += T.cast(a[v_i, v_k], "float32") * T.cast(B[v_j, v_k], "float32")


def test_a_product_that_has_to_be_normalized():
    sch = s_tir.Schedule(adds)
    hs.matmul(sch, "C", classes=(16, 64))
    assert len(ir.kernels(sch.mod["main"])) == 2
    assert "C_store_16" in block_names(hs.size_classes(tvm.IRModule({"main": adds}), "C", (16, 64)))
    a, b = (np.random.default_rng(0).integers(-2, 3, s).astype("float16")
            for s in ((20, 72), (40, 72)))  # fmt: skip
    got = run_serially(sch.mod, [a, b], m=20)
    np.testing.assert_array_equal(got, a.astype("f4") @ b.astype("f4").T - 1)  # added to poison


NEIGHBOURS = """
@T.prim_func(s_tir=True)
def main(A: T.handle, B: T.Buffer((40, 72), "float16"), D: T.handle, E: T.handle, F: T.handle):
    m = T.int32()
    a = T.match_buffer(A, (m, 72), "float16")
    d = T.match_buffer(D, (m, 40), "float32")
    e = T.match_buffer(E, (m, 72), "float32")
    f = T.match_buffer(F, (m, 40), "float32")
    wide = T.sblock_alloc_buffer((m, 72), "float32")
    c = T.sblock_alloc_buffer((m, 40), "float32")
    for i, k in T.grid(m, 72):
        with T.sblock("wide"):
            x, y = T.axis.remap("SS", [i, k])
            wide[x, y] = T.cast(a[x, y], "float32")
    for i in T.thread_binding(m, thread="blockIdx.x"):
        for k in T.serial(72):
            with T.sblock("E"):
                x, y = T.axis.remap("SS", [i, k])
                e[x, y] = wide[x, y] * 2.0
    for i, j, k in T.grid(m, 40, 72):
        with T.sblock("C"):
            x, y, z = T.axis.remap("SSR", [i, j, k])
            with T.init():
                c[x, y] = 0.0
            c[x, y] = c[x, y] + wide[x, z] * T.cast(B[y, z], "float32")
    for i in T.thread_binding(m, thread="blockIdx.x"):
        for j in T.serial(40):
            with T.sblock("F"):
                x, y = T.axis.remap("SS", [i, j])
                f[x, y] = 3.0
    for i, j in T.grid(m, 40):
        with T.sblock("D"):
            x, y = T.axis.remap("SS", [i, j])
            d[x, y] = c[x, y] + 1.0
"""


def neighbours(*changes):
    text = NEIGHBOURS
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    func = tvm.script.from_source(text, extra_vars={"T": T})
    return tvm.IRModule({"main": func.with_attr("global_symbol", "main")})


def test_other_kernels_stay_outside_and_keep_what_they_read():
    changed = hs.size_classes(neighbours(), "C", (16, 64))
    names = block_names(changed)
    outside = ["root", "wide", "E", "F"]
    inside = [f"{x}_{bound}" for bound in (16, 64) for x in ("C_rows", "wide", "C", "D")]
    assert sorted(names) == sorted(outside + inside)
    root = changed["main"].body.block
    assert [str(x.name) for x in root.alloc_buffers] == ["wide"]
    for block in ir.find_all(root, ir.SBlock, lambda x: "_rows_" in x.name_hint):
        assert sorted(str(x.name) for x in block.alloc_buffers) == ["c", "wide"]
        assert {str(x.source.name) for x in block.writes} == {"d"}
    order = [block_names({"main": x})[0] for x in map(_as_function, ir.statements(root.body))]
    assert order == ["wide", "E", "C_rows_16", "F"]


def _as_function(stmt):
    class Body:
        body = stmt

    return Body


@pytest.mark.parametrize(
    "changes",
    [
        [("f[x, y] = 3.0", "d[x, y] = 3.0")],  # D overwrites it
        [("c[x, y] + 1.0", "c[x, y] + f[x, y]")],  # D reads it
    ],
    ids=["write after write", "write before read"],
)
def test_an_order_that_would_change_is_refused(changes):
    mod = neighbours(*changes)
    match = "block C: found block F between it and block D, which both touch a tensor; need"
    with pytest.raises(ScheduleError, match=match):
        hs.size_classes(mod, "C", (16, 64))


REFUSED = {
    "static rows": (
        {**PLAIN, "m": 64},
        {"classes": (16, 64)},
        r"block C: found size classes of M = 64; need a symbolic M; leave classes and rows out",
    ),
    "rows of a static product": (
        {**PLAIN, "m": 64},
        {"rows": 64},
        r"block C: found rows=64 for M = 64; need a symbolic M",
    ),
    "symbolic columns": (
        {**PLAIN, "n": "n"},
        {"classes": (16, 64)},
        r"found size classes with N = n, symbolic; need static N and K",
    ),
    "symbolic depth": (
        {**PLAIN, "k": "k", "layout": "TN", "m": "m"},
        {"classes": (16, 64)},
        r"found",
    ),
    "not ascending": (PLAIN, {"classes": (64, 16)}, r"found classes=\(64, 16\); need ascending"),
    "twice the same": (PLAIN, {"classes": (64, 64)}, r"found classes=\(64, 64\); need ascending"),
    "no ints": (PLAIN, {"classes": (16, 64.5)}, r"found classes=\(16, 64.5\); need ascending ints"),
    "nothing": (PLAIN, {"classes": (0, 64)}, r"found classes=\(0, 64\); need ascending ints"),
    "no sequence": (PLAIN, {"classes": 64}, r"found classes=64; need ascending ints"),
    "ten": (PLAIN, {"classes": tuple(range(1, 11))}, r"found 10 classes; need at most 8"),
    "both": (PLAIN, {"classes": (64,), "rows": 4}, r"found classes and rows=4; need one of"),
    "rows": (PLAIN, {"rows": 0}, r"found rows=0; need 1 or more"),
    "one tile for all": (
        PLAIN,
        {"config": hs.MatmulConfig((64, 64, 64)), "classes": (16, 64)},
        r"found classes of kernels that all have tile=\(64, 64, 64\); need a configuration for",
    ),
    "two configurations": (
        PLAIN,
        {"config": hs.MatmulConfig(swizzle=64), "classes": {16: hs.MatmulConfig()}},
        r"found config next to classes with configurations; need",
    ),
    "bits that change from class to class": (
        PLAIN,
        {"classes": {16: hs.MatmulConfig(), 64: hs.MatmulConfig(batch_invariant=True)}},
        r"found batch_invariant=True for classes \[64\] and not for \[16\]; need it for every",
    ),
    "no configuration": (
        PLAIN,
        {"classes": {16: "64"}},
        r"found classes\[16\]='64'; need an hs.Mat",
    ),
    "some ranges": (
        PLAIN,
        {"classes": {16: 16, 64: hs.MatmulConfig()}},
        r"found classes\[64\]=.*; need for each bound the rows that its kernel is chosen for",
    ),
    "ranges that do not ascend": (
        PLAIN,
        {"classes": {64: 16, 16: 64}},
        r"found the bounds of classes=\(64, 16\); need ascending ints",
    ),
    "ranges of nine kernels": (
        PLAIN,
        {"classes": {x: x for x in range(1, 10)}},
        r"found 9 classes; need at most 8, each a kernel to build",
    ),
    "ranges of one tile": (
        PLAIN,
        {"config": hs.MatmulConfig((64, 64, 64)), "classes": {16: 16, 64: 64}},
        r"found classes of kernels that all have tile=\(64, 64, 64\); need a configuration for",
    ),
    "a tile that does not fit": (
        PLAIN,
        {"classes": {16: hs.MatmulConfig(), 64: hs.MatmulConfig((256, 512, 64))}},
        r"block C_64, tile 256x512x64: found \d+ ",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name):
    options, arguments, match = REFUSED[name]
    sch = s_tir.Schedule(workloads.matmul(**options))
    before, length = sch.mod, len(sch.trace.insts)
    with pytest.raises(ScheduleError, match=match):
        hs.matmul(sch, "C", **arguments)
    assert sch.mod.same_as(before)
    assert len(sch.trace.insts) == length


def test_samples_of_a_schedule_that_begins_anew_are_refused():
    sch = s_tir.Schedule(workloads.matmul(**PLAIN))
    rows = sch.sample_categorical([64, 128], [0.5, 0.5])
    sampled = hs.MatmulConfig((rows, 40, 64), consumers=1)
    match = r"found a sampled tile.*make it: s_tir.Schedule\(hs.size_classes\(mod, ...\)\)"
    with pytest.raises(ScheduleError, match=match):
        hs.matmul(sch, "C", classes={16: sampled, 64: hs.MatmulConfig()})


def test_a_product_inside_of_a_branch_has_no_classes_of_its_own():
    sch = s_tir.Schedule(hs.size_classes(workloads.matmul(**PLAIN), "C", (16, 64)))
    with pytest.raises(ScheduleError, match="size classes of a product inside of another block"):
        hs.matmul(sch, "C_16", classes=(4, 16))
    hs.matmul(sch, "C_16")
    assert len(ir.kernels(sch.mod["main"])) == 1


def test_what_size_classes_takes():
    with pytest.raises(ScheduleError, match="size_classes: found int; need an IRModule"):
        hs.size_classes(3, "C", (16,))
    with pytest.raises(ScheduleError, match=r"found bounds=\(\); need ascending ints"):
        hs.size_classes(workloads.matmul(**PLAIN), "C", ())
    with pytest.raises(ScheduleError, match="found block='E'; need one of"):
        hs.size_classes(workloads.matmul(**PLAIN), "E", (16,))
