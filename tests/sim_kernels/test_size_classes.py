"""Size classes of symbolic rows: each kernel right in the simulator, at and around its bounds."""

import numpy as np
import pytest
import tvm
from tvm import s_tir, te
from tvm.ir import StringImm

from tvm_hopper import ir, schedule as hs
from tvm_hopper.simulation import load, simulate, verify
from tvm_hopper.testing import workloads
from tvm_hopper.transforms.mechanisms.tma_emit import ENCODE
from tvm_hopper.verification.launches import bound_launches

EPILOGUE = ("bias_row", "relu", "residual")
OPTIONS = {"n": 40, "k": 72, "index": "int64", "out_dtype": "float16", "epilogue": EPILOGUE}
SMALL = hs.MatmulConfig((64, 64, 64), stages=1, consumers=1)
CLASSES = {
    4: hs.MatmulConfig((64, 8, 16), stages=2, consumers=1),
    64: hs.MatmulConfig((64, 40, 64), stages=1, consumers=1),
    130: hs.MatmulConfig((128, 24, 32), stages=2, consumers=2, persistent=0),
    500: hs.MatmulConfig((64, 16, 64), stages=2, consumers=1, raster=2),
}

CASES = {0: None, 1: 0, 4: 0, 5: 1, 64: 1, 65: 2, 130: 2, 131: 3, 200: 3}


@pytest.fixture(scope="module")
def plain():
    return workloads.matmul("m", **OPTIONS)


@pytest.fixture(scope="module")
def program(plain):
    sch = s_tir.Schedule(plain)
    hs.matmul(sch, "C", classes=CLASSES)
    return load(sch.mod)


def inputs(plain, m):
    names = [p.name for p in plain["main"].params]
    given = workloads.make_inputs(plain, seed=m, m=m)
    shape, dtype = workloads.argument_types(plain, m=m)[-1]
    return dict(zip(names, given, strict=False)), (names[-1], shape, dtype), given


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(("m", "kernel"), CASES.items())
def test_rows_at_and_around_the_bounds(plain, program, m, kernel):
    values, (name, shape, dtype), given = inputs(plain, m)
    result = simulate(program, values)
    assert not result.findings, "\n".join(map(str, result.findings))
    want = workloads.reference(given, "NT", EPILOGUE).astype(workloads.numpy_type(dtype))
    assert result.outputs[name].shape == shape
    np.testing.assert_array_equal(result.outputs[name], want)
    every = {**values, name: result.outputs[name]}
    launched = bound_launches(program, {x.name: every[x.name] for x in program.arguments}, 132)
    names = list(program.kernels)
    assert [str(x.func.attrs["global_symbol"]) for x in launched] == (
        [] if kernel is None else [names[kernel]]
    )


LONGER = pytest.mark.slow  # in `make test-all`


@pytest.mark.parametrize(
    "m", [pytest.param(3, marks=LONGER), 40, pytest.param(100, marks=LONGER), 140]
)
def test_each_class_is_clean_under_every_schedule_and_computes_the_plain_program(plain, program, m):
    values, *_ = inputs(plain, m)
    report = verify(program, {"A": values["A"]}, max_ctas=3, against=plain).require_clean()
    assert report.values.checked


@pytest.mark.parametrize(("m", "kernel"), [(4, 0), (5, 1), (65, 0), (71, 1), (90, 0)])
def test_kernels_of_several_ranges(plain, ranged, m, kernel):
    """The host launches the kernel of the range; the first one runs above what it is chosen for."""
    values, (name, _, dtype), given = inputs(plain, m)
    result = simulate(ranged, values)
    assert not result.findings, "\n".join(map(str, result.findings))
    want = workloads.reference(given, "NT", EPILOGUE).astype(workloads.numpy_type(dtype))
    np.testing.assert_array_equal(result.outputs[name], want)
    every = {**values, name: result.outputs[name]}
    launched = bound_launches(ranged, {x.name: every[x.name] for x in ranged.arguments}, 132)
    order = [*ranged.kernels][::-1]  # the one whose ranges have no end comes last
    assert [str(x.func.attrs["global_symbol"]) for x in launched] == [order[kernel]]


@pytest.fixture(scope="module")
def ranged(plain):
    sch = s_tir.Schedule(plain)
    hs.matmul(sch, "C", classes={4: 8, 64: 64, 70: 8, 80: 64, 100: 8})
    return load(sch.mod)


TRANSPOSED = {
    4: hs.MatmulConfig((64, 8, 64), stages=2, consumers=1, form="transposed"),
    16: hs.MatmulConfig((64, 16, 64), stages=2, consumers=1, form="transposed"),
    40: hs.MatmulConfig((128, 32, 64), stages=2, consumers=2, form="transposed", persistent=0),
}


