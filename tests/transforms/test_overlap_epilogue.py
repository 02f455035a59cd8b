"""OverlapEpilogue: half of an epilogue beside the products of the other half."""

from tests.transforms.scripts import check, check_other_kernel_stays, notes_of, parse, run
from tvm_hopper import ir
from tvm_hopper.plan.channel import find_channels
from tvm_hopper.plan.overlap_plan import plan_overlap
from tvm_hopper.transforms import OverlapEpilogue

HEAD = """
@T.prim_func(private=True, s_tir=True)
def func(A_map: T.handle("tensormap"), D: T.Buffer((4, 2, 4), "float32")):
    T.func_attr({"tvm_hopper.overlap": 2})
    for bx in T.thread_binding(2, thread="blockIdx.x"):
        for tx in T.thread_binding(256, thread="threadIdx.x"):
            with T.sblock("kernel"):
                T.reads()
                T.writes(D[0:4, 0:2, 0:4])
                T.sblock_attr({"tvm_hopper.kernel": 1})
                acc = T.sblock_alloc_buffer((8,), "float32", scope="local")
                ring = T.sblock_alloc_buffer((3, 64), "float16", scope="shared.dyn", align=128)
                if tx < 128:
                    for tile in range(2):
                        for k in range(6):
                            trip: T.let[T.int32] = 6 * tile + k
                            T.call_extern("int32", "tvm_hopper.await_free", 0, trip)
                            with T.sblock("load"):
                                T.reads()
                                T.writes(ring[trip % 3, 0:64])
                                T.sblock_attr(
                                    {"tvm_hopper.async_op": "tma_load", "tvm_hopper.channel": 0}
                                )
                                T.call_extern("int32", "tvm_hopper.fill_slot", 0, trip)
                else:
"""
BEFORE = (
    HEAD
    + """
                    for tile in T.serial(2):
                        row: T.let[T.int32] = bx * 2 + tile
                        for i in T.serial(8):
                            acc[i] = T.float32(0)
                        for k in T.serial(6):
                            trip: T.let[T.int32] = 6 * tile + k
                            T.call_extern("int32", "tvm_hopper.await_filled", 0, trip)
                            with T.sblock("mma"):
                                T.reads(ring[trip % 3, 0:64], acc[0:8])
                                T.writes(acc[0:8])
                                T.sblock_attr({"tvm_hopper.async_op": "wgmma"})
                                for subtile in T.serial(2):
                                    for step in T.serial(2):
                                        T.call_extern(
                                            "int32", "mma", acc[subtile * 4], step,
                                            T.address_of(ring[trip % 3, subtile * 32]),
                                            T.bool(True),
                                        )
                            with T.sblock("release"):
                                T.reads()
                                T.writes()
                                T.sblock_attr({"tvm_hopper.arrivals": 1, "tvm_hopper.release": 0})
                                if tx == 128:
                                    T.call_extern("int32", "tvm_hopper.free_slot", 0, trip)
                        for subtile in T.serial(2):
                            for g in T.serial(4):
                                D[row, subtile, g] = acc[subtile * 4 + g]
"""
)


def _mma(half, slot, adds="T.bool(True)"):
    return f"""
with T.sblock("mma"):
    T.reads(ring[{slot} % 3, 0:64], acc_{half}[0:4])
    T.writes(acc_{half}[0:4])
    T.sblock_attr({{"tvm_hopper.async_op": "wgmma"}})
    for step in T.serial(2):
        T.call_extern(
            "int32", "mma", acc_{half}[0], step,
            T.address_of(ring[{slot} % 3, T.Mul({half}, 32)]), {adds},
        )
"""


def _await(trip):
    return f'\nT.call_extern("int32", "tvm_hopper.await_filled", 0, {trip})\n'


def _release(trip, ahead=0, arrivals=0):
    return f"""
with T.sblock("release"):
    T.reads()
    T.writes()
    T.sblock_attr({{"tvm_hopper.arrivals": {arrivals}, "tvm_hopper.release": {-ahead}}})
    if tx == 128:
        T.call_extern("int32", "tvm_hopper.free_slot", 0, {trip})
"""


def _block(name, notes, *parts):
    head = f'with T.sblock("{name}"):\n    T.reads()\n    T.writes()\n    {notes}\n'
    return "\n" + head + _in(1, "".join(parts))


