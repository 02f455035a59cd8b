"""What `import tvm` does when the package is installed: little, and in every order."""

from __future__ import annotations

from pathlib import Path

import pytest

GATED = (
    "from tvm.tirx.compilation_pipeline import PIPELINE_MAP as m;"
    "assert hasattr(m['s_tir'], 'gate_of'), 'no gate';"
    "assert not hasattr(m['s_tir'].gate_of, 'gate_of'), 'two gates';"
    "assert 'tvm_hopper' in m;"
    "from tvm.target import Target; assert Target('nvidia/nvidia-h200').arch == 'sm_90a'"
)
ORDERS = {
    "tvm_first": f"import tvm; {GATED}; import tvm_hopper",
    "leaf": "import tvm_hopper.integration.autoload",
    "hopper_first": f"import tvm_hopper; {GATED}; import tvm",
    "submodule": "import tvm_hopper.schedule",
    "s_tir": "import tvm.s_tir.pipeline, tvm_hopper",
    "from": "from tvm_hopper import errors, keys; from tvm_hopper.facts import arch",
}


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("order", ORDERS)
def test_registered_in_every_import_order(fresh, order: str) -> None:
    fresh("-c", f"{ORDERS[order]}; {GATED}")


def test_autoload_can_be_turned_off(fresh) -> None:
    check = (
        "import sys, tvm; from tvm.tirx.compilation_pipeline import PIPELINE_MAP as m;"
        "assert not hasattr(m['s_tir'], 'gate_of'); assert 'tvm_hopper' in m;"
        "assert 'tvm_hopper.integration.foreign' not in sys.modules"
    )
    fresh("-c", check, TVM_HOPPER_AUTOLOAD="0")


def test_runtime_only_tvm_is_left_alone(fresh) -> None:
    """There is no gate there; what compiles a text in a loaded module is there all the same."""
    check = (
        "import sys, tvm; assert tvm.base._RUNTIME_ONLY;"
        "assert 'tvm_hopper.integration.foreign' in sys.modules;"
        "assert 'tvm_hopper.integration.gate' not in sys.modules;"
        "assert not any(m.startswith('tvm.s_tir') for m in sys.modules)"
    )
    # -W default: TVM itself warns there about objects that only its compiler knows.
    fresh("-W", "default", "-c", check, TVM_USE_RUNTIME_LIB="1")


LIGHT = {  # what `import tvm` loads of this package: a handful of small files, nothing of others
    "tvm_hopper",
    *(f"tvm_hopper.{x}" for x in ("facts", "facts.devices")),
    *(f"tvm_hopper.integration{x}" for x in ("", ".autoload", ".foreign", ".gate", ".on_demand")),
    *(f"tvm_hopper.requests{x}" for x in ("", ".pins", ".tags")),
}


def test_import_loads_few_modules(fresh) -> None:
    check = (
        "import sys, tvm, tvm.s_tir.pipeline; before = set(sys.modules);"
        "import tvm_hopper; print(*sorted(set(sys.modules) - before))"
    )
    found = fresh("-c", check, TVM_DEVICE_BACKEND_AUTOLOAD="0").stdout.split()
    driver = {
        f"tvm_hopper.cuda_build{x}" for x in ("", ".runtime", ".toolkits")
    }  # where there is one
    assert set(found) - driver == LIGHT


def test_arch_of_the_tags() -> None:
    from tvm_hopper.facts.arch import SM_90A
    from tvm_hopper.requests import tags

    assert SM_90A.name == tags.ARCH


@pytest.mark.timing
def test_import_costs_under_50_ms(fresh) -> None:
    check = (
        "import time, tvm.tirx.compilation_pipeline, sys, os;"
        "import tvm.s_tir.pipeline;"
        "begin = time.perf_counter();"
        "from tvm_hopper.integration import autoload; autoload.register();"
        "print(time.perf_counter() - begin)"
    )
    runs = [float(fresh("-c", check, TVM_DEVICE_BACKEND_AUTOLOAD="0").stdout) for _ in range(3)]
    assert min(runs) < 0.05, f"{runs} s"


