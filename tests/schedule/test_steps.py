"""Each step refuses what it cannot serve, and leaves kernels that are not its own alone."""

import numpy as np
import pytest
import tvm
from tvm import s_tir, te

from tests.schedule.programs import module, operands, product, tensor
from tvm_hopper import ir, schedule as hs
from tvm_hopper.errors import ScheduleError
from tvm_hopper.testing import workloads
from tvm_hopper.testing.serial import run_serially


def tiled(m_tile=64, n_tile=64, k_tile=64, scope="shared.dyn"):
    """Return a schedule with copies in place, the product's block and its loop over k."""
    sch = s_tir.Schedule(workloads.matmul(256, 256, 256))
    i, j, k = sch.get_loops("C")
    (i0, i1), (j0, j1), (k0, k1) = (
        sch.split(loop, [None, size]) for loop, size in ((i, m_tile), (j, n_tile), (k, k_tile))
    )
    sch.reorder(i0, j0, k0, i1, j1, k1)
    copies = [sch.cache_read("C", index, scope) for index in (0, 1)]
    for copy in copies:
        sch.compute_at(copy, k0)
    return sch, sch.get_sblock("C"), k0, copies


# -- roles and configuration


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: hs.Roles(8), r"roles: found consumers=8; need 1 to 7 warp groups"),
        (lambda: hs.MatmulConfig(consumers=4), r"found consumers=4; need 1, 2 or 3 warp groups"),
        (lambda: hs.Roles(2, (40,)), r"roles: found registers=\(40,\); need registers of a prod"),
        (
            lambda: hs.Roles(2, (40, 240)),
            r"roles with 2 consumers, registers=\(40, 240\): found 40 \+ 2 x 240 = 520 registers; "
            r"need at most 3 x 168 = 504",
        ),
        (lambda: hs.Roles(1, (50, 256)), r"found producer registers 50; need a multiple of 8"),
        (lambda: hs.MatmulConfig((64, 64)), r"found tile=\(64, 64\); need rows, columns and depth"),
        (
            lambda: hs.MatmulConfig(registers=(40, 232)),
            r"found registers alone; need consumers too",
        ),
        (lambda: hs.MatmulConfig(stages=0), r"MatmulConfig: found stages=0; need 1 or more"),
        (lambda: hs.MatmulConfig(swizzle=16), r"found swizzle=16; need one of 0, 32, 64, 128 or N"),
        (lambda: hs.MatmulConfig(wgmma_pending=2), r"found wgmma_pending=2; need one of 0, 1 or"),
        (lambda: hs.MatmulConfig(accumulate="half"), r"found accumulate='half'; need one of 'floa"),
        (lambda: hs.MatmulConfig(raster=0), r"found raster=0; need 1 or more"),
    ],
)
def test_illegal_options(make, match):
    with pytest.raises(ScheduleError, match=match):
        make()


# -- async_copy


def test_copy_to_another_scope():
    sch, _, _, (copy, _) = tiled(scope="shared")
    with pytest.raises(ScheduleError, match=r"found a write to \['shared'\]; need a cache_read to"):
        hs.async_copy(sch, copy)


def test_copy_by_an_unknown_mechanism():
    sch, _, _, (copy, _) = tiled()
    with pytest.raises(ScheduleError, match=r"found mechanism='tmo'; need one of 'tma', 'bulk', "):
        hs.async_copy(sch, copy, mechanism="tmo")


def test_copy_inlines_its_pad_but_no_other_block():
    a = tensor(100, 128, dtype="float16", name="A")
    twice = te.compute(a.shape, lambda *i: a(*i) + a(*i), name="twice")
    out = te.compute(a.shape, lambda *i: twice(*i) * twice(*i), name="out")
    sch = s_tir.Schedule(module(a, out))
    copy = sch.cache_read("out", 0, "shared.dyn")
    hs.async_copy(sch, copy)
    assert sch.get(sch.get_sblock("twice")).name_hint == "twice"
    annotations = sch.get(copy).annotations
    assert dict(annotations) == {"tvm_hopper.async_copy": "auto"}


