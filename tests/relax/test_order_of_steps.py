"""Steps, views and transposes in the order in which kernels take them: the same values."""

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax

from tests.relax import models
from tvm_hopper.relax.elements_first import ElementsFirst, TransposesLast
from tvm_hopper.relax.lowering import prepare
from tvm_hopper.relax.simplify_operands import SimplifyOperands
from tvm_hopper.relax.space_to_depth import SpaceToDepth
from tvm_hopper.testing.relax_forms import model_of

op = relax.op
FIRST, LAST = (0, 3, 1, 2), (0, 2, 3, 1)


def ops(mod):
    (block,) = mod["main"].body.blocks
    calls = (x.value for x in block.bindings if isinstance(x.value, relax.Call))
    return [str(x.op.name).removeprefix("relax.").removeprefix("nn.") for x in calls]


def same_values(before, after, draw=lambda rng, shape: rng.integers(-3, 4, shape)):
    rng = np.random.default_rng(0)
    given = [
        draw(rng, [int(n) for n in x.ty.shape.values]).astype(str(x.ty.dtype))
        for x in before["main"].params
    ]
    (want,), (got,) = (models.on_processor(x, "main", given) for x in (before, after))
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)


def cast_of_gelu(x, w):
    y = op.reshape(op.matmul(x, op.permute_dims(w)), (2, 4, 8))
    return op.astype(op.reshape(op.nn.gelu(op.multiply(y, relax.const(0.5))), (8, 8)), "float16")


def scaled_image(x, w):
    product = op.matmul(op.expand_dims(x, [0]), w)
    return op.nn.relu(op.expand_dims(op.squeeze(product, [0]), [0]))


def view_of_given(x, _w):
    return op.nn.relu(op.reshape(x, (16,)))


def cast_of_transposed(x, _w):
    return op.astype(op.permute_dims(x), "float16")


def one_of_three(x, _w):
    return op.take(x, relax.const(1, "int64"), axis=-2)


def one_of_product(x, w):
    return one_of_three(op.reshape(op.matmul(x, w), (3, 2, 4)), w)


def first_token(x, w):
    norm = op.nn.layer_norm(x, op.take(w, relax.const(0, "int64"), 0), op.sum(w, 0), axes=[-1])
    return op.take(norm, relax.const(0, "int64"), axis=1)


def first_token_and_all(x, w):
    norm = op.nn.layer_norm(x, op.sum(w, 0), op.sum(w, 0), axes=[-1])
    return op.add(norm, op.strided_slice(norm, [1], [0], [1]))


def part_of_row(x, w):
    norm = op.nn.layer_norm(x, op.sum(w, 0), op.sum(w, 0), axes=[-1])
    return op.strided_slice(norm, [2], [0], [4])


def added_of_two(x, w):
    return op.add(op.reshape(x, (4, 16)), op.reshape(w, (4, 16)))


def of_integers(x, _w):
    return op.add(op.reshape(op.astype(x, "int32"), (64,)), relax.const(1, "int32"))


ELEMENTS = {  # shapes, what is left
    cast_of_gelu: ([(8, 16), (8, 16)], "permute_dims matmul multiply gelu astype reshape reshape"),
    scaled_image: ([(4, 4), (4, 4)], "expand_dims matmul relu squeeze expand_dims"),
    view_of_given: ([(4, 4), (1,)], "reshape relu"),
    cast_of_transposed: ([(4, 8), (1,)], "astype permute_dims"),
    one_of_three: ([(3, 4), (1,)], "take"),
    one_of_product: ([(6, 4), (4, 4)], "matmul reshape strided_slice reshape"),
    first_token: (
        [(2, 3, 8), (2, 8)],
        "take sum strided_slice layer_norm reshape",
    ),
    first_token_and_all: ([(2, 3, 8), (2, 8)], "sum sum layer_norm strided_slice add"),
    part_of_row: ([(2, 3, 8), (2, 8)], "sum sum layer_norm strided_slice"),
    added_of_two: ([(8, 8), (8, 8)], "reshape reshape add"),
    of_integers: ([(8, 8), (1,)], "astype reshape add"),
}


@pytest.mark.parametrize("compute", ELEMENTS, ids=lambda x: x.__name__)
def test_elements_first(compute):
    shapes, want = ELEMENTS[compute]
    mod = model_of(compute, *((s, "float32") for s in shapes))
    got = ElementsFirst()(mod)
    assert " ".join(ops(got)) == want
    relax.analysis.well_formed(got)
    if compute is not of_integers:
        same_values(mod, got)


@pytest.mark.parametrize("place", [-1, 3])
def test_a_place_that_there_is_not_stays(place):
    mod = model_of(lambda x: op.take(x, relax.const(place, "int64"), axis=0), ((3, 4), "float32"))
    assert ops(ElementsFirst()(mod)) == ["take"]