@pytest.mark.parametrize(
    ("options", "verified"),
    [
        (OPTIONS, (4, 41)),
        pytest.param(
            {"n": 136, "k": 72, "layout": "NN", "out_dtype": "float16"}, (4, 5, 17), marks=LONGER
        ),
    ],
    ids=["NT", "NN"],
)
def test_classes_that_are_multiplied_transposed(options, verified):
    plain = workloads.matmul("m", **options)
    sch = s_tir.Schedule(plain)
    hs.matmul(sch, "C", classes=TRANSPOSED)
    made = load(sch.mod)
    layout, epilogue = options.get("layout", "NT"), options.get("epilogue", ())
    for m in (0, 1, 4, 5, 16, 17, 40, 41, 70):
        values, (name, shape, dtype), given = inputs(plain, m)
        result = simulate(made, values)
        assert not result.findings, "\n".join(map(str, result.findings))
        want = workloads.reference(given, layout, epilogue).astype(workloads.numpy_type(dtype))
        assert result.outputs[name].shape == shape
        np.testing.assert_array_equal(result.outputs[name], want)
    for m in verified:
        values, *_ = inputs(plain, m)
        report = verify(made, {"A": values["A"]}, max_ctas=2, against=plain)
        assert (report.verdict, report.values.checked) == ("clean", True), str(report)


def test_two_products_one_after_the_other():
    m, size = te.var("m", "int64"), 64
    a, b, c = (te.placeholder((rows, size), "float16", name=name)
               for rows, name in ((m, "A"), (size, "B"), (size, "C")))  # fmt: skip

    def product(x, y, name):
        k = te.reduce_axis((0, size), "k")
        wide = lambda i, j: te.sum(x[i, k].astype("float32") * y[j, k].astype("float32"), k)  # noqa: E731
        return te.compute((m, size), wide, name=name)

    first = product(a, b, "P")
    half = te.compute((m, size), lambda i, j: first[i, j].astype("float16"), name="H")
    second = product(half, c, "Q")
    out = te.compute((m, size), lambda i, j: second[i, j] + 1.0, name="R")
    func = te.create_prim_func([a, b, c, out])
    mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    sch = s_tir.Schedule(mod)
    hs.matmul(sch, "P", classes={16: SMALL, 64: SMALL})
    hs.matmul(sch, "Q", classes={32: SMALL, 64: SMALL})
    made = load(sch.mod)
    for rows, kernels in ((5, (0, 2)), (20, (1, 2)), (70, (1, 3))):
        values = {"A": np.random.default_rng(0).integers(-2, 3, (rows, size)).astype("float16")}
        report = verify(made, values, runs=(("random", 1),), max_ctas=2, against=mod)
        assert (report.verdict, report.values.checked) == ("clean", True), str(report)
        assert [x.kernel for x in report.choices] == [list(made.kernels)[i] for i in kernels]


def test_a_class_that_computes_something_else_is_found(plain):
    """The judge looks at the kernel that runs: a wrong one in another branch goes unseen."""
    broken = ir.replace(
        hs.size_classes(plain, "C", (16, 64))["main"],
        ir.SBlock,
        lambda x: _from_one(x) if x.name_hint == "C_16" else x,
    )
    sch = s_tir.Schedule(tvm.IRModule({"main": broken}))
    for block in ("C_16", "C_64"):
        hs.matmul(sch, block, hs.MatmulConfig((64, 40, 64), consumers=1, stages=1))
    made = load(sch.mod)
    found = [
        verify(made, {"A": inputs(plain, m)[0]["A"]}, max_ctas=2, against=plain).verdict
        for m in (16, 17)
    ]
    assert found == ["error", "clean"]


def _from_one(block):
    """Start the sum of a product from one instead of zero."""
    init = ir.BufferStore(
        block.init.buffer, tvm.tirx.FloatImm("float32", 1.0), list(block.init.indices)
    )
    return ir.with_block(block, init=init)


@pytest.mark.parametrize("tensor", ["A", "B", "D"])
def test_alignment_is_asserted_once(program, tensor):
    assert program.host.script().count(f'"{tensor}: found a start address') == 1


def test_maps_are_encoded_in_the_branch_that_needs_them(program):
    encoded = ir.find_all(program.host.body, StringImm, lambda x: x.value == ENCODE)
    given = {
        name: sum("_map" in x.name for x in kernel.params)
        for name, kernel in program.kernels.items()
    }
    assert len(encoded) == sum(given.values())
    for name in program.kernels:
        (call,) = ir.find_all(program.host.body, StringImm, lambda x, n=name: x.value == n)
        branches = [
            part
            for branch in ir.find_all(program.host.body, ir.IfThenElse)
            for part in (branch.then_case, branch.else_case)
            if part is not None and ir.uses_node(part, call)
        ]
        smallest = min(branches, key=lambda x: len(ir.find_all(x, ir.Call)))
        kernels = {x.value for x in ir.find_all(smallest, StringImm)} & set(program.kernels)
        assert kernels == {name}
        maps = ir.find_all(smallest, StringImm, lambda x: x.value == ENCODE)
        assert len(maps) == given[name]
