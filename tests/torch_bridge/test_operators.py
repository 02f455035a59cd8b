"""Custom operators of kernels, on the processor: signatures, fake tensors, gradients, errors."""

import subprocess
import sys

import pytest
import tvm
from tvm import s_tir, te
from tvm.script import tirx as T

import tvm_hopper
from tvm_hopper import schedule as hs
from tvm_hopper.errors import HopperError, OptionError, ScheduleError
from tvm_hopper.testing import workloads
from tvm_hopper.torch.signatures import Parameter, Signature, signature_of

CPU, H200 = "llvm", "nvidia/nvidia-h200"
pytestmark = pytest.mark.filterwarnings("ignore")  # of PyTorch
F32 = "float32"


@T.prim_func(s_tir=True)
def axpy(a: T.float32, X: T.Buffer((8,), "float32"), Y: T.Buffer((8,), "float32")):
    for i in range(8):
        with T.sblock("Y"):
            v = T.axis.spatial(8, i)
            Y[v] = Y[v] + a * X[v]


@T.prim_func(s_tir=True)
def accumulated(
    A: T.Buffer((256, 128), "float16"),
    B: T.Buffer((128, 128), "float16"),
    C: T.Buffer((256, 128), "float32"),
):
    for i, j, k in T.grid(256, 128, 128):
        with T.sblock("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            C[vi, vj] = C[vi, vj] + T.Cast("float32", A[vi, vk]) * T.Cast("float32", B[vj, vk])


def two_results():
    n = tvm.tirx.Var("n", "int64")
    a, b = (te.placeholder((n, 64), F32, name=x) for x in "AB")
    c = te.compute((n, 64), lambda i, j: a[i, j] + b[i, j] * 2.0, "C")
    d = te.compute((n * 2 + 1, 64), lambda i, j: a[i // 3, j] - 1.0, "D")
    return tvm.IRModule({"main": te.create_prim_func([a, b, c, d])})


def product():
    sch = s_tir.Schedule(workloads.matmul("m", 64, 64))
    hs.matmul(sch, "C")
    return sch


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


def test_a_function_says_what_it_fills_and_what_it_updates():
    found = signature_of(two_results())
    assert found.outputs == ("C", "D")
    assert found.parameters[3] == Parameter("D", F32, ("((n * 2) + 1)", 64))
    assert found.places() == {"n": ("A", 0)}
    assert (signature_of(axpy).outputs, signature_of(axpy).updated) == ((), ("Y",))
    assert signature_of(accumulated).updated == ("C",)


def test_an_executable_has_the_signature_of_its_function():
    sch = product()
    ex = tvm.compile(sch.mod, target=H200)
    assert signature_of(ex) == signature_of(sch)
    update = s_tir.Schedule(hs.normalize(tvm.IRModule({"main": accumulated})))
    hs.matmul(update, "C")
    with pytest.raises(ScheduleError, match="found an executable that reads its last tensor C"):
        signature_of(tvm.compile(update.mod, target=H200))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: signature_of(two_results(), "none"), "found function='none'; need one of main"),
        (lambda: signature_of(two_results(), outputs=("E",)), r"results \['E'"),
        (lambda: signature_of(object()), "found object, of which nothing is known"),
        (lambda: Signature((Parameter("C", F32, ("m",)),), ("C",)).places(), "need m as an extent"),
        (lambda: Signature((Parameter("x", F32),), ()), r"found results \[\]"),
    ],
)
def test_a_signature_that_says_too_little_is_refused(make, text):
    with pytest.raises(ScheduleError, match=text):
        make()


def test_an_operator_allocates_its_results(torch):
    op = tvm_hopper.torch.op(two_results(), "tests::two", target=CPU)
    assert str(op._schema) == "tests::two(Tensor A, Tensor B) -> (Tensor, Tensor)"
    for rows in (1, 5, 12):
        a, b = torch.randn(2, rows, 64)
        c, d = op(a, b)
        torch.testing.assert_close(c, a + 2 * b)
        torch.testing.assert_close(d, (a - 1).repeat_interleave(3, 0)[: 2 * rows + 1])
    torch.library.opcheck(op, (a, b))  # schema, fake tensors, symbolic sizes


