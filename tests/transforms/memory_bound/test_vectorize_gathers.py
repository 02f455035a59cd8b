"""vectorize_gathers: neighbouring elements that are read elsewhere are one load."""

import pytest

from tests.transforms.scripts import check, parse, run
from tvm_hopper import ir
from tvm_hopper.transforms.memory_bound.vectorize_gathers import vectorize_gathers

BEFORE = """
def func(X: T.Buffer((9, 256), "float16"), P: T.Buffer((4,), "int32")):
    for bx in T.thread_binding(4, thread="blockIdx.x", memory_bound="pointwise"):
        for tx in T.thread_binding(32, thread="threadIdx.x"):
            with T.sblock("kernel", reads=[X[0:9, 0:256]], writes=[]):
                tile = T.sblock_alloc_buffer((8,), "float16", scope="local")
                for v in T.unroll(8):
                    with T.sblock("Y", where=EXISTS, reads=[X[0:9, 0:256]], writes=[tile[v]],
                        load_hint="evict_last"):
                        tile[v] = VALUE
"""
AFTER = """
def func(X: T.Buffer((9, 256), "float16"), P: T.Buffer((4,), "int32")):
    for bx in T.thread_binding(4, thread="blockIdx.x", memory_bound="pointwise"):
        for tx in T.thread_binding(32, thread="threadIdx.x"):
            with T.sblock("kernel", reads=[X[0:9, 0:256]], writes=[]):
                tile = T.sblock_alloc_buffer((8,), "float16", scope="local")
                X_lanes = T.sblock_alloc_buffer((8,), "float16", scope="local", align=64)
                IF
                for lane in T.vectorized(8):
                    with T.sblock("X_lanes", reads=[X[ROW, PLACE + lane]], writes=[X_lanes[lane]],
                        load_hint="evict_last"):
                        X_lanes[lane] = X[ROW, PLACE + lane]
                for v in T.unroll(8):
                    with T.sblock("Y", where=EXISTS, reads=[X_lanes[0:8]], writes=[tile[v]]):
                        tile[v] = VALUE
"""
NUMBER, FIRST = "bx * 1024 + tx * 8 + v", "(bx * 1024 + tx * 8)"
CHOICE = "T.if_then_else(tx % 16 < 8, -X[bx, tx * 8 + v + 64], X[bx, tx * 8 + v - 64])"


def before(value, exists="T.bool(True)"):
    return parse(BEFORE, ("VALUE", value), ("EXISTS", exists))


def after(value, row, place, exists="T.bool(True)", around=""):
    text = AFTER
    if around:  # a level deeper
        head, rest = text.split("                IF\n")
        load, tail = rest.split("                for v in")
        load = "\n".join(f"    {x}" if x else x for x in load.split("\n")).rstrip(" ")
        text = f"{head}                if {around}:\n{load}                for v in{tail}"
    else:
        text = text.replace("                IF\n", "")
    return parse(text, ("VALUE", value), ("ROW", row), ("PLACE", place), ("EXISTS", exists))


@pytest.mark.parametrize(
    ("value", "want", "row", "place"),
    [
        ("X[bx, tx * 8 + v]", "X_lanes[v]", "bx", "tx * 8"),
        ("X[P[bx], tx * 8 + v]", "X_lanes[v]", "P[bx]", "tx * 8"),
        ("X[bx, (tx * 8 + v) % 64 + 64]", "X_lanes[v]", "bx", "(tx % 8 * 8 + 64)"),
        (
            "X[P[(NUMBER) // 192 % 4], (NUMBER) % 192]".replace("NUMBER", NUMBER),
            "X_lanes[v]",
            "P[FIRST // 192 % 4]".replace("FIRST", FIRST),
            f"{FIRST} % 192",
        ),
        ("X[bx, tx * 8 + v] * X[bx, tx * 8 + v]", "X_lanes[v] * X_lanes[v]", "bx", "tx * 8"),
        (
            CHOICE,
            "T.if_then_else(tx % 16 < 8, -X_lanes[v], X_lanes[v])",
            "bx",
            "T.Select(tx % 16 < 8, tx * 8 + 64, tx * 8 - 64)",
        ),
    ],
    ids=["row", "named row", "place in a head", "number", "twice", "choice"],
)
def test_neighbours_are_one_load(value, want, row, place):
    check(run(before(value), vectorize_gathers), after(want, row, place))


def test_a_condition_of_all_elements_stands_around_the_load():
    value = "T.if_then_else(tx % 16 < 8, X[bx, tx * 8 + v], T.float16(0))"
    want = "T.if_then_else(tx % 16 < 8, X_lanes[v], T.float16(0))"
    got = run(before(value, "bx < 3"), vectorize_gathers)
    check(got, after(want, "bx", "tx * 8", "bx < 3", "bx < 3 and tx % 16 < 8"))