def test_heavy_modules_wait_for_the_first_build(fresh) -> None:
    """And tensor intrinsics, which cost 25 seconds, for a build that is not of ours."""
    program = Path(__file__).with_name("_ours.py")
    done = fresh(str(program))
    assert done.stdout.splitlines() == ["early: []", "callback: None", "tensor_intrin: False"]


def test_an_ffi_that_crashes_is_one_import_error(fresh) -> None:
    versions = ("0.1.16", "0.1.13")
    check = (
        "import tvm_ffi\n"
        f"for tvm_ffi.__version__ in {versions!r}:\n"
        "    try:\n"
        "        import tvm_hopper\n"
        "    except ImportError as error:\n"
        "        print(error)\n"
    )
    done = fresh("-W", "ignore", "-c", check)
    for version, line in zip(versions, done.stdout.strip().splitlines(), strict=True):
        assert version in line
        assert 'pip install "apache-tvm==0.27.0.post1" "apache-tvm-ffi>=0.1.14.post0' in line


def test_an_ffi_that_crashes_in_parts_is_a_warning(fresh) -> None:
    check = (
        "import tvm_ffi; tvm_ffi.__version__ = '0.1.15.post2'\n"
        "import copy, pickle, tvm, tvm_hopper\n"
        "from tvm import s_tir, te\n"
        "a = te.placeholder((4,), 'float32')\n"
        "sch = s_tir.Schedule(te.create_prim_func([a, te.compute((4,), lambda i: a[i] + 1)]))\n"
        "tvm.compile(sch.mod, target='llvm')\n"
        "tensorize = lambda _: sch.tensorize(0, 'x')\n"
        "for call in (tvm.ir.save_json, pickle.dumps, copy.deepcopy, tensorize):\n"
        "    try:\n"
        "        call(sch.mod)\n"
        "    except tvm_hopper.HopperError as error:\n"
        "        print(error)\n"
    )
    done = fresh("-W", "default", "-c", check)
    assert done.stderr.count("RuntimeWarning: tvm_hopper: found apache-tvm-ffi 0.1.15.post2") == 1
    lines = done.stdout.strip().splitlines()
    assert [line.split(":")[0] for line in lines] == [
        "tvm.ir.save_json",
        *["pickle or deepcopy of a TVM object"] * 2,
        "Schedule.tensorize",
    ]
    assert all("segmentation fault; need 0.1.14; run: pip install" in line for line in lines)


def test_another_tvm_is_an_import_error(monkeypatch) -> None:
    import tvm.libinfo

    from tvm_hopper.requests import pins

    monkeypatch.setattr(tvm.libinfo, "__version__", "0.26.0")
    with pytest.raises(ImportError, match=r"found apache-tvm 0\.26\.0; need apache-tvm 0\.27"):
        pins.check_pins()


@pytest.mark.parametrize(
    ("version", "good"),
    [
        ("0.1.14", True),
        ("0.1.14.post1", True),
        ("0.1.15", False),
        ("0.1.15rc1", False),
        ("0.1.140", False),
        ("none", False),
        ("", False),
    ],
)
def test_releases_that_are_known(version: str, good: bool) -> None:
    from tvm_hopper.requests import pins

    assert pins.is_release(version, pins.FFI) is good


def test_public_names_stay_functions_after_their_modules_are_imported() -> None:
    import importlib

    import tvm_hopper

    for name, module in tvm_hopper._NAMES.items():
        importlib.import_module(f"tvm_hopper.{module}")
        assert callable(getattr(tvm_hopper, name)), name
        assert name != module  # the module would hide the name once it is imported
    assert "simulate" in dir(tvm_hopper)
    with pytest.raises(AttributeError, match="no attribute 'simulat'"):
        _ = tvm_hopper.simulat
