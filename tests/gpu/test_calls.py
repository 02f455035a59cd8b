"""What calls may pass, on a GPU: starts in a vector, one tensor twice, launches that are too large.

With them products of one tensor with itself, and tiles chosen for a given cluster.
"""

import numpy as np
import pytest
import tvm
from tvm import relax, s_tir
from tvm.s_tir import dlight as dl
from tvm.target import Target

import tvm_hopper
from tests.sim_kernels import test_bad_inputs, test_one_operand, test_starts
from tvm_hopper import schedule as hs
from tvm_hopper.testing import relax_forms, workloads

pytestmark = pytest.mark.gpu

torch = pytest.importorskip("torch")
H200 = "nvidia/nvidia-h200"
HALF = "float16"


@pytest.fixture(scope="module", autouse=True)
def _gpu():
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("no GPU of compute capability 9.0")


def on_device(values, elements=0):
    """Copy an array to a tensor that starts so many elements into its memory."""
    memory = torch.empty(values.nbytes + 256, dtype=torch.uint8, device="cuda")
    first = elements * values.itemsize
    bits = torch.from_numpy(np.ascontiguousarray(values).view(np.uint8).reshape(-1))
    memory[first : first + values.nbytes] = bits.cuda()
    dtype = getattr(torch, str(values.dtype))
    return memory[first : first + values.nbytes].view(dtype).view(values.shape)


def compiled(mod):
    return tvm.compile(mod, target=H200)["main"]


@pytest.mark.parametrize("kind", test_starts.PROGRAMS)
def test_a_start_in_a_vector_is_refused_by_name_or_served(kind):
    mod = test_starts.PROGRAMS[kind]().mod
    run, values = compiled(mod), test_starts.given(mod["main"])
    wanted = {name: on_device(x) for name, x in values.items()}
    run(*wanted.values())
    for name in values:
        args = {other: on_device(x, int(other == name)) for other, x in values.items()}
        try:
            run(*args.values())
        except ValueError as error:
            assert f"{name}: found a start address" in str(error)  # noqa: PT017
            continue
        torch.cuda.synchronize()
        for other, tensor in args.items():
            assert torch.allclose(tensor.float(), wanted[other].float(), 1e-3, 1e-3), (name, other)


@pytest.mark.parametrize("kind", test_bad_inputs.ONE_OUTPUT)
def test_one_tensor_as_source_and_destination(kind):
    sch = test_bad_inputs.scheduled(kind)
    run, func = compiled(sch.mod), sch.mod["main"]
    values = {**test_starts.given(func), **test_bad_inputs.drawn(sch)}
    apart = {name: on_device(x) for name, x in values.items()}
    run(*apart.values())
    twice = {name: on_device(x) for name, x in values.items()}
    twice["Y"] = twice["X"]
    run(*twice.values())
    torch.cuda.synchronize()
    assert torch.equal(twice["Y"], apart["Y"])


def test_more_rows_of_tiles_than_a_grid_has():
    sch = s_tir.Schedule(workloads.matmul("m", 8, 16, "NT", HALF, HALF))
    hs.matmul(sch, "C", hs.MatmulConfig(tile=(64, 8, 16), persistent=0))
    run, most = compiled(sch.mod), 65535 * 64
    a = torch.ones((most + 1, 16), dtype=torch.float16, device="cuda")
    b = torch.ones((8, 16), dtype=torch.float16, device="cuda")
    out = torch.zeros((most + 1, 8), dtype=torch.float16, device="cuda")
    with pytest.raises(ValueError, match=r"thread blocks along blockIdx.y; need at most 65535"):
        run(a, b, out)
    assert not out.any()
    run(a[:most], b, out[:most])
    assert bool((out[:most] == 16).all())


def test_a_batch_beyond_the_grid():
    shapes = ((70000, 8, 16), HALF), ((70000, 16, 8), HALF)
    mod = relax_forms.legalize(relax.op.matmul, *shapes)
    with Target(H200):
        mod = dl.ApplyDefaultSchedule(*tvm_hopper.dlight.rules())(mod)
    (func,) = [f for f in mod.functions.values() if isinstance(f, tvm.tirx.PrimFunc)]
    run = compiled(tvm.IRModule({"main": func.with_attr("global_symbol", "main")}))
    a, b = (torch.randn(shape, device="cuda").half() for shape, _ in shapes)
    out = torch.empty((70000, 8, 8), dtype=torch.float16, device="cuda")
    run(a, b, out)
    assert torch.allclose(out.float(), a.float() @ b.float(), 1e-2, 2e-2)


@pytest.mark.parametrize("kind", test_one_operand.KINDS)
def test_products_of_one_tensor(kind):
    func, exact, fields = test_one_operand.KINDS[kind]
    x = test_one_operand.drawn(func)
    wanted = exact(x.astype("float64"))
    out = torch.empty(wanted.shape, dtype=torch.float32, device="cuda")
    compiled(test_one_operand.scheduled(func, fields).mod)(on_device(x), out)
    np.testing.assert_allclose(out.cpu().numpy(), wanted, atol=1e-3)


@pytest.mark.parametrize("cluster", [(2, 1), (1, 2), (4, 1), (1, 4), (2, 2), (4, 2), (2, 4)])
def test_a_tile_chosen_for_a_cluster(cluster):
    sch = s_tir.Schedule(workloads.matmul(1024, 768, 512, "NT", HALF, "float32"))
    hs.matmul(sch, "C", hs.MatmulConfig(cluster=cluster))
    a, b = (torch.randn((n, 512), device="cuda").half() for n in (1024, 768))
    out = torch.empty((1024, 768), device="cuda")
    compiled(sch.mod)(a, b, out)
    wanted = a.double() @ b.double().T
    assert torch.allclose(out.double(), wanted, 1e-4, 1e-3)