@pytest.mark.parametrize(
    ("condition", "of_all"),
    [
        ("64 <= tx * 8 + v", "64 <= tx * 8"),
        ("tx * 8 + v < 64", "tx < 8"),
        ("(NUMBER) % 192 >= 64".replace("NUMBER", NUMBER), f"64 <= {FIRST} % 192"),
    ],
)
def test_a_condition_that_whole_vectors_meet_stands_without_the_lane(condition, of_all):
    value = "T.if_then_else(CONDITION, LOAD, T.float16(0))"
    given = value.replace("CONDITION", condition).replace("LOAD", "X[bx, tx * 8 + v]")
    got = run(before(given), vectorize_gathers)
    value = value.replace("CONDITION", of_all).replace("LOAD", "X_lanes[v]")
    want = after(value, "bx", "tx * 8", around=of_all)
    check(got, want)


def test_fewer_lanes_where_a_vector_begins_inside_of_one():
    got = run(before("X[bx, tx * 8 + v + 4]"), vectorize_gathers)
    (kernel,) = ir.kernels(got)
    loops = ir.find_all(kernel, ir.For, lambda x: x.kind == ir.ForKind.VECTORIZED)
    assert [int(x.extent) for x in loops] == [4]


@pytest.mark.parametrize(
    "value",
    [
        "X[bx, tx * 8 + v + 3]",
        "X[bx, (tx * 8 + v) * 2]",
        "X[v, tx * 8]",
        "X[bx, P[v % 4]]",
        f"X[({NUMBER} + 4) // 192, ({NUMBER} + 4) % 192]",
        "T.if_then_else(v < 3, X[bx, tx * 8 + v], T.float16(0))",
        "T.if_then_else(tx * 8 + v < 60, X[bx, tx * 8 + v], T.float16(0))",
        "T.if_then_else(64 < tx * 8 + v, X[bx, tx * 8 + v], T.float16(0))",
        "T.Cast('float16', T.if_then_else(tx > 3 and X[bx, tx * 8 + v] > T.float16(0), 1, 0))",
        "T.float16(1)",
    ],
)
def test_others_stay(value):
    func = before(value)
    assert run(func, vectorize_gathers).body.same_as(func.body)


def test_remainders_that_elements_share_are_written_without_the_lane():
    value = f"X[P[({NUMBER} + 4) // 192], {{}}]"
    func = before(value.format(f"({NUMBER}) % 192"))
    want = value.format(f"{FIRST} % 192 + v")
    want = want.replace(NUMBER, f"{FIRST} + v")  # as the script above is read
    check(run(func, vectorize_gathers), before(want))


def test_a_condition_on_each_element_stays():
    func = before("X[bx, tx * 8 + v]", "tx * 8 + v < 250")
    assert run(func, vectorize_gathers).body.same_as(func.body)


def loads_of(value):
    (kernel,) = ir.kernels(run(before(value), vectorize_gathers))
    loops = ir.find_all(kernel, ir.For, lambda x: x.kind == ir.ForKind.VECTORIZED)
    values = [x.block.body for x in ir.find_all(kernel, ir.SBlockRealize)]
    return kernel, loops, values[-1].value


def test_sides_that_an_index_of_a_table_parts_are_loaded_each_for_itself():
    """A choice between two places would load both rows' numbers.

    The two loads share registers: a warp with both sides does not wait in between.
    """
    kernel, loops, value = loads_of(
        "T.if_then_else(tx < 8, X[P[0], tx * 8 + v], X[P[1], tx * 8 + v])"
    )
    assert len(loops) == 2
    (choice,) = ir.find_all(kernel, ir.IfThenElse)
    assert choice.else_case is not None
    assert isinstance(value, ir.TensorLoad)


def test_three_sides_share_registers():
    kernel, loops, value = loads_of(
        "T.if_then_else(tx < 8, X[P[0], tx * 8 + v], "
        "T.if_then_else(tx < 16, -X[P[1], tx * 8 + v], X[P[2], tx * 8 + v]))"
    )
    assert len(loops) == 3
    assert len(ir.find_all(kernel, ir.IfThenElse)) == 2
    registers = [x.source for x in ir.find_all(value, ir.TensorLoad)]
    assert len(registers) == 3
    assert all(x.same_as(registers[0]) for x in registers)


def test_loads_that_one_element_needs_both_have_registers_each():
    _, loops, value = loads_of(
        "T.if_then_else(tx < 8, X[P[0], tx * 8 + v], T.float16(0)) + "
        "T.if_then_else(tx < 9, X[P[1], tx * 8 + v], T.float16(0))"
    )
    assert len(loops) == 2
    one, other = (x.source for x in ir.find_all(value, ir.TensorLoad))
    assert not one.same_as(other)