def test_an_updated_tensor_is_an_argument(torch):
    op = tvm_hopper.torch.op(axpy, "tests::axpy", target=CPU)
    assert str(op._schema) == "tests::axpy(float a, Tensor X, Tensor(a!) Y) -> ()"
    x, y = torch.randn(2, 8)
    want = y + 0.5 * x
    op(0.5, x, y)
    torch.testing.assert_close(y, want)
    torch.library.opcheck(op, (0.5, x, y))


def test_gradients_are_those_of_the_given_kernels(torch):
    op = tvm_hopper.torch.op(
        two_results(), "tests::grad", target=CPU, outputs=("C", "D"),
        backward=lambda grads, inputs, results: (grads[0] * inputs[1], grads[0] * results[0]),
    )  # fmt: skip
    a, b = (torch.randn(4, 64, requires_grad=True) for _ in range(2))
    c, _ = op(a, b)
    c.sum().backward()
    torch.testing.assert_close(a.grad, b.detach())
    torch.testing.assert_close(b.grad, c.detach())
    short = tvm_hopper.torch.op(
        two_results(), "tests::short", target=CPU, backward=lambda *_: (None,)
    )
    with pytest.raises(ScheduleError, match="found 1 gradients; need 2"):
        short(a, b)[0].sum().backward()


def test_the_kernel_names_what_is_wrong(torch):
    op = tvm_hopper.torch.op(two_results(), "tests::wrong", target=CPU)
    a, b = torch.randn(2, 6, 64)
    for bad, text in [
        (a[:, :32], r"Invalid A.shape\[1\]"),
        (a.half(), "Mismatched A.dtype"),
        (a.t().contiguous().t(), "Mismatched A.strides"),
        (a[:3], "Mismatched B.shape"),
    ]:
        with pytest.raises((ValueError, TypeError), match=text):
            op(bad, b)


def test_a_compiled_function_holds_the_operator(torch):
    op = tvm_hopper.torch.op(two_results(), "tests::inside", target=CPU)
    fast = torch.compile(lambda a, b: op(a, b)[0].relu(), backend="eager", fullgraph=True)
    for rows in (3, 4, 5):
        a, b = torch.randn(2, rows, 64)
        torch.testing.assert_close(fast(a, b), (a + 2 * b).relu())


def test_names_and_inputs_are_checked(torch):
    tvm_hopper.torch.op(two_results(), "tests::once", target=CPU)
    for name, text in [("tests::once", "which is an operator"), ("a::b::c", "need a name such as")]:
        with pytest.raises(OptionError, match=text):
            tvm_hopper.torch.op(two_results(), name, target=CPU)
    sch = Signature((Parameter("n", "int64", None, "n"), Parameter("C", F32, ("n",))), ("C",))
    with pytest.raises(ScheduleError, match="found no tensor among the inputs"):
        tvm_hopper.torch.op({}, "tests::nothing", signature=sch)
    odd = Signature((Parameter("A", F32, (4,)), Parameter("C", "float3", (4,))), ("C",))
    with pytest.raises(ScheduleError, match="result C: found type float3"):
        tvm_hopper.torch.op({}, "tests::type", signature=odd)


def test_a_loaded_function_needs_its_signature_only(torch):
    """The compiler is not imported: another process hides it."""
    code = """
import sys
import tvm_hopper.torch
for name in ("tvm.tirx", "tvm.relax"):
    sys.modules[name] = None
import torch
from tvm_hopper.torch import Parameter, Signature
shape = ("n", 4)
known = Signature((Parameter("A", "float32", shape), Parameter("C", "float32", shape)), ("C",))
op = tvm_hopper.torch.op({"main": lambda a, c: c.copy_(a + 1)}, "tests::saved", signature=known)
assert op(torch.zeros(3, 4)).sum() == 12
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_pytorch_one_line_says_so(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(HopperError, match=r"torch\.op: found no torch; need it installed"):
        tvm_hopper.torch.op(two_results(), "tests::none")
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = tvm_hopper.torch.nothing
