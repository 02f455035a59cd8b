"""What TVM's importer lacks is named."""

import pytest
from tvm import tirx

from tvm_hopper.errors import ScheduleError
from tvm_hopper.torch.dynamo_backend import BackendOptions, _NotBuilt, _target
from tvm_hopper.torch.signatures import _extent

torch = pytest.importorskip("torch")
from torch.fx.experimental.symbolic_shapes import ShapeEnv  # noqa: E402

from tvm_hopper.torch.graph_import import CannotImport, _Symbols, import_graph  # noqa: E402


def graph(value, make=lambda whole, node: node, **attributes):
    """Return a graph with one input, and what `make` adds as its result."""
    whole = torch.fx.Graph()
    node = whole.placeholder("x")
    node.meta["val"] = value
    whole.output((make(whole, node),))
    root = torch.nn.Module()
    for name, attribute in attributes.items():
        setattr(root, name, attribute)
    return torch.fx.GraphModule(root, whole)


def attribute(whole, _):
    """Add an attribute, as a result that is a number."""
    node = whole.get_attr("a")
    node.meta["val"] = ShapeEnv().create_unbacked_symint()
    return node


def of_another_shape(whole, node):
    """Add a step of which PyTorch says another shape."""
    made = whole.call_function(torch.ops.aten.relu.default, (node,))
    made.meta["val"] = torch.zeros(3, 3)
    return made


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (graph("text"), "an input of type str"),
        (graph(torch.eye(2).to_sparse()), "a tensor with layout torch.sparse_coo"),
        (graph(torch.zeros(2, dtype=torch.complex64)), "type torch.complex64"),
        (graph(torch.zeros(2, 2), attribute, a=5), "an attribute of type int"),
        (graph(torch.zeros(2, 2), attribute, a=torch.zeros(2)), "a result that is the number u0"),
        (graph(torch.zeros(2, 2), of_another_shape), r"shape .*2, 2.*where PyTorch has .*3, 3"),
    ],
    ids=["text", "sparse", "complex", "attribute", "number", "shape"],
)
def test_what_cannot_be_imported(made, text):
    with pytest.raises(CannotImport, match=text):
        import_graph(made)


def test_numbers_that_are_no_symbols():
    half = ShapeEnv().create_unbacked_symint() // 2
    with pytest.raises(CannotImport, match="an input that is the number"):
        _Symbols().variable(half)
    with pytest.raises(CannotImport, match="an extent"):
        _Symbols().extent(half)


def test_tensors_of_two_devices():
    given = [torch.zeros(2), torch.zeros(2, device="meta")]
    with pytest.raises(_NotBuilt, match="found inputs on cpu, meta; need tensors of one device"):
        _target(BackendOptions(), given)


def test_an_extent_that_is_no_arithmetic():
    n = tirx.Var("n", "int64")
    with pytest.raises(ScheduleError, match=r"torch.op, tensor A: found an extent .*need sums"):
        _extent("A", tirx.Select(n > 1, n, n + 1))
