"""Views of larger arrays: strides and offsets reach the kernel, and nothing outside is touched."""

import re

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import s_tir
from tvm.script import tirx as T

from tvm_hopper import schedule as hs
from tvm_hopper.sim import run_kernel
from tvm_hopper.sim.launch.arguments import complete
from tvm_hopper.sim.launch.signature import signature
from tvm_hopper.sim.launch.tensors import HostTensor, place
from tvm_hopper.simulation import load, simulate, verify

from .kernels import ENCODE, lower

M, N = 8, 32
GPU = """
    bx = T.launch_thread("blockIdx.x", 8)
    tx = T.launch_thread("threadIdx.x", 32)
    A[bx{up}, tx{left}] = {value}"""
CPU = """
    for bx, tx in T.grid(8, 32):
        A[bx, tx] = {value}"""


def kernel(declared="", body=GPU, value="T.float32(1)", up="", left="", dtype="float32"):
    """Build a function that writes all of A, an array of 8 x 32 `declared` as asked."""
    return tvm.script.from_source(
        f"""
@T.prim_func(s_tir=True)
def main(a: T.handle):
    T.func_attr({{"global_symbol": "main"}})
    s = T.int32()
    t = T.int32()
    off = T.int32()
    A = T.match_buffer(a, (8, 32), "{dtype}"{declared})
    {body.format(value=value, up=up, left=left)}
""",
        {"T": T},
    )


def part(base, rows, columns):
    return base[rows : rows + M, columns : columns + N]


def filled(shape=(16, 96), dtype="float32"):
    return np.arange(np.prod(shape)).astype(dtype).reshape(shape)


# -- placing --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda base: base,
        lambda base: base[2:, 3:],
        lambda base: base[::-1, ::2],
        lambda base: base.T,
        lambda base: base.reshape(-1)[5:77].reshape(8, 9),
        lambda base: np.lib.stride_tricks.as_strided(base, (4, 4), (16 * 4, 4)),
        lambda base: np.broadcast_to(base[0, 1:2], (3, 3)),
        lambda base: base[:0],
        lambda base: base[3, 4:5].view("uint8"),
    ],
)
def test_a_view_is_found_again_in_its_base(make):
    base = filled()
    view = make(base)
    at = place(view)
    assert np.array_equal(at.among(at.base.copy()), view)
    if view.size and view.nbytes < base.nbytes:
        assert at.base.size == base.nbytes
    inside = np.zeros(at.base.size, bool)
    at.bytes_among(inside)[...] = True
    outside = at.outside()
    assert np.array_equal(~inside, np.zeros_like(inside) if outside is None else outside)


def test_an_array_of_its_own_has_nothing_outside():
    assert place(filled()).outside() is None
    assert place(filled().T).outside() is None
    assert place(np.frombuffer(b"12345678", "float32")).base.tobytes() == b"12345678"


# -- what the host does with a view, beside TVM's own runtime -------------------------------------


VIEWS = {
    "compact": lambda base: base.ravel()[: M * N].reshape(M, N).copy(),
    "rows apart": lambda base: part(base, 0, 0),
    "rows apart, inside": lambda base: part(base, 2, 8),
    "whole rows": lambda base: np.ascontiguousarray(base[:, :N])[4 : 4 + M],
    "every other column": lambda base: base[:M, : 2 * N : 2],
    "transposed": lambda base: np.ascontiguousarray(base.T)[:N, :M].T,
}
DECLARED = ["", ", strides=[32, 1]", ", strides=[96, 1]", ", strides=[s, 1]", ", strides=[s, t]"]


