"""What may be changed: every statement and number of a kernel, once for each place."""

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import tirx
from tvm.script import tirx as T

from tests.mutants.host_sites import changed_host, host_sites
from tests.mutants.kernels import MAKERS, subject
from tests.mutants.sites import Site, changed_device, device_sites
from tests.sim_kernels.mutate import instructions, name_of
from tvm_hopper.facts.devices import DEFAULT_NUM_SMS
from tvm_hopper.sim.launch.arguments import complete
from tvm_hopper.verification.launches import bound_launches


@T.prim_func(s_tir=True)
def small(A_ptr: T.handle("int32"), n: T.int32):
    A = T.decl_buffer((16,), "int32", data=A_ptr)
    for i in range(4):
        if i < 3 and n == 2:
            A[i] = A[i + 1] * 5
        A[7] = n


def texts(change: str, kind: str) -> list[str]:
    return [
        str(changed_device(small, s).script())
        for s in device_sites(small)
        if (s.change, s.kind) == (change, kind)
    ]


@pytest.mark.parametrize(
    ("kind", "change", "line"),
    [
        ("delete", "delete", "A[7] = n"),
        ("swap", "swap with the next", "A[7] = n\n        if i < 3 and n == 2:"),
        ("duplicate", "duplicate", "A[7] = n\n        A[7] = n"),
        ("extent", "one more", "in range(5):"),
        ("extent", "one less", "in range(3):"),
        ("condition", "always", "if T.bool(True):"),
        ("condition", "negate", "if not (i < 3 and n == 2):"),
        ("condition", "left alone", "if i < 3:"),
        ("condition", "right alone", "if n == 2:"),
        ("condition", "as LE", "if i <= 3 and n == 2:"),
        ("condition", "as NE", "if i < 3 and n != 2:"),
        ("condition constant", "plus one", "if i < 4 and n == 2:"),
        ("index", "zero", "A[0] = n"),
        ("index", "twice", "A[i] = A[i + 2] * 5"),
        ("value", "minus one", "A[i] = A[i + 1] * 4"),
    ],
)
def test_a_change_does_what_its_name_says(kind, change, line):
    found = texts(change, kind)
    if change == "delete":
        assert any(line not in text for text in found)
    else:
        assert any(line in text for text in found), found


def test_each_place_is_a_place_of_its_own():
    """TIR shares nodes: a constant that stands twice is changed once."""
    five = tirx.IntImm("int32", 5)
    store = tirx.BufferStore(small.body[0].buffer, five, [five])
    func = small.with_body(tirx.SeqStmt([small.body[0], store]))
    found = [s for s in device_sites(func) if s.change == "plus one"]
    assert [s.kind for s in found] == ["index", "value"]
    changed = [changed_device(func, s).body[1] for s in found]
    assert [(int(x.indices[0]), int(x.value)) for x in changed] == [(6, 5), (5, 6)]


def test_constants_stay_in_their_type():
    dtype = "uint32"
    store = tirx.BufferStore(small.body[0].buffer, tirx.Cast("int32", tirx.const(0, dtype)), [0])
    changes = {s.change for s in device_sites(small.with_body(store)) if s.kind == "value"}
    assert changes == {"plus one"}  # zero is already zero, and has nothing below


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("name", MAKERS)
def test_every_instruction_of_a_kernel_can_be_deleted(name):
    func = subject(name).device
    calls = []
    tvm_ffi.structural_walk(func.body, (tirx.Evaluate, calls.append), order="pre")
    names = {name_of(x.value) for x in calls if isinstance(x.value, tvm.ir.Call)}
    left = set(names)
    for site in device_sites(func):
        if site.kind == "delete":
            changed = changed_device(func, site)
            left -= {x for x in left if len(instructions(changed, x)) < len(instructions(func, x))}
    assert names
    assert not left


def launch_of(host):
    kernel = subject("matmul")
    program = type(kernel.program)(host, kernel.program.kernels)
    values, _ = complete(program.arguments, kernel.inputs)
    (launch,) = bound_launches(program, values, DEFAULT_NUM_SMS)
    return launch.setup


def test_each_number_of_a_tensor_map_and_of_the_launch_is_a_place():
    kernel = subject("matmul")
    host, kernels = kernel.program.host, set(kernel.program.kernels)
    sites = host_sites(host, kernels)
    names = [s.where for s in sites if s.kind == "tensor map" and s.change == "zero"]
    of_one = ["dimension 0", "dimension 1", "stride 1", "box 0", "box 1", "element stride 0",
              "element stride 1", "interleave", "swizzle", "L2 promotion", "fill"]  # fmt: skip
    assert names == [f"{x} of a map" for x in of_one] * 2
    shared = next(s for s in sites if s.where.startswith("shared") and s.change == "plus one")
    before = launch_of(host)
    assert launch_of(changed_host(host, shared)) == before | {
        "dyn_smem_bytes": before["dyn_smem_bytes"] + 1
    }
    fill = [s for s in sites if s.where == "fill of a map" and s.change == "plus one"][1]
    changed = launch_of(changed_host(host, fill))["params"]["B_map"]
    assert (changed.oob, changed.tensor) == (1, "B")


def test_a_site_says_what_it_changes():
    site = Site("device", "extent", 3, "one more", "for i in range(4):")
    assert str(site) == "device extent #3: one more in for i in range(4):"


def test_inputs_are_integers_that_differ():
    for name in MAKERS:
        for value in subject(name).inputs.values():
            assert len(np.unique(value.astype(float))) > 3