# -- wgmma


def test_wgmma_annotates_the_block_around_one_tile():
    sch, block, _, _ = tiled()
    outer = hs.wgmma(sch, block, accumulate="float32")
    node = sch.get(outer)
    assert dict(node.annotations) == {"tvm_hopper.wgmma": 1, "tvm_hopper.accumulate": "float32"}
    assert [int(e.extent) for r in node.writes for e in r.region] == [64, 64]
    assert sch.get(block).init is None


@pytest.mark.parametrize(
    ("tile", "match"),
    [
        ((32, 64, 64), r"found a tile of 32x64x64 in the three innermost loops; need multiples of"),
        ((64, 4, 64), r"found a tile of 64x4x64 .* multiples of 64x8x16"),
        ((64, 64, 8), r"found a tile of 64x64x8"),
    ],
)
def test_wgmma_of_an_illegal_tile(tile, match):
    sch, block, _, _ = tiled(*tile)
    with pytest.raises(ScheduleError, match=match):
        hs.wgmma(sch, block)


def test_wgmma_without_tiles():
    sch = s_tir.Schedule(workloads.matmul(256, 256, 256))
    with pytest.raises(ScheduleError, match=r"block C: found 3 loops; need a loop over k, and in"):
        hs.wgmma(sch, "C")


def test_wgmma_without_shared_operands():
    sch, block, _, _ = tiled(scope="local")
    with pytest.raises(ScheduleError, match=r"block C: found 0 shared operands; need two operands"):
        hs.wgmma(sch, block)


def test_wgmma_of_a_type_it_lacks():
    mod = workloads.matmul(256, 256, 256, dtype="float32", cast="none")
    sch = s_tir.Schedule(mod)
    i, j, k = sch.get_loops("C")
    k0, k1 = sch.split(k, [None, 64])
    sch.reorder(k0, i, j, k1)
    for index in (0, 1):
        sch.cache_read("C", index, "shared.dyn")
    with pytest.raises(ScheduleError, match=r"block C: found operands of float32; need float16 or"):
        hs.wgmma(sch, "C")


def test_a_hint_for_l2():
    sch, _, _, (copy, _) = tiled()
    hs.async_copy(sch, copy, cache_hint="evict_first")
    assert sch.get(copy).annotations["tvm_hopper.cache_hint"] == "evict_first"
    with pytest.raises(ScheduleError, match=r"found cache_hint='twice'; need one of 'evict_"):
        hs.async_copy(sch, copy, cache_hint="twice")
    with pytest.raises(ScheduleError, match=r"a second request, tvm_hopper.cache_hint = "):
        hs.async_copy(sch, copy, cache_hint="evict_last")


def test_rows_that_nobody_uses():
    sch, _, _, (copy, inside) = tiled()
    hs.async_copy(sch, inside, spare_rows=True)
    assert "tvm_hopper.spare_rows" not in sch.get(inside).annotations  # all of its rows are there
    with pytest.raises(ScheduleError, match=r"found spare_rows=16; need whether rows beyond"):
        hs.async_copy(sch, copy, spare_rows=16)
    padded = s_tir.Schedule(workloads.matmul(100, 256, 256, "NT"))
    hs.matmul(padded, "C", hs.MatmulConfig((64, 64, 64), persistent=0))
    assert str(padded.mod).count('"tvm_hopper.spare_rows": 1') == 1  # of A alone


# -- pipeline


def test_pipeline_without_copies():
    sch, _, k0, _ = tiled()
    with pytest.raises(ScheduleError, match=r"loop k_0: found no asynchronous copy in it; need co"):
        hs.pipeline(sch, k0, stages=2)


