"""Small models of several kinds, and runs of them on this machine's processor."""

from __future__ import annotations

import functools

import numpy as np
import tvm
from tvm import relax, tirx
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import spec
from tvm.target import Target

from tvm_hopper import ir
from tvm_hopper.facts.dtypes import DTYPES
from tvm_hopper.relax.keep_records import records_of
from tvm_hopper.relax.lowering import legalize_passes, prepare_passes
from tvm_hopper.relax.options import ModelOptions
from tvm_hopper.relax.records import OURS
from tvm_hopper.simulation import verify
from tvm_hopper.testing.llama import SMALL, llama

H200 = "nvidia/nvidia-h200"
MOST_CTAS = 64  # run of a kernel whose indices follow from data
CLASSES = (16, 64)  # few, so that tests build quickly


def legalized(mod: tvm.IRModule) -> tvm.IRModule:
    """Return what our pipeline has before it flattens."""
    passes = [
        relax.transform.FuseTransposeMatmul(),
        relax.get_pipeline("zero"),
        relax.transform.RewriteDataflowReshape(),
    ]
    with Target(H200):
        return tvm.transform.Sequential(passes)(mod)


def plain_functions(mod: tvm.IRModule) -> dict[str, tirx.PrimFunc]:
    """Return a model's functions as the rules are given them, by name."""
    with Target(H200):
        mod = tvm.transform.Sequential(prepare_passes(ModelOptions()))(mod)
    return {gv.name_hint: f for gv, f in mod.functions.items() if isinstance(f, tirx.PrimFunc)}


def schedule(mod: tvm.IRModule, **options) -> tvm.IRModule:
    """Return a model as our passes leave it."""
    given = ModelOptions(**{"classes": CLASSES, **options})
    with Target(H200):
        return tvm.transform.Sequential(legalize_passes(given))(mod)


@functools.cache
def scheduled_llama(dtype: str, attention: str = "plain") -> tvm.IRModule:
    """Return a small Llama as our passes leave it."""
    return schedule(llama(SMALL, dtype, attention))


def layers(count: int, rows: int, columns: int) -> tvm.IRModule:
    """Return a model of residual layers of float16 with a norm each, "forward"."""

    class Layers(nn.Module):
        def __init__(self) -> None:
            self.up = nn.Linear(columns, 2 * columns, bias=False)
            self.down = nn.Linear(2 * columns, columns, bias=False)
            self.norm = nn.RMSNorm(columns, -1, bias=False)

        def forward(self, x: nn.Tensor) -> nn.Tensor:
            for _ in range(count):
                x = x + self.down(nn.op.silu(self.up(self.norm(x))))
            return x

    model = Layers()
    model.to("float16")
    mod, _ = model.export_tvm({"forward": {"x": spec.Tensor((rows, columns), "float16")}})
    return mod


def linear(rows: int, depth: int, columns: int) -> tvm.IRModule:
    """Return a model of one product of float16, "forward"."""

    class Linear(nn.Module):
        def __init__(self):
            self.weight = nn.Linear(depth, columns, bias=False)

        def forward(self, x):
            return self.weight(x)

    model = Linear()
    model.to("float16")
    return model.export_tvm(spec={"forward": {"x": spec.Tensor([rows, depth], "float16")}})[0]


def draw(func: tirx.PrimFunc, rows: int) -> dict[str, np.ndarray]:
    """Draw what a function reads; symbols are rows."""
    rng = np.random.default_rng(0)
    found = {}
    blocks = ir.find_all(func.body, ir.SBlock)
    written = [x.source for block in blocks for x in block.writes]
    for param in func.params:
        if any(param.same_as(x) for x in written):
            continue
        if not tirx.is_buffer_var(param):  # a symbol by itself
            found[str(param.name)] = rows
            continue
        shape = [_length(x, rows) for x in param.ty.shape]
        if "int" in ir.dtype_of(param):
            values = rng.integers(0, 2, shape)  # indices, of the first elements
        else:
            values = rng.standard_normal(shape) * (shape or [1])[-1] ** -0.25
        found[str(param.name)] = values.astype(DTYPES[ir.dtype_of(param)].numpy)
    return found


