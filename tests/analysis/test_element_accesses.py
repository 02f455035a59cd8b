"""Tensors that a thread accesses element by element, as the CUDA text has it."""

import re

import pytest
import tvm
from tvm import s_tir, te, topi
from tvm.ir.transform import PassContext

import tvm_hopper
from tvm_hopper import LoweringError, schedule as hs
from tvm_hopper.transforms.common.explain_notes import ElementsNote, read_notes

H200 = "nvidia/nvidia-h200"
HALF = "float16"


def tensor(name, *shape, dtype=HALF):
    return te.placeholder(shape, dtype, name=name)


def compute(function, *shape):
    return te.compute(shape, function, name="Y")


def pointwise(*args):
    sch = s_tir.Schedule(te.create_prim_func(list(args)))
    hs.pointwise(sch)
    return sch.mod


def read_twice():
    x = tensor("X", 128, 128)
    return pointwise(x, compute(lambda i, j: x[i, j] + x[j, i], 128, 128))


def flipped():
    x = tensor("X", 200, 202)
    return pointwise(x, topi.flip(x, 1))


def strided():
    x = tensor("X", 200, 302)
    return pointwise(x, topi.strided_slice(x, [0, 1], [200, 301], [1, 3]))


def gathered():
    x, index = tensor("X", 256, 1024), tensor("I", 1000, dtype="int32")
    return pointwise(x, index, topi.take(x, index, axis=1, mode="clip"))


def product(other):
    a, b, k = tensor("A", 128, 64), tensor("B", 128, 64), te.reduce_axis((0, 64), "k")
    r = tensor("X", 128, 256)
    c = te.compute((128, 128), lambda i, j: te.sum(a[i, k] * b[j, k].astype(HALF), k), "C")
    y = compute(lambda i, j: c[i, j] + r[other(i, j)], 128, 128)
    sch = s_tir.Schedule(hs.widen_sums(te.create_prim_func([a, b, r, y])))
    hs.matmul(sch, "C")
    return sch.mod


def notes_of(mod):
    lowered = tvm_hopper.lower(mod, H200, until="tvm_hopper.RecordModelChoice")
    notes = read_notes(lowered["main"])
    found = [x for own in notes.kernels.values() for x in own]
    return [x for x in found if isinstance(x, ElementsNote)]


@pytest.mark.parametrize(
    ("make", "fetched"),
    [
        (read_twice, 32),
        (flipped, 2),
        (strided, 6),
        (gathered, 32),
        (lambda: product(lambda i, j: (j, i)), 16),
        (lambda: product(lambda i, j: (i, 2 * j)), 32),
    ],
    ids=["twice", "flipped", "strided", "gathered", "residual", "strided residual"],
)
def test_element_by_element(make, fetched):
    mod = make()
    assert notes_of(mod) == [ElementsNote("X", 2, fetched)]
    (kernel,) = tvm_hopper.explain(mod, target=H200).kernels
    assert any("tensor X: loaded 2 bytes at a time" in x for x in kernel.fallbacks)
    text = tvm_hopper.capture.cuda_sources(tvm.compile(mod, target=H200))[-1]
    assert re.search(r"[^&]\bX_ptr\[", text)
    strict = PassContext(config={"tvm_hopper.strict": True})
    with strict, pytest.raises(LoweringError, match=r"tensor X, .*found loaded 2 bytes at a time"):
        tvm.compile(mod, target=H200)


N = te.var("n")


@pytest.mark.parametrize(
    "args",
    [
        lambda: (x := tensor("X", 64, 1000), b := tensor("B", 64), c := tensor("C", 1000),
                 compute(lambda i, j: x[i, j] * b[i] + c[j], 64, 1000)),
        lambda: (x := tensor("X", 200, 208), topi.transpose(x)),
        lambda: (x := tensor("X", 64, 1001),
                 compute(lambda i, j: x[i, j].astype("float32"), 64, 1001)),
        lambda: (x := tensor("X", 64, 512), compute(lambda i, j: x[i, (j + 256) % 512], 64, 512)),
        lambda: (x := tensor("X", 256, 1024), i := tensor("I", 100, dtype="int32"),
                 topi.take(x, i, axis=0, mode="clip")),
        lambda: (x := tensor("X", N, 1024), c := tensor("C", N, 128),
                 compute(lambda i, j: x[i, j] * c[i, j % 128], N, 1024)),
        lambda: (x := tensor("X", 7007), compute(lambda i: x[i] * x[i], 7007)),
        lambda: (x := tensor("X", 512, 1024), t := tensor("T", 256), compute(
            lambda i, j: t[x[i, j].astype("int32") % 256], 512, 1024)),
    ],
    ids=["values of rows and columns", "transposed", "a cast", "half of a row", "rows by index",
         "shared rows", "a tail", "a small table"],
)  # fmt: skip
def test_vectors(args):
    mod = pointwise(*args())
    assert notes_of(mod) == []
    with PassContext(config={"tvm_hopper.strict": True}):
        (kernel,) = tvm_hopper.explain(mod, target=H200).kernels
    assert kernel.fallbacks == ()