def test_pipeline_without_depth():
    sch, _, k0, _ = tiled()
    with pytest.raises(ScheduleError, match=r"loop k_0: found stages=None; need the slots of the"):
        hs.pipeline(sch, k0, None)


def test_pipeline_writes_flat_lists():
    sch, _, k0, copies = tiled()
    for copy in copies:
        hs.async_copy(sch, copy, swizzle=64)
    hs.pipeline(sch, k0, stages=3, roles=hs.Roles(1, (56, 256)), wgmma_pending=0)
    found = {str(k): v for k, v in sch.get(k0).annotations.items()}
    assert {k: list(v) if hasattr(v, "__len__") else int(v) for k, v in found.items()} == {
        "software_pipeline_stage": [0, 0, 2],
        "software_pipeline_order": [0, 1, 2],
        "software_pipeline_async_stages": [0],
        "tvm_hopper.consumers": 1,
        "tvm_hopper.registers": [56, 256],
        "tvm_hopper.wgmma_pending": 0,
    }


# -- a function with other kernels in it


def with_neighbours():
    """Scale A, multiply, sum the rows: three kernels in one function, of which two are bound."""
    a, b = operands(256, 256, 256)
    twice = te.compute(a.shape, lambda *i: a(*i) + a(*i), name="twice")
    r = te.reduce_axis((0, 256), "r")
    c = product(twice, b)
    d = te.compute((256,), lambda i: te.sum(c[i, r], r), name="rows")
    sch = s_tir.Schedule(module(a, b, d))
    for name in ("twice", "rows"):
        sch.bind(sch.get_loops(name)[0], "blockIdx.x")
    return sch


def test_bound_neighbours_stay_as_they_are():
    sch = with_neighbours()
    before = {name: sch.get(sch.get_sblock(name)) for name in ("twice", "rows")}
    hs.matmul(sch, "C", hs.MatmulConfig((64, 64, 64), stages=2, consumers=1))
    for name, block in before.items():
        tvm.ir.assert_structural_equal(sch.get(sch.get_sblock(name)), block, map_free_vars=True)
        assert len(sch.get_loops(name)) == {"twice": 2, "rows": 2}[name]


def test_value_that_a_neighbour_and_the_epilogue_read():
    a, b = operands(256, 256, 256)
    r = te.reduce_axis((0, 256), "r")
    c = product(a, b)
    d = te.compute((256,), lambda i: te.sum(c[i, r], r), name="rows")
    e = te.compute((256, 256), lambda *i: te.max(c(*i), te.const(0, "float32")), name="E")
    sch = s_tir.Schedule(module(a, b, d, e))
    sch.bind(sch.get_loops("rows")[0], "blockIdx.x")
    hs.matmul(sch, "C", SMALL)  # C is stored for the neighbor, E is computed from the registers
    stored = {str(x.buffer.name) for x in ir.find_all(sch.mod["main"].body, ir.BufferStore)}
    assert {"C", "E", "rows"} <= stored
    loads = ir.find_all(sch.mod["main"].body, ir.TensorLoad, lambda x: str(x.source.name) == "C")
    assert len(loads) == 1  # the neighbor's


def two_products(m, n, k):
    """Y = relu(X W1^T) W2^T, the middle in float16, in one function."""
    x, w1, w2 = (
        te.placeholder(s, "float16", name=name)
        for s, name in (((m, k), "X"), ((n, k), "W1"), ((k, n), "W2"))
    )
    h = product(x, w1, "H")
    g = te.compute(h.shape, lambda *i: te.max(h(*i), te.const(0, "float32")), name="G")
    g16 = te.compute(g.shape, lambda *i: g(*i).astype("float16"), name="G16")
    y = product(g16, w2, "Y")
    return module(x, w1, w2, y)


SMALL = hs.MatmulConfig((64, 64, 64), stages=2, consumers=1)