def residual(x, y, s):
    scaled = op.multiply(s, op.permute_dims(x, FIRST))
    total = op.astype(op.add(scaled, op.permute_dims(y, FIRST)), "float16")
    return op.permute_dims(op.nn.relu(total), LAST)


def turned_twice(x, _y, _s):
    return op.permute_dims(op.permute_dims(x, FIRST), FIRST)


def read_elsewhere(x, _y, _s):
    turned = op.permute_dims(x, FIRST)
    return op.concat([turned, op.nn.relu(turned)], 0)


def turned_otherwise(x, y, _s):
    return op.add(op.permute_dims(x, FIRST), op.permute_dims(y, (0, 3, 2, 1)))


def scaled_by_rows(x, _y, s):
    return op.multiply(op.permute_dims(x, FIRST), op.reshape(s, (1, 1, 2, 4)))


TRANSPOSES = {
    residual: "reshape multiply add astype relu",
    turned_twice: "permute_dims",
    read_elsewhere: "permute_dims relu concat",
    turned_otherwise: "permute_dims permute_dims add",
    scaled_by_rows: "permute_dims reshape multiply",
}


@pytest.mark.parametrize("compute", TRANSPOSES, ids=lambda x: x.__name__)
def test_transposes_last(compute):
    shapes = [(2, 4, 4, 8), (2, 4, 4, 8), (8, 1, 1)]
    if compute is scaled_by_rows:
        shapes[0] = (2, 2, 4, 8)
    mod = model_of(compute, *((s, "float32") for s in shapes))
    got = TransposesLast()(mod)
    assert " ".join(ops(got)) == TRANSPOSES[compute]
    relax.analysis.well_formed(got)
    same_values(mod, got)


