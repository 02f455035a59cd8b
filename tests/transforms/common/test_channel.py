"""Channels: their calls, and what follows from the statements of a kernel about them."""

import pytest
from tvm import sym, tirx

from tests.transforms.pipeline.test_plan_ring_buffers import BEFORE, PLAIN_READER, PLANNED
from tests.transforms.scripts import parse
from tests.transforms.warp_specialization.test_specialize_warps import PLAIN_ROLES, ROLES
from tvm_hopper import ir
from tvm_hopper.requests.keys import AWAIT_FILLED, AWAIT_FREE, CHANNEL_CALLS, FILL_SLOT
from tvm_hopper.transforms.common.channel import (
    Channel,
    ChannelCall,
    count_trips,
    fill,
    find_calls,
    find_channels,
    find_loads,
    find_trips,
    is_load,
    make_call,
    parse_call,
    slot_bytes,
    threads_per_arrival,
)

BYTES = 2 * 64 * 64 * 2 + 16 * 32 * 4


@pytest.mark.parametrize("name", CHANNEL_CALLS)
def test_a_call_is_taken_apart_as_it_was_made(name):
    trip = ir.Var("trip", "int32")
    assert parse_call(make_call(name, 3, trip)) == ChannelCall(name, 3, trip)


def test_other_calls_are_none_of_a_channel():
    assert parse_call(tirx.call_extern("int32", "f", 0, 0)) is None
    assert parse_call(ir.call_op("tirx.exp", "float32", tirx.FloatImm("float32", 1))) is None
    assert parse_call(tirx.IntImm("int32", 0)) is None


def test_a_block_of_loads_begins_with_a_call():
    assert parse_call(fill(2, tirx.IntImm("int32", 7), 64)).name == FILL_SLOT


def test_calls_are_found_by_name():
    func = parse(ROLES)
    assert [call.name for call in find_calls(func.body)] == [
        AWAIT_FREE,
        FILL_SLOT,
        AWAIT_FILLED,
        "tvm_hopper.free_slot",
    ]
    assert [call.name for call in find_calls(func.body, AWAIT_FREE, AWAIT_FILLED)] == [
        AWAIT_FREE,
        AWAIT_FILLED,
    ]


def test_arrivals_follow_from_who_reads():
    """No role frees slots yet; two warp groups do; eight warps do."""
    assert find_channels(parse(PLANNED).body) == [Channel(0, 2, BYTES, 0)]
    assert find_channels(parse(ROLES).body) == [Channel(0, 2, BYTES, 2)]
    assert find_channels(parse(ROLES, *PLAIN_ROLES).body) == [Channel(0, 2, BYTES, 8)]
    assert find_channels(parse(BEFORE).body) == []


def test_counts_of_a_slot_s_barriers():
    channel = Channel(0, 2, BYTES, 2)
    assert (channel.full_count, channel.empty_count) == (1, 2)


def test_loads_are_blocks_that_complete_on_an_mbarrier_and_write_shared_memory():
    loads = find_loads(parse(BEFORE).body)
    assert [load.block.name_hint for load in loads] == ["load_a", "load_b"]
    assert [slot_bytes(load.block) for load in loads] == [2 * 64 * 64 * 2, 16 * 32 * 4]
    (product,) = ir.find_all(
        parse(BEFORE).body, ir.SBlockRealize, lambda x: x.block.name_hint == "mma"
    )
    assert not is_load(product)
    assert not is_load(product.block.body)


def slots_and_product(*changes):
    """Return the rings of the planned kernel, and the statement that reads them."""
    body = parse(PLANNED, *changes).body
    (load,) = find_loads(body)
    (product,) = ir.find_all(body, ir.SBlockRealize, lambda x: x.block.name_hint == "mma")
    return [region.source for region in load.block.writes], product


def test_a_warp_group_arrives_once_for_its_operation():
    slots, product = slots_and_product()
    assert threads_per_arrival(slots, [product]) == 128


def test_a_warp_arrives_for_its_plain_loads():
    slots, product = slots_and_product(PLAIN_READER)
    assert threads_per_arrival(slots, [product]) == 32


def test_a_plain_load_beside_an_operation_is_a_warp_s_own():
    slots, product = slots_and_product()
    look = ir.Evaluate(tirx.BufferLoad(slots[1], [0, 0, 0, 0]))
    assert threads_per_arrival(slots, [product, look]) == 32
    assert threads_per_arrival(slots, [ir.seq(product, look)]) == 32
    assert threads_per_arrival(slots[:1], [product, look]) == 128


@pytest.mark.parametrize("pointer", ["whole", "part"])
def test_a_warp_arrives_for_what_it_reads_by_a_pointer(pointer):
    slots, product = slots_and_product()
    address = slots[0].data if pointer == "whole" else slots[0].access_ptr("r", offset=64)
    look = ir.Evaluate(tirx.call_extern("int32", "ldmatrix", address))
    assert threads_per_arrival(slots, [product, look]) == 32


def test_trips_are_the_variables_that_calls_name():
    func = parse(ROLES)
    binds = ir.find_all(func.body, tirx.Bind)
    assert len(binds) == 2  # one in each role
    assert all(a.same_as(b.var) for a, b in zip(find_trips(func.body), binds, strict=True))
    assert set(find_trips(func.body).values()) == {0}
    assert find_trips(parse(BEFORE).body) == {}


def test_iterations_of_nested_loops_are_counted_through():
    def loop(name, extent):
        return ir.make_loop(name, extent, lambda _: tirx.IntImm("int32", 0))

    outer, middle, inner = loop("i", 2), loop("j", 3), loop("k", 5)
    assert ir.is_const(count_trips([]), 0)
    assert count_trips([inner]).same_as(inner.loop_var)
    count = count_trips([outer, middle, inner])
    seen = [
        int(
            sym.Analyzer().simplify(
                ir.substitute(count, {outer.loop_var: i, middle.loop_var: j, inner.loop_var: k})
            )
        )
        for i in range(2)
        for j in range(3)
        for k in range(5)
    ]
    assert seen == list(range(30))