def test_two_products_in_a_row():
    mod = two_products(64, 128, 64)
    sch = s_tir.Schedule(mod)
    hs.matmul(sch, "H", SMALL)
    hs.matmul(sch, "Y", SMALL)
    inputs = workloads.make_inputs(mod)
    a, b, c = (t.astype("float64") for t in inputs)
    want = np.maximum(a @ b.T, 0) @ c.T
    np.testing.assert_array_equal(run_serially(sch.mod, inputs), want)


def test_second_product_before_the_first():
    sch = s_tir.Schedule(two_products(64, 128, 64))
    match = r"block G16: found a cast of G from float32 to .* matmul Y; .*; schedule block H first"
    with pytest.raises(ScheduleError, match=match):
        hs.matmul(sch, "Y", SMALL)


def test_second_product_that_tvm_cannot_pad():
    # the store of the first one covers its tensor under a predicate, which pad_einsum cannot see
    sch = s_tir.Schedule(two_products(72, 136, 72))
    hs.matmul(sch, "H", SMALL)
    before = sch.mod
    match = "block Y: found tiles that do not divide it, in the kernel of H.*; need tiles that"
    with pytest.raises(ScheduleError, match=match):
        hs.matmul(sch, "Y", SMALL)
    assert sch.mod.same_as(before)


def test_second_function_of_a_module():
    mod = tvm.IRModule(
        {
            "first": workloads.matmul(64, 64, 64)["main"].with_attr("global_symbol", "first"),
            "second": workloads.matmul(256, 256, 256)["main"].with_attr("global_symbol", "second"),
        }
    )
    sch = s_tir.Schedule(mod)
    sch.work_on("second")
    hs.matmul(sch, "C")
    tvm.ir.assert_structural_equal(sch.mod["first"], mod["first"])
    assert "tvm_hopper.wgmma" in sch.mod["second"].script()


# -- references of the workloads


@pytest.mark.parametrize("layout", workloads.LAYOUTS)
def test_reference_says_what_the_letters_mean(layout):
    shapes = {"A": {"N": (2, 3), "T": (3, 2)}, "B": {"N": (3, 4), "T": (4, 3)}}
    a = np.arange(6.0).reshape(shapes["A"][layout[0]])
    b = np.arange(12.0).reshape(shapes["B"][layout[1]])
    want = np.zeros((2, 4))
    for m in range(2):
        for n in range(4):
            for k in range(3):
                left = a[m, k] if layout[0] == "N" else a[k, m]
                right = b[k, n] if layout[1] == "N" else b[n, k]
                want[m, n] += left * right
    np.testing.assert_array_equal(workloads.reference([a, b], layout), want)


def bound_loop(axis):
    sch = s_tir.Schedule(workloads.matmul(512, 512, 64))
    loop = sch.get_loops(sch.get_sblock("C"))[1]
    if axis:
        sch.bind(loop, axis)
    return sch, loop


def test_raster_annotates_the_loop_of_column_tiles():
    sch, loop = bound_loop("blockIdx.x")
    hs.raster(sch, loop, group=8, persistent=128)
    notes = sch.get(loop).annotations
    assert {k: int(v) for k, v in notes.items()} == {
        "tvm_hopper.raster_group": 8,
        "tvm_hopper.persistent": 128,
    }


def test_raster_says_nothing_of_the_hardware_s_order():
    sch, loop = bound_loop("blockIdx.x")
    hs.raster(sch, loop, group=1, persistent=0)
    assert not sch.get(loop).annotations


@pytest.mark.parametrize("axis", ["", "blockIdx.y"])
def test_raster_needs_the_loop_of_column_tiles(axis):
    sch, loop = bound_loop(axis)
    with pytest.raises(ScheduleError, match=r"need the loop over columns of tiles, bound to"):
        hs.raster(sch, loop, group=8)


def test_raster_refuses_negative_values():
    sch, loop = bound_loop("blockIdx.x")
    with pytest.raises(ScheduleError, match=r"persistent=-2; need -1 or more"):
        hs.raster(sch, loop, persistent=-2)
