"""What statements read and write, by elements and behind pointers."""

import pytest
from tvm.script import tirx as T

from tests.transforms.scripts import parse
from tvm_hopper import ir
from tvm_hopper.analysis import effects
from tvm_hopper.analysis.effects import POINTERS, find_effects, writes


def effects_of(statement):
    """Return "<mode> <buffer>" of each effect, a star behind those by pointer."""
    func = from_statement(statement)
    words = {effects.READ: "r", effects.WRITE: "w", effects.BOTH: "rw"}
    return [
        f"{words[x.mode]} {x.buffer.name}{'*' if x.by_pointer else ''}"
        for x in find_effects(func.body)
    ]


def from_statement(statement):
    return parse(f"""
@T.prim_func(private=True, s_tir=True)
def func(A: T.Buffer((64,), "float16"), B: T.Buffer((64,), "int32"), C: T.Buffer((64,), "float32")):
    for i in range(4):
        {statement}
""")


def pointer(mask):
    return f'T.tvm_access_ptr(T.type_annotation("float16"), A.data, B[i], 16, {mask})'


LDMATRIX = 'T.ptx_legacy.ldmatrix(T.bool(False), 4, ".b16", A.data, B[i], {}, i)'
LD = "ldmatrix.sync.aligned.m8n8"
MMA = (
    'T.ptx_legacy.mma("m16n8k16", "row", "col", "fp16", "fp16", "fp32", A.data, 0, A.data, 0, '
    "C.data, 0, T.bool(False))"
)


@pytest.mark.parametrize(
    ("statement", "want"),
    [
        ("C[B[i]] = C[i] + T.float32(1)", ["w C", "r B", "r C"]),
        (f'T.call_extern("int32", "f", {pointer(1)})', ["r A*", "r B"]),
        (f'T.call_extern("int32", "f", {pointer(2)})', ["w A*", "r B"]),
        (f'T.call_extern("int32", "f", {pointer(3)})', ["rw A*", "r B"]),
        ('T.call_extern("int32", "f", A.data)', ["rw A*"]),
        ('T.call_extern("int32", "f", T.address_of(A[B[i]]))', ["rw A*", "r B"]),
        (LDMATRIX.format(pointer(1)), ["w A*", "r B", "r A*", "r B"]),
        # what the call does is known, whatever its pointers say
        (LDMATRIX.format("C.data"), ["w A*", "r B", "r C*"]),
        (LDMATRIX.format("T.address_of(C[B[i]])"), ["w A*", "r B", "r C*", "r B"]),
        # an address that somebody computes first
        (
            LDMATRIX.format('T.call_extern("handle", "f", C.data)'),
            ["w A*", "r B", "rw C*"],
        ),
        (
            f'T.ptx["{LD}.x2.shared.b16"](B[0], B[1], T.address_of(A[i]))',
            ["r A*", "r B", "r B"],
        ),
        (
            f'T.ptx["{LD}.x4.trans.shared.b16"](B[0], B[1], B[2], B[3], T.address_of(A[i]))',
            ["r A*", *["r B"] * 4],
        ),
        (
            'T.ptx["stmatrix.sync.aligned.m8n8.x1.shared.b16"](T.address_of(A[i]), B[0])',
            ["w A*", "r B"],
        ),
        (MMA, ["r A*", "r A*", "rw C*"]),
        ('T.cuda.mma_fill_legacy(8, C.data, i, dtype="float32")', ["w C*"]),
        (
            f'T.cuda.mma_store_legacy(16, 16, {pointer(2)}, C.data, i, 16, dtype="float32")',
            ["w A*", "r B", "r C*"],
        ),
    ],
)
def test_effects(statement, want):
    found = effects_of(statement)
    assert sorted(found) == sorted(want)


def test_who_writes():
    func = from_statement(LDMATRIX.format("C.data"))
    a, b, c = func.params
    assert [writes(func.body, x) for x in (a, b, c)] == [True, False, False]


def test_offsets_stand_behind_their_pointers():
    """Each call of the table as TVM builds it: an integer stands where an offset should."""
    statements = [
        LDMATRIX.format("C.data"),
        MMA,
        'T.cuda.mma_fill_legacy(8, C.data, i, dtype="float32")',
        'T.cuda.mma_store_legacy(16, 16, A.data, C.data, i, 16, dtype="float32")',
    ]
    addresses = {"tirx.ptx.ldmatrix", "tirx.ptx.stmatrix", "tirx.ptx.mapa_u32", "tirx.dma_copy"}
    addresses |= {"tirx.ptx.mbarrier_init", "tirx.ptx.mbarrier_arrive_expect_tx"}
    addresses.add("tirx.cuda.mbarrier_wait")
    seen = set()
    for statement in statements:
        for call in ir.find_all(from_statement(statement).body, ir.Call):
            for position, effect in POINTERS.get(call.op.name, {}).items():
                seen.add(call.op.name)
                assert ir.pointer_of(call.args[position]) is not None
                if effect.offset is not None:
                    assert ir.dtype_of(call.args[effect.offset]) == "int32"
    ours = {name for name in POINTERS if name.startswith("tvm_hopper.")}
    assert seen == set(POINTERS) - addresses - ours


def test_a_copy_by_dma_reads_the_tensor_and_writes_the_tile():
    call = (
        'T.call_intrin("int32", "tirx.dma_copy", 0, T.address_of(C[0]), T.address_of(A[0]), 4, 0)'
    )
    func = from_statement(call)
    found = {x.buffer.name: (x.reads, x.writes) for x in find_effects(func.body)}
    assert found == {"C": (False, True), "A": (True, False)}


def test_a_region_of_a_block_is_no_access():
    @T.prim_func(private=True, s_tir=True)
    def func(A: T.Buffer((64,), "float16")):
        with T.sblock("block"):
            T.reads(A[0:64])
            T.writes(A[0:64])
            T.evaluate(0)

    assert find_effects(func.body) == []
