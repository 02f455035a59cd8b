"""What there is no report of: one clear error each."""

import pytest
import tvm
from tvm import relax

from tests.relax import models
from tvm_hopper.cli import main
from tvm_hopper.errors import HopperError
from tvm_hopper.relax import report
from tvm_hopper.relax.keep_records import END, MARK, records_of
from tvm_hopper.relax.model_table import reason
from tvm_hopper.relax.records import STOCK, FunctionRecord
from tvm_hopper.testing.llama import SMALL, llama


def test_of_what_was_built_otherwise():
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4,), "float32"))
    with builder.function("main", [x]):
        builder.emit_func_output(x)
    mod = builder.finalize()
    ex = relax.build(mod, "llvm")
    func = tvm.tirx.PrimFunc([], tvm.tirx.Evaluate(0)).with_attr("global_symbol", "main")
    for thing in (ex, ex.mod, tvm.compile(func, "llvm").mod):
        with pytest.raises(HopperError, match="found no records of tvm_hopper; need one that it"):
            report(thing)


def test_of_an_executable_whose_constants_are_floats():
    """TVM cannot list them: `stats` raises."""
    for text in ("nothing", MARK, f"{MARK}text{END}"):
        builder = relax.BlockBuilder()
        x = relax.Var("x", relax.TensorType((4,), "float32"))
        with builder.function("main", [x]):
            half = relax.prim_value(tvm.tirx.FloatImm("float64", 0.5))
            kind = relax.TensorType((4,), "float32")
            call = relax.Call(
                relax.ExternFunc("my.f"), [x, half, tvm.ir.StringImm(text)], ty_args=[kind]
            )
            builder.emit_func_output(builder.emit(call))
        ex = relax.build(builder.finalize(), "llvm")
        with pytest.raises(HopperError, match=r"^model: found no records of tvm_hopper; need one"):
            report(ex)


def test_of_files_without_records(tmp_path, capsys):
    path = tmp_path / "other.so"
    path.write_bytes(b"\x7fELF")
    with pytest.raises(HopperError, match=r"other\.so: found no records of tvm_hopper; need one"):
        report(str(path))
    assert main(["model-report", str(tmp_path / "none.so")]) == 2
    assert "none.so: found no file to read" in capsys.readouterr().err
    assert main(["model-report", str(path), "--sizes", "batch"]) == 2
    assert "found 'batch'; need NAME=N" in capsys.readouterr().err


@pytest.mark.parametrize("thing", [None, 3])
def test_of_what_is_no_model(thing):
    with pytest.raises(
        HopperError, match=r"found \w+; need an IRModule, what relax.build gave, or"
    ):
        records_of(thing)


@pytest.mark.parametrize(
    ("target", "found"), [(None, "no target"), ("llvm", "target llvm")], ids=["none", "llvm"]
)
def test_of_a_plain_module_without_a_target_of_ours(target, found):
    with pytest.raises(HopperError, match=f"found {found}; need a cuda target with arch sm_90a"):
        report(llama(SMALL, attention="none"), target)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"batches": 2}, "found a size of 'batches'; need symbols of the model: batch, length"),
        ({"batch": -1}, "found size batch=-1; need a number, 0 or more"),
        ({"batch": True}, "found size batch=True; need a number"),
    ],
)
def test_sizes_that_are_none(sizes, message):
    with pytest.raises(HopperError, match=message):
        report(models.scheduled_llama("float16", "none"), sizes=sizes)


def test_options_of_what_is_lowered():
    with pytest.raises(HopperError, match="found classes for a model that is lowered"):
        report(models.scheduled_llama("float16", "none"), classes=(16,))


def test_products_of_float32_are_advised_to_have_16_bits():
    """`operands="tf32"` is no option of a model."""
    why = (
        "block C, tensor A: found float32; need a type that tensor cores multiply as it is; give "
        'operands="tf32" to count 10 bits of each mantissa'
    )
    record = FunctionRecord("f", STOCK, "r", refused=(("Matmul", why),))
    assert reason(record).endswith("; tvm_hopper.relax.to_half(mod) lets products have 16 bits")
    assert "tf32" not in reason(record)