def _length(extent, rows: int) -> int:
    """Return an extent where each symbol is so many rows: b * s is more of them."""
    symbols = {x: tirx.const(rows, ir.dtype_of(x)) for x in ir.find_all(extent, tirx.Var)}
    return int(ir.simplify(ir.substitute(extent, symbols)))


def with_names_apart(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Give parameters names of their own: outputs of a split all have one, and are found by it."""
    new = {
        x: ir.new_buffer(f"{x.name}_{i}", tuple(x.ty.shape), ir.dtype_of(x), "global")
        for i, x in enumerate(func.params)
        if tirx.is_buffer_var(x)
    }
    body = ir.substitute(func.body, new)
    params = [new.get(x, x) for x in func.params]
    return tirx.PrimFunc(params, body, func.ret_type).with_attrs(dict(func.attrs))


def check_values(mod: tvm.IRModule, plain: dict[str, tirx.PrimFunc], rows: tuple[int, ...]) -> int:
    """Verify every function of ours against its plain loops; return how many runs there were."""
    ours = [x for x in records_of(mod) if x.computed_by == OURS]
    count = 0
    for record in ours:
        func = with_names_apart(mod[record.name])
        kernel = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
        wanted = plain[record.name].with_attr("global_symbol", "main")
        for number in rows if record.product else rows[:1]:
            given = draw(func, number)
            # What an index is read from says nothing of thread blocks that did not run.
            by_data = any(np.asarray(x).dtype.kind in "iu" for x in given.values())
            more = {"max_ctas": MOST_CTAS} if by_data else {}
            report = verify(
                kernel, given, target=Target(H200), against=wanted, progress=False, **more
            )
            assert report.verdict == "clean", f"{record.name}, {number} rows\n{report.table()}"
            count += 1
    return count


def on_processor(mod: tvm.IRModule, name: str, arguments: list) -> list[np.ndarray]:
    """Run a function of a Relax module by llvm, as it is."""
    ex = relax.build(mod, target="llvm", relax_pipeline="default_build")
    machine = relax.VirtualMachine(ex, tvm.cpu())
    return _to_numpy(machine[name](*on_device(arguments)))


def device_text(mod: tvm.runtime.Module) -> str:
    """Return the CUDA text of a module and of all that it imports."""
    own = mod.inspect_source() if mod.kind == "cuda" else ""
    return own + "".join(map(device_text, mod.imports))


def on_device(arguments: list) -> list:
    """Return arguments as tensors on this machine's processor."""
    return [_to_tvm(x) for x in arguments]


def _to_tvm(value):
    if isinstance(value, np.ndarray):
        return tvm.runtime.tensor(value)
    if isinstance(value, (list, tuple)):
        return tvm.runtime.convert([_to_tvm(x) for x in value])
    return tvm.runtime.ShapeTuple([value]) if isinstance(value, int) else value


def _to_numpy(value) -> list[np.ndarray]:
    if hasattr(value, "numpy"):
        return [value.numpy()]
    return [x for part in value for x in _to_numpy(part)]


def inputs_of(mod: tvm.IRModule, name: str, sizes: dict[str, int], seed: int = 0) -> list:
    """Draw the arguments of a function: normal numbers, small weights, sizes for scalars."""
    rng = np.random.default_rng(seed)

    def draw(ty):
        if isinstance(ty, relax.TupleType):
            return [draw(x) for x in ty.fields]
        if isinstance(ty, relax.ShapeType):
            return sizes["total"]
        shape = [sizes[str(x)] if isinstance(x, tvm.tirx.Var) else int(x) for x in ty.shape.values]
        scale = 1.0 if len(shape) != 2 else shape[-1] ** -0.5
        return (scale * rng.standard_normal(shape)).astype(str(ty.dtype))

    return [draw(x.ty) for x in mod[name].params]
