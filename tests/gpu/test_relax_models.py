"""A small Llama on the device, in the size classes that its calls fall into, against float32."""

from dataclasses import replace

import numpy as np
import pytest
import tvm
from tvm import relax

from tests.relax import models, test_fuse_memory_bound
from tvm_hopper.relax import join_products, report
from tvm_hopper.relax.records import OURS
from tvm_hopper.testing.llama import SMALL, llama, separate_block

pytestmark = pytest.mark.gpu

SHAPE = replace(SMALL, hidden=512, heads=8, kv_heads=2, head=64, inner=768, layers=2)
CASES = [("prefill", 1, 100), ("prefill", 3, 7), ("decode", 1, 1), ("decode", 70, 1)]


def as_float32(value):
    if isinstance(value, list):
        return [as_float32(x) for x in value]
    return value.astype("float32") if isinstance(value, np.ndarray) else value


def on_device(value, device):
    if isinstance(value, list):
        return [on_device(x, device) for x in value]
    if isinstance(value, np.ndarray):
        return tvm.runtime.tensor(value, device)
    return tvm.runtime.ShapeTuple([value])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("attention", ["none", "plain"])
def test_against_float32(attention, dtype):
    if not tvm.cuda(0).exist or tvm.cuda(0).compute_version != "9.0":
        pytest.skip("no GPU of compute capability 9.0")
    mod = llama(SHAPE, dtype, attention)
    wide = models.legalized(llama(SHAPE, "float32", attention))
    pipeline = relax.get_pipeline("tvm_hopper", classes=models.CLASSES)
    ex = relax.build(mod, target=models.H200, relax_pipeline=pipeline)
    assert sum(x.product is not None for x in report(ex).functions if x.computed_by == OURS) == 5
    device = tvm.cuda(0)
    machine = relax.VirtualMachine(ex, device)
    for name, batch, length in CASES:
        sizes = {"batch": batch, "length": length, "past": 5, "total": 5 + length}
        given = models.inputs_of(mod, name, sizes)
        (want, *_) = models.on_processor(wide, name, as_float32(given))
        got = machine[name](*(on_device(x, device) for x in given))
        got = (got if attention == "none" else got[0]).numpy()
        assert got.shape == want.shape
        error = np.linalg.norm(got - want) / np.linalg.norm(want)
        assert error < (0.002 if dtype == "float16" else 0.016), (name, batch, length, error)


@pytest.mark.parametrize("rows", [1, 64])
def test_captured_graphs(rows):
    """Each replay computes what the launches do, also of other inputs that lie elsewhere."""
    if not tvm.cuda(0).exist or tvm.cuda(0).compute_version != "9.0":
        pytest.skip("no GPU of compute capability 9.0")
    device = tvm.cuda(0)
    machines = []
    for graph in (True, False):
        pipeline = relax.get_pipeline("tvm_hopper", graph=graph)
        ex = relax.build(models.layers(3, rows, 1024), target=models.H200, relax_pipeline=pipeline)
        machines.append(relax.VirtualMachine(ex, device))
    rng = np.random.default_rng(rows)
    shapes = [(2048, 1024), (1024, 2048), (1024,)]
    weights = [
        tvm.runtime.tensor((rng.standard_normal(x) / 16).astype("float16"), device) for x in shapes
    ]
    kept = []
    for _ in range(4):
        x = tvm.runtime.tensor(rng.standard_normal((rows, 1024)).astype("float16"), device)
        kept.append(x)  # so that the next one lies elsewhere
        captured, launched = (machine["forward"](x, *weights).numpy() for machine in machines)
        np.testing.assert_array_equal(captured, launched)


def test_products_that_are_joined():
    """The same values as those of the products by themselves; keys and values too."""
    if not tvm.cuda(0).exist or tvm.cuda(0).compute_version != "9.0":
        pytest.skip("no GPU of compute capability 9.0")
    mod, device = separate_block(SHAPE, "float16"), tvm.cuda(0)
    wide = models.legalized(separate_block(SHAPE, "float32"))
    pipeline = relax.get_pipeline("tvm_hopper", classes=models.CLASSES)
    for gates in (True, False):
        joined = join_products(mod, gates=gates)
        ex = relax.build(joined, target=models.H200, relax_pipeline=pipeline)
        machine = relax.VirtualMachine(ex, device)
        for _, batch, length in CASES:
            x, weights = models.inputs_of(mod, "main", {"batch": batch, "length": length})
            made = machine["transform_params"](on_device(weights, device))
            got = machine["main"](on_device(x, device), made)
            want = models.on_processor(wide, "main", as_float32([x, weights]))
            for one, other in zip(got, want, strict=True):
                error = np.linalg.norm(one.numpy() - other) / np.linalg.norm(other)
                assert error < 0.002, (gates, batch, length, error)


@pytest.mark.parametrize("name", test_fuse_memory_bound.FUSED)
def test_norms_with_what_they_read(name):
    if not tvm.cuda(0).exist or tvm.cuda(0).compute_version != "9.0":
        pytest.skip("no GPU of compute capability 9.0")
    body, *_ = test_fuse_memory_bound.FUSED[name]
    mod, device = test_fuse_memory_bound.model(body), tvm.cuda(0)
    ex = relax.build(mod, target=models.H200, relax_pipeline="tvm_hopper")
    assert any(x.name.startswith("fused_") for x in report(ex).functions)
    wide = models.legalized(test_fuse_memory_bound.model(body, dtype="float32"))
    for batch, length in ((1, 1), (3, 7), (2, 1000)):
        given = models.inputs_of(mod, "main", {"b": batch, "s": length})
        got = relax.VirtualMachine(ex, device)["main"](*on_device(given, device))
        want = models.on_processor(wide, "main", as_float32(given))
        got = [got] if hasattr(got, "numpy") else list(got)
        for one, other in zip(got, want, strict=True):
            error = np.linalg.norm(one.numpy() - other) / np.linalg.norm(other)
            most = 0.02 if "int" in one.dtype else 0.002  # a whole step of quantisation
            assert error < most, (name, batch, length, error)