def _in(levels, text):
    return "".join(f"{'    ' * levels}{line}\n" for line in text.splitlines())


TWO = 'T.sblock_attr({"tvm_hopper.trips": 2})'
FIRST, NEXT = "trip", "(trip + 1)"
BEGIN = _block(
    "begin",
    TWO,
    "trip: T.let[T.int32] = tile * 6\n",
    _await("trip") + _mma(0, FIRST, "step != 0"),
    _await("trip + 1") + _mma(0, NEXT),
    """
if tile > 0:
    before: T.let[T.int32] = bx * 2 + (tile - 1)
    for g in T.serial(4):
        D[before, 1, g] = acc_1[g]
""",
    _mma(1, FIRST, "step != 0") + _mma(1, NEXT),
    _release("trip", arrivals=1) + _release("trip + 1", 1),
)
MIDDLE = "for k in range(2, 4):\n" + _in(
    1,
    "trip: T.let[T.int32] = 6 * tile + k\n"
    + _await("trip")
    + _mma(0, FIRST)
    + _mma(1, FIRST)
    + _release("trip"),
)
END = _block(
    "end",
    TWO,
    "trip: T.let[T.int32] = tile * 6 + 4\n",
    _await("trip") + _mma(0, FIRST) + _await("trip + 1") + _mma(0, NEXT),
    _mma(1, FIRST) + _mma(1, NEXT),
    "for g in T.serial(2):\n    D[row, 0, g] = acc_0[g]\n" + _release("trip"),
    "for g in T.serial(2):\n    D[row, 0, g + 2] = acc_0[g + 2]\n" + _release("trip + 1", 1),
)
AFTER = HEAD.replace(
    '                acc = T.sblock_alloc_buffer((8,), "float32", scope="local")\n', ""
) + _in(
    5,
    _block(
        "halves",
        'acc_0 = T.sblock_alloc_buffer((4,), "float32", scope="local")\n'
        '    acc_1 = T.sblock_alloc_buffer((4,), "float32", scope="local")',
        "for tile in T.serial(2):\n",
        _in(1, "row: T.let[T.int32] = bx * 2 + tile\n" + BEGIN + MIDDLE + END),
        """
if T.bool(True):
    last: T.let[T.int32] = bx * 2 + 1
    for g in T.serial(4):
        D[last, 1, g] = acc_1[g]
""",
    ),
)


def without_marks(func):
    """Leave out what is for the assembler alone: a wait that is told anew, and registers held."""

    def is_mark(stmt):
        inner = stmt.body if isinstance(stmt, ir.For) else stmt
        call = getattr(inner, "value", None)
        name = str(getattr(getattr(call, "op", None), "name", ""))
        return name.startswith(("tirx.ptx.wgmma", "tirx.tvm_hopper_hold"))

    marks = [x for kind in (ir.For, ir.Evaluate) for x in ir.find_all(func.body, kind, is_mark)]
    body = ir.replace_nodes(func.body, ir.Stmt, {x: ir.seq() for x in marks})
    return func.with_body(ir.drop_empty(body)), len(marks)


def test_half_of_the_epilogue_runs_beside_the_other_halfs_products():
    got, marks = without_marks(run(parse(BEFORE), OverlapEpilogue()))
    check(got, parse(AFTER))
    assert marks == 3  # the wait, the loop that holds registers, and the call in it


def test_again_finds_nothing():
    got = run(parse(BEFORE), OverlapEpilogue())
    (kernel,) = ir.kernels(got)
    assert plan_overlap(kernel, 0) is None


def test_readers_arrive_as_often_as_before():
    """Each slot is given back by one of three blocks."""
    for text in (BEFORE, BEFORE.replace("T.serial(6)", "T.serial(4)")):
        (kernel,) = ir.kernels(run(parse(text), OverlapEpilogue()))
        assert [x.num_arrivals for x in find_channels(kernel)] == [1]


def test_it_is_told():
    (note,) = notes_of(run(parse(BEFORE), OverlapEpilogue()))
    assert "beside the other half's products of 2 steps" in str(note)


def test_nothing_without_the_option():
    func = parse(BEFORE).without_attr("tvm_hopper.overlap")
    check(run(func, OverlapEpilogue()), func)


def test_other_kernel_stays():
    want = run(parse(BEFORE), OverlapEpilogue())
    check_other_kernel_stays(parse(BEFORE), want, OverlapEpilogue())
