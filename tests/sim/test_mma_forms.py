"""Every form of mma.sync and mma.sp of TVM's table: values against numpy, and what is refused."""

import math
from fractions import Fraction

import numpy as np
import pytest
from tvm import ir

from tests.sim import mma_kernels
from tests.sim.mma_operands import Operands
from tests.sim.ptx_fragments import TYPES
from tests.sim_kernels.mutate import change, with_argument
from tvm_hopper.sim.arithmetic import exact
from tvm_hopper.sim.arithmetic.formats import F64
from tvm_hopper.sim.modelled import MODELLED, coverage
from tvm_hopper.sim.ops.sparse_metadata import holders, meaningless
from tvm_hopper.sim.options import Shortcuts
from tvm_hopper.simulation import simulate
from tvm_hopper.verification.launches import bound_launches, run_launches

FORMS = mma_kernels.forms()
SPARSE = [form for form in FORMS if "sp" in form[1][0]]
SOME = [f for name in mma_kernels.ROWS for f in [x for x in FORMS if x[0] == name][::11]]


def named(form):
    return ".".join(x for x in form[1] if x not in ("sync", "aligned", ""))


def test_every_row_of_the_table_is_modelled():
    states = {row.name: (row.state, row.missing) for row in coverage()}
    assert {states[name] for name in mma_kernels.ROWS} == {(MODELLED, "")}
    assert len(mma_kernels.ROWS) == 12
    assert len(FORMS) > 190


@pytest.mark.parametrize("form", FORMS, ids=named)
def test_whole_numbers_are_exact(form):
    operands = Operands(form)
    np.testing.assert_array_equal(operands.computed(), operands.expected())


INTEGERS = [f for f in FORMS if mma_kernels.modifiers(*f)["dtype"] == "s32"]


@pytest.mark.parametrize("form", INTEGERS, ids=named)
def test_integers_wrap_around_or_saturate(form):
    operands = Operands(form, whole=False)
    want = operands.expected()
    np.testing.assert_array_equal(operands.computed(), want)
    exact_sums = np.einsum("pmk,pkn->pmn", operands.dense, operands.b) + operands.c
    assert (exact_sums != want).any() or operands.mods.get("bitop")


FLOATS = [f for f in FORMS if mma_kernels.modifiers(*f)["dtype"] in ("f16", "f32")]


@pytest.mark.parametrize("form", FLOATS, ids=named)
def test_a_sum_of_floats_is_rounded_once(form):
    operands = Operands(form, whole=False)
    got = operands.computed().astype(np.float64)
    a, b = operands.dense, operands.b
    want = np.empty(got.shape)
    for place in np.ndindex(*got.shape):
        p, m, n = place
        want[place] = math.fsum([*(a[p, m] * b[p, :, n]), operands.c[place]])
    rounded = want.astype(TYPES[operands.kinds[3]])
    assert (np.abs(got - want) <= np.spacing(np.abs(rounded)).astype(np.float64) / 2 * 1.001).all()
    assert (got == rounded).mean() > 0.99


DOUBLES = [f for f in FORMS if f[0] == "mma_f64"]


@pytest.mark.parametrize("form", DOUBLES[::6], ids=named)
def test_doubles_are_a_chain_of_fused_multiply_adds(form):
    operands = Operands(form, whole=False)
    got, mode = operands.computed(), operands.mods["rnd"] or "rn"
    for m, n in ((0, 0), (3, 5), (got.shape[1] - 1, 7)):
        total = float(operands.c[0, m, n])
        for x, y in zip(operands.a[0, m], operands.b[0, :, n], strict=True):
            whole = Fraction(x) * Fraction(y) + Fraction(total)
            total = exact.round_fraction(whole, F64, mode)
        assert got[0, m, n] == total


def test_fused_multiply_adds_are_rounded_once():
    rng = np.random.default_rng(0)
    scale = lambda n: 2.0 ** rng.integers(-n, n, 4000)  # noqa: E731
    a, b = (rng.normal(size=4000) * scale(60) for _ in range(2))
    c = -a * b * (1 + rng.integers(-2, 3, 4000) * 2.0**-52)
    c = np.where(rng.random(4000) < 0.5, c, c * scale(110))
    c[:50], a[50:60], c[60:70] = 0, 0, np.inf
    a[70:100], b[70:100], c[70:100] = 2.0**-560 * a[70:100], 2.0**-510, 2.0**-1050
    for mode, some in (("rn", slice(None)), ("rz", slice(0, 200)), ("rp", slice(0, 200))):
        operands = (a[some], b[some], c[some])
        want = exact.multiply_add(*operands, F64, mode)
        np.testing.assert_array_equal(exact.multiply_add_f64(*operands, mode), want)


# -- metadata


def test_lanes_that_hold_metadata():
    counts = {("f16", 16): 1, ("f16", 32): 2, ("tf32", 8): 1, ("tf32", 16): 2, ("s8", 32): 2,
              ("s8", 64): 4, ("u4", 64): 2, ("u4", 128): 4, ("e4m3", 64): 4}  # fmt: skip
    assert {key: holders(*key) for key in counts} == counts