@pytest.mark.sampled(every=5)
@pytest.mark.parametrize("view", sorted(VIEWS))
@pytest.mark.parametrize("declaration", DECLARED)
def test_the_host_takes_and_refuses_views_as_tvms_own_does(declaration, view):
    """The same declaration, built for the host, is given the same view through DLPack."""
    real, simulated = (VIEWS[view](filled() * 0) for _ in range(2))
    built = tvm.compile(kernel(declaration, CPU), target="llvm")
    program = lower(kernel(declaration))
    try:
        built["main"](tvm_ffi.from_dlpack(real))
    except ValueError as error:
        with pytest.raises(ValueError, match=f"^{re.escape(str(error))}$"):
            simulate(program, {"A": simulated})
    else:
        got = simulate(program, {"A": simulated}).require_clean().outputs["A"]
        assert got.strides == real.strides
        assert np.array_equal(got, real)
        assert not simulated.any()  # the caller's array is copied


@pytest.mark.parametrize(
    ("declaration", "begin"), [("", 0), ("", 8), (", elem_offset=8", 8), (", elem_offset=8", 0),
                               (", elem_offset=off", 24), (", offset_factor=4", 8)]
)  # fmt: skip
def test_the_host_takes_and_refuses_offsets_as_tvms_own_does(declaration, begin):
    built = tvm.compile(kernel(declaration, CPU), target="llvm")
    program = lower(kernel(declaration))
    memory = tvm.runtime.tensor(np.zeros(512, "float32"))
    view = np.zeros(512, "float32")[begin : begin + 256].reshape(8, 32)
    try:
        built["main"](memory._create_view((8, 32), "float32", 4 * begin))
    except ValueError as error:
        if begin and "elem_offset" not in declaration:  # passed as DLPack does, and taken
            simulate(program, {"A": view}).require_clean()
            return
        with pytest.raises(ValueError, match=f"^{re.escape(str(error))}$"):
            simulate(program, {"A": view})
    else:
        got = simulate(program, {"A": view}).require_clean().outputs["A"]
        assert got.all()
        assert np.array_equal(np.flatnonzero(memory.numpy()), begin + np.arange(256))


@pytest.mark.parametrize("shape", [(0, 32), (4, 0)])
def test_an_empty_tensor_is_compact_as_tvms_is(shape):
    @T.prim_func(s_tir=True)
    def main(a: T.handle):
        T.func_attr({"global_symbol": "main"})
        m, n = T.int64(), T.int64()
        A = T.match_buffer(a, (m, n), "float32")
        bx = T.launch_thread("blockIdx.x", 1)
        if T.Cast("int64", bx) < m and T.Cast("int64", bx) < n:
            A[bx, bx] = T.float32(1)

    array = filled()[: shape[0], : shape[1]]
    tvms = tvm.runtime.tensor(array).strides
    assert HostTensor("A", array).strides == list(tvms)
    simulate(lower(main), {"A": array}).require_clean()


def test_an_offset_that_breaks_its_factor_is_refused_by_the_hosts_check():
    view = np.zeros(512, "float32")[2:258].reshape(8, 32)
    with pytest.raises(ValueError, match="Misaligned Tensor data on argument #0"):
        simulate(lower(kernel(", elem_offset=off, offset_factor=4")), {"A": view})


def test_strides_of_no_whole_elements_are_refused():
    records = np.zeros((8, 32), [("x", "float32"), ("y", "int8")])
    with pytest.raises(ValueError, match=r"found A with strides of \(160, 5\) bytes; need whole"):
        simulate(lower(kernel(", strides=[s, t]")), {"A": records["x"]})


def test_numpy_scalars_are_numbers():
    @T.prim_func(s_tir=True)
    def main(A: T.Buffer((32,), "float32"), alpha: T.float32, n: T.int32):
        T.func_attr({"global_symbol": "main"})
        T.launch_thread("blockIdx.x", 1)
        tx = T.launch_thread("threadIdx.x", 32)
        A[tx] = alpha * T.Cast("float32", n)

    given = {"alpha": np.float32(0.5), "n": np.int64(6)}
    assert (simulate(lower(main), given).require_clean().outputs["A"] == 3).all()


# -- outside of the view --------------------------------------------------------------------------

STRIDED = ", strides=[s, 1]"


