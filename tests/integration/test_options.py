"""Options: keys of ours in a PassContext, their types, and who wins over whom."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import tvm
from tvm import tirx
from tvm.ir import StringImm
from tvm.ir.transform import PassContext

from tvm_hopper import HopperError, OptionError
from tvm_hopper.integration import gate
from tvm_hopper.requests import keys, options

from . import _programs

CARRIER = options.CARRIER


def func(**attributes: object):
    mod = _programs.add_one().mod["main"]
    return mod.with_attr({f"tvm_hopper.{name}": value for name, value in attributes.items()})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (keys.STRICT, True),
        (keys.CHECKS, "none"),
        (keys.COMPILER, "nvcc"),
        (keys.WGMMA_PENDING, 1),
        (keys.RASTER_GROUP, 16),
        (keys.ASYNC_COPY, "tma"),
        (keys.DETERMINISTIC, True),
        (keys.FUNCTIONS, "library"),
        (keys.LINE_INFO, "lines"),
    ],
)
def test_a_context_takes_and_shows_every_option(name, value) -> None:
    with PassContext(config={name: value}) as context:
        assert dict(context.config) == {name: value}
        shown = PassContext.current().config[name]
        assert shown == value
        assert type(shown) is type(value) or isinstance(shown, str)
        assert options.read(name) == value
    assert name not in PassContext.current().config


def test_every_option_was_tried() -> None:
    tried = test_a_context_takes_and_shows_every_option.pytestmark[0].args[1]
    assert {name for name, _ in tried} == {k.name for k in keys.KEYS.values() if k.option}


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("tvm_hopper.strikt", True, "unknown key tvm_hopper.strikt; .*mean tvm_hopper.strict?"),
        ("tvm_hopper.zzz", True, "unknown key tvm_hopper.zzz; need one of tvm_hopper.async_copy, "),
        ("TVM_HOPPER.strict", True, "unknown key TVM_HOPPER.strict; .*mean tvm_hopper.strict?"),
        ("tvm_hopper_strict", True, "unknown key tvm_hopper_strict; .*mean tvm_hopper.strict?"),
        ("tvm_hopper.fast_math", True, "unknown key .*did you mean tirx.enable_fast_math?"),
        (keys.WGMMA, 1, "tvm_hopper.wgmma, a key of a block; need one of tvm_hopper"),
        (keys.STRICT, "yes", "strict = 'yes'; need a value of type bool"),
        (keys.STRICT, 2, "strict = 2; need a value of type bool"),
        (keys.STRICT, 1.0, r"strict = 1\.0; need a value of type bool"),
        (keys.STRICT, [True], r"strict = \[True\]; need a value of type bool"),
        (keys.STRICT, np.zeros(3), r"strict = array.*; need a value of type bool"),
        (keys.STRICT, None, "strict = None; need a value of type bool"),
        (keys.COMPILER, "clang", "compiler = 'clang'; need one of 'nvrtc', 'nvcc'"),
        (keys.COMPILER, "a longer text", "compiler = 'a longer text'; need one of"),
        (keys.COMPILER, 1, "compiler = 1; need one of"),
        (keys.WGMMA_PENDING, 5, "wgmma_pending = 5; need one of 0, 1"),
        (keys.WGMMA_PENDING, -1, "wgmma_pending = -1; need one of 0, 1"),
        (keys.WGMMA_PENDING, True, "wgmma_pending = True; need one of 0, 1"),
        (keys.RASTER_GROUP, 2**40, "raster_group = 1099511627776; need a value of type int from"),
        (keys.RASTER_GROUP, np.float32(2), r"raster_group = 2\.0; need a value of type int from"),
    ],
)
def test_a_wrong_key_or_value_is_one_error(name, value, message) -> None:
    with pytest.raises(OptionError, match=f"^PassContext: found .*{message}") as caught:
        PassContext(config={name: value})
    assert isinstance(caught.value, AttributeError)  # as TVM's own
    assert isinstance(caught.value, HopperError)


@pytest.mark.parametrize(
    ("value", "read"),
    [
        (1, True),
        (0, False),
        (np.bool_(True), True),
        (np.int64(0), False),
        (tirx.IntImm("bool", 1), True),
        (tirx.IntImm("int32", 1), True),
    ],
    ids=repr,
)
def test_other_forms_of_a_bool_arrive_as_a_bool(value, read) -> None:
    with PassContext(config={keys.STRICT: value}):
        assert PassContext.current().config[keys.STRICT] is read
        assert options.read(keys.STRICT) is read


@pytest.mark.parametrize("value", [np.int32(4), tirx.IntImm("int64", 4)], ids=repr)
def test_other_forms_of_an_int_arrive_as_an_int(value) -> None:
    with PassContext(config={keys.RASTER_GROUP: value}):
        assert options.read(keys.RASTER_GROUP) == 4


def test_a_string_of_tvm_arrives_as_text() -> None:
    with PassContext(config={keys.COMPILER: StringImm("nvcc")}):
        assert options.read(keys.COMPILER) == "nvcc"


def test_a_thousand_contexts_and_errors_leave_tvm_whole() -> None:
    config = {keys.STRICT: True, keys.COMPILER: "nvcc", keys.WGMMA_PENDING: 1}
    for _ in range(1000):
        with PassContext(config=config) as context:
            assert dict(context.config) == config
        with pytest.raises(AttributeError):
            PassContext(config={keys.COMPILER: "no such compiler"})
    assert keys.STRICT not in PassContext.current().config
    assert config == {keys.STRICT: True, keys.COMPILER: "nvcc", keys.WGMMA_PENDING: 1}


# -- what is not ours stays as it is


def stock_context(*arguments: object, **named: object) -> PassContext:
    """Make a context as TVM would without this package."""
    context = PassContext.__new__(PassContext)
    PassContext.__init__.gate_of(context, *arguments, **named)
    return context


@pytest.mark.parametrize(
    "config",
    [
        {"tirx.no_such_key": 1},
        {"tirx.disable_vectorize": "yes"},
        {"hopper.attention_mask": 1},
        {1: 2},
        {CARRIER: 3},
        {CARRIER: [[1, 2]]},
        [1],
        3,
    ],
    ids=str,
)
def test_errors_about_other_keys_are_tvms(config) -> None:
    with pytest.raises((AttributeError, TypeError, ValueError)) as theirs:
        stock_context(config=config)
    with pytest.raises(type(theirs.value)) as ours:
        PassContext(config=config)
    assert str(ours.value) == str(theirs.value)


def test_a_foreign_error_beside_our_key_is_tvms() -> None:
    for config in ({"tirx.no_such_key": 1}, {CARRIER: 3}, {CARRIER: [[1, 2]]}):
        with pytest.raises(AttributeError) as theirs:
            stock_context(config=config)
        with pytest.raises(AttributeError) as ours:
            PassContext(config={**config, keys.STRICT: True})
        assert str(ours.value) == str(theirs.value)


@pytest.mark.parametrize("config", [None, {}, [], {"tirx.disable_vectorize": 1}], ids=str)
def test_a_config_without_our_keys_is_untouched(config) -> None:
    context, stock = PassContext(config=config), stock_context(config=config)
    assert options.to_carrier(config) is config
    assert dict(context.config) == dict(stock.config)


def test_rows_of_other_people_survive() -> None:
    theirs = [tirx.IntImm("int32", 0), StringImm("a pass")]
    config = {CARRIER: [theirs], keys.STRICT: True, "tirx.disable_vectorize": True}
    with PassContext(config=config) as context:
        shown = context.config
        assert set(shown) == set(config)
        ((phase, name),) = shown[CARRIER]
        assert (int(phase), name.value) == (0, "a pass")
        assert options.read(keys.STRICT) is True
        copied = PassContext(config=shown)
    assert str(copied.config) == str(shown)
    ((_, name),) = PassContext(config={CARRIER: [theirs]}).config[CARRIER]
    assert name.value == "a pass"


def test_our_own_rows_are_read_and_checked() -> None:
    def row(value: object) -> dict:
        return {CARRIER: [[keys.WGMMA_PENDING, tirx.IntImm("int64", value)]]}

    assert dict(PassContext(config=row(1)).config) == {keys.WGMMA_PENDING: 1}
    assert dict(PassContext(config={**row(1), keys.WGMMA_PENDING: 0}).config) == {
        keys.WGMMA_PENDING: 0
    }
    with pytest.raises(OptionError, match="wgmma_pending = 7; need one of 0, 1"):
        PassContext(config=row(7))


# -- every way to make and to find a context


def test_by_position_and_by_name() -> None:
    config = {keys.STRICT: True}
    first = PassContext(3, ["a"], ["b"], None, config)
    second = PassContext(
        opt_level=3, required_pass=["a"], disabled_pass=["b"], instruments=None, config=config
    )
    for context in (first, second):
        assert dict(context.config) == config
        assert (context.opt_level, list(context.required_pass)) == (3, ["a"])
        assert list(context.disabled_pass) == ["b"]
    assert PassContext().opt_level == stock_context().opt_level
    assert dict(PassContext(4).config) == {}
    with pytest.raises(TypeError, match=r"__init__\(\) got an unexpected keyword argument 'conf'"):
        PassContext(conf={})
    with pytest.raises(TypeError):
        PassContext(2, None, None, None, {}, config={})


def test_both_names_are_one_class() -> None:
    assert tvm.transform.PassContext is PassContext


def test_nested_contexts_replace_and_come_back() -> None:
    with PassContext(config={keys.STRICT: True}):
        with PassContext(config={keys.COMPILER: "nvcc"}):
            assert dict(PassContext.current().config) == {keys.COMPILER: "nvcc"}
            inherited = {**PassContext.current().config, keys.STRICT: True}
            with PassContext(config=inherited):
                assert options.read(keys.COMPILER) == "nvcc"
                assert options.read(keys.STRICT) is True
        assert options.read(keys.STRICT) is True
    assert options.read(keys.STRICT) is False


def test_another_thread_has_a_context_of_its_own() -> None:
    seen = []

    def look() -> None:
        seen.append(options.read(keys.COMPILER))
        with PassContext(config={keys.COMPILER: "nvcc"}):
            seen.append(options.read(keys.COMPILER))

    with PassContext(config={keys.STRICT: True}):
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
        assert options.read(keys.COMPILER) == "nvrtc"
    assert seen == ["nvrtc", "nvcc"]


def test_a_subclass_takes_them_too() -> None:
    class Mine(PassContext):
        pass

    assert dict(Mine(config={keys.STRICT: 1}).config) == {keys.STRICT: True}


def test_accepting_again_changes_nothing() -> None:
    before = PassContext.__init__, PassContext.config
    gate.accept_options()
    assert (PassContext.__init__, PassContext.config) == before
    assert not hasattr(PassContext.__init__.gate_of, "gate_of")


@pytest.mark.parametrize("autoload", ["0", "1"])
def test_keys_are_taken_with_and_without_the_gate(fresh, autoload: str) -> None:
    """The process ends quietly, and no memory of it is made executable."""
    code = (
        "import gc, sys, tvm; from tvm.ir.transform import PassContext\n"
        "old = PassContext(config={'tirx.disable_vectorize': True})\n"
        "import tvm_hopper\n"
        "from tvm_hopper.requests import options\n"
        "assert dict(old.config) == {'tirx.disable_vectorize': True}\n"
        "with tvm.transform.PassContext(config={'tvm_hopper.strict': True}):\n"
        "    print(options.read('tvm_hopper.strict'))\n"
        "    with old: print(options.read('tvm_hopper.strict'))\n"
        "if sys.platform == 'linux':\n"
        "    with open('/proc/self/maps') as maps:\n"
        "        assert not any('rwx' in line for line in maps)\n"
        "for _ in range(50): tvm.transform.PassContext(config={'tvm_hopper.strict': True})\n"
        "gc.collect()\n"
    )
    done = fresh("-X", "dev", "-W", "ignore", "-c", code, TVM_HOPPER_AUTOLOAD=autoload)
    assert done.stdout.split() == ["True", "False"]
    assert done.stderr == ""


# -- who wins


def test_annotation_before_attribute_before_context_before_default() -> None:
    name = keys.COMPILER
    assert options.read(name) == "nvrtc"
    with PassContext(config={name: "nvcc"}):
        assert options.read(name) == "nvcc"
        assert options.read(name, func(strict=True)) == "nvcc"
        assert options.read(name, func(compiler="nvrtc")) == "nvrtc"
        assert options.read(name, func(compiler="nvrtc"), {name: "nvcc"}) == "nvcc"
    assert options.read(name, func(compiler="nvcc")) == "nvcc"
    assert options.read(keys.RASTER_GROUP, default=8) == 8
    assert options.read(keys.RASTER_GROUP) is None


def test_flags_are_bools_wherever_they_come_from() -> None:
    assert options.read(keys.STRICT, func(strict=1)) is True
    assert options.read(keys.STRICT, func(strict=False)) is False


def test_fast_math_is_tvms_option() -> None:
    assert options.fast_math() is False
    with PassContext(config={keys.FAST_MATH: True}):
        assert options.fast_math() is True