@pytest.mark.parametrize("form", SPARSE[::3], ids=named)
def test_the_selector_names_the_lanes(form):
    depth = int(mma_kernels.modifiers(*form)["shape"].partition("k")[2])
    kind = mma_kernels.modifiers(*form)["atype"]
    for selector in range(4 // holders(kind, depth)):
        operands = Operands(form, seed=selector, selector=selector)
        np.testing.assert_array_equal(operands.computed(), operands.expected())


@pytest.mark.parametrize(
    ("kind", "ordered", "wrong"),
    [
        ("f16", True, {0, 1, 2, 3, 5, 6, 7, 10, 11, 15}),
        ("f16", False, {0, 5, 10, 15}),
        ("s8", False, {0, 5, 10, 15}),
        ("u4", True, {0, 1, 2, 3, 5, 6, 7, 10, 11, 15}),
        ("e4m3", False, {0, 1, 2, 3, 5, 6, 7, 10, 11, 15}),
        ("tf32", False, set(range(16)) - {4, 14}),
    ],
)
def test_values_without_a_meaning(kind, ordered, wrong):
    assert set(meaningless(np.arange(16), kind, ordered).tolist()) == wrong


# -- whole kernels


def inputs_of(operands):
    held = zip("ABC", operands.raw, operands.kinds, strict=False)
    inputs = {name: raw.view(mma_kernels.dtype_of(kind)).ravel() for name, raw, kind in held}
    return {**inputs, "E": operands.words}


def run(operands, program):
    return simulate(program, inputs_of(operands))


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("form", SOME, ids=named)
def test_kernels(form):
    operands = Operands(form)
    result = run(operands, mma_kernels.program(*form)).require_clean()
    raw = result.outputs["D"].view(np.uint8).reshape(32, -1)
    np.testing.assert_array_equal(operands.matrix_of(raw), operands.expected())


def form_of(row, **wanted):
    def fits(tokens):
        found = mma_kernels.modifiers(row, tokens)
        return all(found[key] == value for key, value in wanted.items())

    return next(form for form in FORMS if form[0] == row and fits(form[1]))


HALVES = form_of("mma_sp", atype="f16", spvariant="sp::ordered_metadata")


@pytest.mark.parametrize("form", [HALVES, form_of("mma_f64"), form_of("mma_int", atype="b1")])
def test_all_lanes_take_part(form):
    result = run(Operands(form), mma_kernels.program(*form, lanes=16))
    assert "WARP_CONVERGENCE" in result.rules


def messages(result):
    return [f.message for f in result.findings if f.rule == "ILLEGAL_OPERAND"]


def test_metadata_without_a_meaning_is_a_finding():
    operands = Operands(HALVES)
    operands.words[4] = 0x44444404
    result = run(operands, mma_kernels.program(*HALVES))
    fix = "give its tensor in inputs"
    text = f"metadata 0b0000 of .f16: mma.sp::ordered_metadata has no meaning for it; {fix}"
    assert messages(result) == [text]
    operands.words[5:8] = 0  # lanes that the selector does not name
    operands.words[4] = 0x44444441
    result = run(operands, mma_kernels.program(*HALVES))
    assert messages(result) == [text.replace("0000", "0001")]
    plain = form_of("mma_sp", atype="f16", spvariant="sp")
    assert run(operands, mma_kernels.program(*plain)).findings == ()
    operands.words[4] = 0x444444F0
    text = (
        "metadata 0b0000, 0b1111 of .f16: mma.sp has no meaning for them; give its tensor in inputs"
    )
    assert messages(run(operands, mma_kernels.program(*plain))) == [text]


def test_a_selector_that_names_no_lanes_is_a_finding():
    for form, most in ((HALVES, "0 to 3"), (form_of("mma_sp_pair"), "0 to 1")):
        changed = change(
            mma_kernels.program(*form), form[0], 0, with_argument(-len(form[1]) - 2, 4)
        )
        assert messages(run(Operands(form), changed)) == [f"sparsity selector 4: need {most}"]


def test_a_form_that_ptx_does_not_have_is_a_finding():
    """TVM refuses to build one; a module may hold it nevertheless."""
    form = form_of("mma_int", atype="s8", btype="s8", shape="m16n8k32", satfinite="")
    program = mma_kernels.program(*form)
    place = -2 - list(reversed(form[1])).index("s8")
    changed = change(program, "mma_int", 0, with_argument(place, ir.StringImm("s4")))
    (message,) = messages(run(Operands(form), changed))
    assert message == (
        "mma m16n8k32 row.col s32.s8.s4.s32: need a form of the instruction that PTX has"
    )


# -- runs without values


@pytest.mark.parametrize("form", [HALVES, form_of("mma_int", atype="s8")], ids=named)
def test_metadata_are_values_that_a_finding_depends_on(form):
    program, operands = mma_kernels.program(*form), Operands(form)
    inputs = inputs_of(operands)
    out = np.zeros_like(inputs["C"])
    launches = bound_launches(program, {**inputs, "D": out}, 132)
    cuts = {one.func.attrs["global_symbol"]: Shortcuts(values=False) for one in launches}
    found = run_launches(launches, {**inputs, "D": out}, [], [None], shortcuts=cuts)
    assert found.findings == ()
    assert ("metadata" in str(found.shortcut_failed)) == operands.sparse