@pytest.mark.parametrize("policy", ["eager", "random"])
@pytest.mark.parametrize("detect_races", [True, False])
@pytest.mark.parametrize(("up", "left"), [(" + 1", ""), (" - 1", ""), ("", " + 1"), ("", " - 1")])
def test_a_write_beside_the_view_is_found_on_every_side(up, left, policy, detect_races):
    program = lower(kernel(STRIDED, up=up, left=left))
    view = part(filled(), 4, 16)
    result = simulate(program, {"A": view}, policy=policy, detect_races=detect_races)
    (finding,) = result.findings
    assert (finding.rule, finding.buffer, finding.severity) == ("OUT_OF_VIEW", "A", "error")
    assert "writes byte" in finding.message
    assert "A[" in finding.statements[0]


def test_a_read_beside_the_view_is_found():
    program = lower(kernel(STRIDED, value="A[bx, T.min(tx + 1, 32)]"))
    result = simulate(program, {"A": part(filled(), 4, 16)}, policy="eager")
    assert ("OUT_OF_VIEW", "reads") in {(f.rule, f.message.split()[0]) for f in result.findings}


def test_a_write_beyond_the_base_is_out_of_bounds():
    program = lower(kernel(STRIDED, up=" + 9"))
    assert simulate(program, {"A": part(filled(), 8, 16)}).rules == {"OOB_ACCESS"}


def test_one_launch_of_a_device_function_takes_views_too():
    program = lower(kernel(STRIDED))
    (func,) = program.kernels.values()
    view = part(filled(), 4, 16)
    names = [p.name for p in func.params]
    args = dict(zip(names, (view, 96), strict=True))
    result = run_kernel(func, args, (8,), (32,)).require_clean()
    assert (result.outputs[names[0]] == 1).all()


def test_an_output_view_may_have_holes_only_outside():
    whole = simulate(lower(kernel(STRIDED)), {}).require_clean()
    assert whole.outputs["A"].shape == (8, 32)
    half = simulate(
        lower(kernel(STRIDED, GPU.replace('"threadIdx.x", 32', '"threadIdx.x", 30'))), {}
    )
    (finding,) = half.findings
    assert finding.message == "A: 16 of 256 elements are never written"
    step = whole.outputs["A"].strides[0]
    assert finding.byte_range == (30 * 4, 7 * step + 32 * 4)


# -- copies by TMA and in bulk --------------------------------------------------------------------


def box_copy(dims, box, coords, load=True, strides="s * 2"):
    """Build a kernel that loads (or stores) one box of A through a tensor map with these dims."""
    shared = "T.address_of(tile[0]), T.address_of(a_map)"
    where = ", ".join(map(str, coords))
    kind = "cp.async.bulk.tensor.2d"
    size = box[0] * box[1]
    copies = {
        True: f"""
        if tx == 0:
            T.ptx.mbarrier.arrive.expect_tx.shared.b64(T.address_of(bar[0]), T.uint32({size * 2}))
            T.ptx["{kind}.shared::cluster.global.mbarrier::complete_tx::bytes"](
                {shared}, {where}, T.address_of(bar[0]))
        T.cuda.mbarrier_wait(T.address_of(bar[0]), 0)
        for i in T.serial({size // 128}):
            C[i * 128 + tx] = tile[i * 128 + tx]""",
        False: f"""
        for i in T.serial({size // 128}):
            tile[i * 128 + tx] = T.float16(1)
        T.ptx.fence.proxy.async_.shared__cta()
        T.tvm_storage_sync("shared")
        if tx == 0:
            T.ptx["{kind}.global.shared::cta.bulk_group"](
                T.address_of(a_map), {where}, T.address_of(tile[0]))
            T.ptx["cp.async.bulk.commit_group"]()
            T.ptx["cp.async.bulk.wait_group"](0)
        for i in T.serial({size // 128}):
            C[i * 128 + tx] = T.float16(0)""",
    }
    return tvm.script.from_source(
        f"""
@T.prim_func(s_tir=True)
def main(a: T.handle, C: T.Buffer(({size},), "float16")):
    T.func_attr({{"global_symbol": "main"}})
    s = T.int32()
    A = T.match_buffer(a, (16, 32), "float16", strides=[s, 1])
    a_map: T.let[T.handle("tensormap")] = T.tvm_stack_alloca("tensormap", 1)
    T.call_packed("{ENCODE}", a_map, "float16", 2, A.data, {dims[0]}, {dims[1]}, {strides},
                  {box[0]}, {box[1]}, 1, 1, 0, 0, 0, 0)
    T.launch_thread("blockIdx.x", 1)
    tx = T.launch_thread("threadIdx.x", 128)
    with T.attr(T.int32(0), "hand_threaded", 1):
        tile = T.alloc_buffer(({size},), "float16", scope="shared", align=1024)
        bar = T.alloc_buffer((1,), "uint64", scope="shared")
        if tx == 0:
            T.ptx.mbarrier.init.shared.b64(T.address_of(bar[0]), T.uint32(1))
            T.ptx.fence.mbarrier_init.release.cluster()
        T.tvm_storage_sync("shared")
{copies[load]}
""",
        {"T": T},
    )


