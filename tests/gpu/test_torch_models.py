"""Encoders, convolutions and mixtures of experts of others, against PyTorch in float64."""

import copy

import pytest
import tvm
from tvm import relax

from tests.relax import models, torch_models
from tvm_hopper.relax import report
from tvm_hopper.relax.records import NOBODY, OURS

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore"),  # of PyTorch and its importer
]

# In float16 no error may be twice PyTorch's own.
LIMIT = {"float32": 2e-5, "float16": 4e-3}


FEW = [("encoder", "float16"), ("resnet", "float16"), ("mixtral", "float32")]
MORE = [
    pytest.param(name, dtype, marks=pytest.mark.slow)
    for name in torch_models.MODELS
    for dtype in LIMIT
    if (name, dtype) not in FEW
]


def as_half(x):
    return (x.half() if x.is_floating_point() else x).cuda()


@pytest.mark.parametrize(("name", "dtype"), [*FEW, *MORE])
def test_against_torch(name, dtype):
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    pytest.importorskip("torchvision")
    if not tvm.cuda(0).exist or tvm.cuda(0).compute_version != "9.0":
        pytest.skip("no GPU of compute capability 9.0")
    model, arguments, mod = torch_models.exported(name, dtype)
    ex = relax.build(mod, target=models.H200, relax_pipeline="tvm_hopper")
    found = report(ex)
    for one in found.others:
        print(f"{name} {dtype}: {one.name}: {one.computed_by} {one.rule}")
        assert one.computed_by != NOBODY
    ours = [x for x in found.functions if x.computed_by == OURS]
    print(f"{name} {dtype}: {len(ours)} of {len(found.functions)} functions are ours")
    products = sum(x.product is not None for x in ours)
    assert products >= (dtype == "float16")
    device = tvm.cuda(0)
    machine = relax.VirtualMachine(ex, device)
    (got,) = machine["main"](*(tvm.runtime.tensor(x.numpy(), device) for x in arguments))
    got = torch.from_numpy(got.numpy()).double()
    own = None
    with torch.no_grad():
        if dtype == "float16":  # what PyTorch makes of it in the same type
            half = copy.deepcopy(model).half().cuda()
            own = half(*(as_half(x) for x in arguments)).cpu().double()
        want = model.double()(*(x.double() if x.is_floating_point() else x for x in arguments))
    assert got.shape == want.shape

    def worst_of(result):
        error = (result - want).norm(dim=-1) / want.norm(dim=-1)
        # Rounding may send a token to another expert; that is not an error of a kernel.
        is_routed = name in torch_models.EXPERTS and dtype == "float16"
        return float(error.median() if is_routed else error.max())

    worst = worst_of(got)
    beside = f", PyTorch's own {worst_of(own):.1e}" if own is not None else ""
    print(f"{name} {dtype}: error {worst:.1e}{beside}")
    assert worst < LIMIT[dtype]
    assert own is None or worst < 2 * worst_of(own)
