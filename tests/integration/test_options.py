"""Options: PassContext keys with TVM's own type errors, and who wins over whom."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest
from tvm.ir.transform import PassContext

from tvm_hopper import _config_keys, keys, options

from . import _programs

REGISTERED = sys.platform == "linux" and platform.machine() == "x86_64"
needs_keys = pytest.mark.skipif(not REGISTERED, reason="PassContext keys need Linux on x86-64")


def func(**attributes: object):
    mod = _programs.add_one().mod["main"]
    return mod.with_attr({f"tvm_hopper.{name}": value for name, value in attributes.items()})


@needs_keys
def test_every_option_is_a_key_with_its_type() -> None:
    known = PassContext.list_configs()
    for key in keys.KEYS.values():
        if key.option:
            assert known[key.name]["type"] == key.kind.__name__
        else:
            assert key.name not in known


@needs_keys
@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("tvm_hopper.strikt", True, "Invalid config option 'tvm_hopper.strikt'"),
        (keys.STRICT, "yes", "strict: found 'yes'; need a value of type bool"),
        (keys.STRICT, 2, "strict: found 2; need a value of type bool"),
        (keys.STRICT, 1.0, "strict: found 1.0; need a value of type bool"),
        (keys.STRICT, [True], "strict: found an object; need a value of type bool"),
        (keys.COMPILER, "clang", "compiler: found 'clang'; need one of 'nvrtc', 'nvcc'"),
        (keys.COMPILER, "a longer text", "compiler: found 'a longer text'; need one of"),
        (keys.COMPILER, 1, "compiler: found 1; need one of"),
        (keys.WGMMA_PENDING, 5, "wgmma_pending: found 5; need one of 0, 1"),
        (keys.WGMMA_PENDING, -1, "wgmma_pending: found -1; need one of 0, 1"),
    ],
)
def test_a_wrong_key_or_value_is_an_attribute_error(name, value, message) -> None:
    with pytest.raises(AttributeError, match=message):
        PassContext(config={name: value})


@needs_keys
def test_none_is_refused() -> None:
    with pytest.raises(AttributeError, match="strict"):
        PassContext(config={keys.STRICT: None})


@needs_keys
def test_a_thousand_contexts_and_errors_leave_tvm_whole() -> None:
    config = {keys.STRICT: True, keys.COMPILER: "nvcc", keys.WGMMA_PENDING: 1}
    for _ in range(1000):
        with PassContext(config=config) as context:
            assert dict(context.config) == config
        with pytest.raises(AttributeError):
            PassContext(config={keys.COMPILER: "no such compiler"})
    assert keys.STRICT not in PassContext.current().config


@needs_keys
def test_an_integer_for_a_bool_arrives_as_a_bool() -> None:
    with PassContext(config={keys.STRICT: 1}):
        assert PassContext.current().config[keys.STRICT] is True


def test_registering_again_changes_nothing() -> None:
    before = dict(PassContext.list_configs())
    assert bool(options.register()) is not REGISTERED
    assert dict(PassContext.list_configs()) == before


@needs_keys
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


@pytest.mark.parametrize(("platform_name", "machine"), [("darwin", "arm64"), ("linux", "aarch64")])
def test_another_platform_is_a_sentence_and_no_crash(monkeypatch, platform_name, machine):
    monkeypatch.setattr(_config_keys.sys, "platform", platform_name)
    monkeypatch.setattr(_config_keys.platform, "machine", lambda: machine)
    found = f"found {platform_name} {machine}; need Linux on x86-64"
    assert options.register() == found


def test_a_runtime_without_compiler_is_a_sentence(monkeypatch) -> None:
    monkeypatch.setattr(_config_keys.sys, "platform", "linux")
    monkeypatch.setattr(_config_keys.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr("tvm.base._LOADED_LIBS", {})
    assert "found TVM's runtime alone" in _config_keys.why_not()
    monkeypatch.setattr("tvm.base._LOADED_LIBS", {"tvm_compiler": object()})
    assert "need apache-tvm 0.27.0.post1" in _config_keys.why_not()


@needs_keys
def test_the_process_ends_quietly(fresh) -> None:
    """TVM keeps our callbacks in a table that it never frees; nothing may run at exit."""
    code = (
        "import tvm, tvm_hopper, gc\n"
        "for _ in range(50): tvm.transform.PassContext(config={'tvm_hopper.strict': True})\n"
        "gc.collect()\n"
    )
    done: subprocess.CompletedProcess = fresh("-X", "dev", "-W", "ignore", "-c", code)
    assert done.stderr == ""