@pytest.mark.parametrize("load", [True, False])
@pytest.mark.parametrize("policy", ["eager", "on_wait"])
@pytest.mark.parametrize(
    ("dims", "coords", "rules"),
    [
        ((32, 16), (0, 0), set()),
        ((32, 16), (16, 8), set()),  # the box is clipped by the map's own extents
        ((64, 16), (16, 0), {"OUT_OF_VIEW"}),  # a map wider than the view
        ((32, 20), (0, 8), {"OUT_OF_VIEW"}),
        ((32, 400), (0, 200), {"OOB_ACCESS"}),
    ],
)
def test_a_box_touches_the_elements_of_the_view_alone(dims, coords, rules, policy, load):
    base = np.arange(40 * 96).astype("float16").reshape(40, 96)
    program = lower(box_copy(dims, (32, 16), coords, load))
    result = simulate(program, {"A": base[8:24, 32:64]}, policy=policy)
    assert result.rules & {"OUT_OF_VIEW", "OOB_ACCESS"} == rules
    if not rules:
        result.require_clean()
        if load:
            tile = np.zeros((16, 32), "float16")
            shown = base[8:24, 32:64][coords[1] :, coords[0] :]
            tile[: shown.shape[0], : shown.shape[1]] = shown
            assert np.array_equal(result.outputs["C"], tile.ravel())


# -- what simulate and verify make themselves -----------------------------------------------------