CONVOLUTIONS = {  # image, filters, strides, padding
    "stem": ((1, 3, 12, 12), (8, 3, 7, 7), (2, 2), (3, 3)),
    "last pixel unread": ((2, 4, 9, 11), (4, 4, 3, 3), (2, 3), (0, 0)),
    "no stride along one axis": ((1, 1, 8, 6), (4, 1, 5, 2), (2, 1), (1, 0, 2, 1)),
    "one axis": ((2, 2, 30), (4, 2, 10), (5,), (0,)),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_space_to_depth(name):
    image, filters, strides, padding = CONVOLUTIONS[name]
    conv = op.nn.conv2d if len(image) == 4 else op.nn.conv1d
    mod = model_of(
        lambda x, w: conv(x, w, strides=strides, padding=padding),
        (image, "float16"),
        (filters, "float16"),
    )
    got = SpaceToDepth()(mod)
    relax.analysis.well_formed(got)
    found = []
    relax.analysis.post_order_visit(
        got["main"], lambda x: found.append(x) if "conv" in str(getattr(x, "op", "")) else None
    )
    (product,) = [x for x in found if isinstance(x, relax.Call)]
    assert {int(n) for n in product.attrs.strides} == {1}
    assert str(got["main"].ret_ty) == str(mod["main"].ret_ty)
    same_values(mod, got, lambda rng, shape: rng.integers(-1, 2, shape))


@pytest.mark.parametrize(
    ("more", "channels", "dtype"),
    [
        ({"strides": (2, 2)}, 16, "float16"),
        ({"strides": (2, 2)}, 3, "float32"),
        ({"strides": (2, 2), "dilation": (2, 2)}, 3, "float16"),
        ({"strides": (2, 2), "groups": 3}, 3, "float16"),
        ({"strides": (3, 3)}, 3, "float16"),  # patches
        ({}, 3, "float16"),
    ],
)
def test_other_convolutions_stay(more, channels, dtype):
    weight = (6, channels // more.get("groups", 1), 3, 3)
    mod = model_of(
        lambda x, w: op.nn.conv2d(x, w, **more), ((1, channels, 9, 9), dtype), (weight, dtype)
    )
    assert tvm_ffi.structural_equal(SpaceToDepth()(mod), mod)


def test_views_are_no_part_of_a_kernel():
    """A product's tiles are stored as they are; views of views are one; a single view is none."""

    def compute(x, w):
        y = op.reshape(op.astype(op.matmul(x, op.permute_dims(w)), "float16"), (2, 8, 64))
        return [op.reshape(y, (2, 8, 4, 16)), op.reshape(op.reshape(x, (2, 8, 64)), (4, 4, 64))]

    mod = model_of(compute, ((16, 64), "float16"), ((64, 64), "float16"))
    made = prepare(mod, models.H200)
    kernels = {
        gv.name_hint: f for gv, f in made.functions_items() if isinstance(f, tvm.tirx.PrimFunc)
    }
    (product,) = [f for name, f in kernels.items() if "matmul" in name]
    assert [int(n) for n in product.params[-1].ty.shape] == [16, 64]
    assert "reshape" in str(made["main"])
    given = [
        np.eye(64, dtype="float16")[:16],
        np.arange(4096).reshape(64, 64).astype("float16") / 64,
    ]
    for got, want in zip(
        *(models.on_processor(x, "main", given) for x in (made, mod)), strict=True
    ):
        np.testing.assert_array_equal(got, want)


def first_rows(x, _w):
    return op.strided_slice(op.nn.relu(x), [0], [0], [4])


def first_row_of_product(x, w):
    return op.take(op.matmul(x, op.permute_dims(w)), relax.const(0, "int64"), 0)


@pytest.mark.parametrize("compute", [first_rows, first_row_of_product], ids=lambda x: x.__name__)
def test_first_rows_are_no_view(compute):
    mod = model_of(compute, *(((16, 64), "float32"), ((64, 64), "float32")))
    same_values(mod, prepare(mod, models.H200))


def normed(x):
    return op.nn.layer_norm(
        x, relax.const(np.ones(8, "float32")), relax.const(np.ones(8, "float32")), [-1]
    )


IN_TWO_BLOCKS = {  # what the first block ends with, the steps of the second one
    "view": (lambda x: op.reshape(x, (8, 4)), op.nn.gelu),
    "transpose": (op.permute_dims, op.nn.gelu),
    "norm": (normed, lambda x: op.strided_slice(x, [0], [1], [2])),
    "operand": (
        op.permute_dims,
        lambda x: op.matmul(op.ones((4, 8), "float16"), op.astype(x, "float16")),
    ),
}


@pytest.mark.parametrize("name", IN_TWO_BLOCKS)
def test_a_block_reads_no_variable_of_another(name):
    first, second = IN_TWO_BLOCKS[name]
    x, builder = relax.Var("x", relax.TensorType((4, 8), "float32")), relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            between = builder.emit_output(first(builder.emit(op.nn.relu(x))))
        packed = builder.emit(op.call_pure_packed("testing.same", between, ty_args=[between.ty]))
        with builder.dataflow():
            out = builder.emit_output(second(between))
        builder.emit_func_output(relax.Tuple([out, packed]))
    mod = builder.finalize()
    for made in (ElementsFirst, TransposesLast, SimplifyOperands):
        relax.analysis.well_formed(made()(mod))
    prepare(mod, models.H200)


def test_two_draws_are_two():
    def compute(x):
        first, second = (op.call_dps_packed("testing.draw", (), x.ty) for _ in range(2))
        return op.add(op.subtract(first, second), x)

    made = prepare(model_of(compute, ((4, 8), "float32")), models.H200)
    assert str(made["main"]).count("call_dps_packed") == 2


def test_windows_of_zeros_alone_stay():
    mod = model_of(
        lambda x, w: op.nn.conv2d(x, w, strides=(4, 2), padding=(9, 0, 0, 0)),
        ((1, 3, 2, 6), "float16"),
        ((4, 3, 8, 3), "float16"),
    )
    assert tvm_ffi.structural_equal(SpaceToDepth()(mod), mod)


def views_of_given(_b, x, w):
    return [op.matmul(x, w), op.reshape(op.reshape(x, (4, 16)), (2, 32))]


def view_read_on(b, x, _w):
    view = b.emit(op.reshape(op.reshape(x, (4, 16)), (2, 32)))
    return [op.reshape(view, (64,)), op.nn.relu(view)]


def turned_back(_b, x, w):
    return [op.permute_dims(op.permute_dims(x)), op.matmul(x, w)]


def result_and_view_of_it(b, x, w):
    y = b.emit(op.matmul(x, w))
    turned = op.permute_dims(op.permute_dims(y))
    return [y, op.reshape(turned, (64,)), op.reshape(op.reshape(y, (4, 16)), (2, 32))]


@pytest.mark.parametrize(
    "compute",
    [views_of_given, view_read_on, turned_back, result_and_view_of_it],
    ids=lambda x: x.__name__,
)
def test_results_share_no_memory(compute):
    mod = model_of(compute, *[((8, 8), "float32")] * 2, takes_builder=True)
    ex = relax.build(prepare(mod, models.H200), target="llvm", relax_pipeline="default_build")
    given = [tvm.runtime.tensor(np.full((8, 8), 1.0 + i, "float32")) for i in range(2)]
    results = [*relax.VirtualMachine(ex, tvm.cpu())["main"](*given)]
    for i, x in enumerate([*given, *results]):  # what is written changes nothing behind it
        behind = results[max(0, i - 1) :]
        before = [y.numpy().copy() for y in behind]
        x.copyfrom(np.full([*x.shape], 77.0, "float32"))
        for y, want in zip(behind, before, strict=True):
            np.testing.assert_array_equal(y.numpy(), want)