@pytest.mark.parametrize(
    ("declaration", "strides", "begin"),
    [
        ("", (32, 1), 0),
        (", strides=[96, 1]", (96, 1), 0),
        (", strides=[s, 1]", (40, 1), 0),
        (", strides=[s, t]", (40, 1), 0),
        (", elem_offset=24", (32, 1), 24),
        (", elem_offset=off", (32, 1), 8),
        (", elem_offset=off, offset_factor=32", (32, 1), 32),
        (", strides=[s, 1], elem_offset=off", (40, 1), 8),
    ],
)
def test_what_is_left_out_gets_strides_and_an_offset_of_its_own(declaration, strides, begin):
    program = lower(kernel(declaration, dtype="float16", value="T.float16(1)"))
    (argument,) = signature(program.host)
    values, missing = complete([argument], {})
    array = values["A"]
    at = place(array)
    assert (missing, array.shape) == (["A"], (8, 32))
    assert tuple(step // 2 for step in array.strides) == strides
    assert at.offset == 2 * begin
    assert (at.base == 0xFF).all()
    outside = at.outside()
    assert (outside is None) == (declaration == "")
    result = simulate(program, {}).require_clean()
    assert (result.outputs["A"] == 1).all()
    verify(program, runs=(("eager", 0), ("random", 1), ("lifo", 0))).require_clean()


def test_a_symbol_of_a_given_array_decides_for_what_is_left_out():
    @T.prim_func(s_tir=True)
    def main(a: T.handle, c: T.handle):
        T.func_attr({"global_symbol": "main"})
        s = T.int32()
        A = T.match_buffer(a, (8, 32), "float32", strides=[s, 1])
        C = T.match_buffer(c, (8, 32), "float32", strides=[s, 1])
        bx = T.launch_thread("blockIdx.x", 8)
        tx = T.launch_thread("threadIdx.x", 32)
        C[bx, tx] = A[bx, tx]

    view = part(filled(), 4, 16)
    result = simulate(lower(main), {"A": view}).require_clean()
    assert result.outputs["C"].strides == view.strides
    assert np.array_equal(result.outputs["C"], view)


def test_verify_finds_a_write_beside_what_it_made_itself():
    report = verify(lower(kernel(STRIDED, left=" + 1")), runs=(("eager", 0),))
    assert {f.rule for f in report.findings} >= {"OUT_OF_VIEW"}


# -- a matmul into a part of a matrix -------------------------------------------------------------


@pytest.mark.parametrize("offset", ["", ", elem_offset=off, offset_factor=8"])
def test_a_product_inside_a_larger_matrix(offset):
    mod = tvm.script.from_source(
        f"""
@T.prim_func(s_tir=True)
def main(A: T.Buffer((96, 64), "float16"), B: T.Buffer((64, 64), "float16"), c: T.handle):
    T.func_attr({{"global_symbol": "main", "tirx.noalias": True}})
    s = T.int32()
    off = T.int32()
    C = T.match_buffer(c, (96, 64), "float32", strides=[s, 1]{offset})
    for i, j, k in T.grid(96, 64, 64):
        with T.sblock("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = T.float32(0)
            C[vi, vj] = C[vi, vj] + T.Cast("float32", A[vi, vk]) * T.Cast("float32", B[vj, vk])
""",
        {"T": T},
    )
    sch = s_tir.Schedule(mod)
    hs.matmul(sch, "C", hs.MatmulConfig((64, 64, 64), stages=1, consumers=1))
    program = load(sch.mod)
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-2, 3, (n, 64)).astype("float16") for n in (96, 64))
    larger = np.full((128, 256), 7, "float32")
    result = simulate(program, {"A": a, "B": b, "C": larger[16:112, 64:128]}).require_clean()
    assert np.array_equal(result.outputs["C"], a.astype("float64") @ b.astype("float64").T)
    assert (larger == 7).all()


# -- memory in common -----------------------------------------------------------------------------


def total():
    """Build C = A + B."""
    return tvm.script.from_source(
        """
@T.prim_func(s_tir=True)
def main(A: T.Buffer((8, 32), "float32"), B: T.Buffer((8, 32), "float32"),
         C: T.Buffer((8, 32), "float32")):
    T.func_attr({"global_symbol": "main"})
    bx = T.launch_thread("blockIdx.x", 8)
    tx = T.launch_thread("threadIdx.x", 32)
    C[bx, tx] = A[bx, tx] + B[bx, tx]
""",
        {"T": T},
    )


@pytest.mark.parametrize(
    ("share", "pairs"),
    [
        ("nothing", []),
        ("A and B", []),  # which nobody stores to
        ("halves", []),
        ("A and C", ["C, which kernels store to, has memory in common with A"]),
        ("a part", ["C, which kernels store to, has memory in common with B"]),
    ],
)
def test_nothing_is_certified_of_a_tensor_in_the_memory_of_one_that_is_stored_to(share, pairs):
    a, b, c = (filled((M, N)) for _ in "abc")
    base = filled((2 * M, N))
    if share == "A and B":
        b = a
    elif share == "A and C":
        c = a
    elif share == "halves":
        b, c = base[:M], base[M:]
    elif share == "a part":
        b, c = base[:M], base[M - 1 : -1]
    program = load(lower(total()))
    result = simulate(program, {"A": a, "B": b, "C": c})
    assert [f.message for f in result.findings] == pairs
    assert result.verdict == ("incomplete" if pairs else "clean")
    assert np.array_equal(result.outputs["C"], a + b)
