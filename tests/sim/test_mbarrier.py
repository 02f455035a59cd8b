"""The mbarrier against an independent model, and the laws of parity."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tvm_hopper.sim.machine.mbarrier import MBarrier, Slot
from tvm_hopper.sim.races.clocks import Bundle


class Model:
    """Counts of PTX ISA 9.7.13.15, as a list of what happened in the current phase."""

    def __init__(self, count):
        self.count, self.done = count, 0
        self.arrived, self.bytes = 0, 0

    def step(self, action, amount):
        if action == "arrive":
            self.arrived += 1
        elif action == "expect":
            self.bytes += amount
        else:
            self.bytes -= amount
        if action != "expect" and self.arrived == self.count and self.bytes == 0:
            self.done, self.arrived = self.done + 1, 0

    def passes(self, parity):
        return self.done % 2 != parity


steps = st.lists(
    st.tuples(st.sampled_from(["arrive", "expect", "complete"]), st.sampled_from([16, 32])),
    max_size=40,
)


@settings(max_examples=300, deadline=None)
@given(count=st.integers(1, 4), actions=steps)
def test_phases_agree_with_the_model(count, actions):
    barrier, model = MBarrier("b", None, 0, count), Model(count)
    for action, amount in actions:
        if action == "arrive":
            if not barrier.pending:  # a further arrival would be an overflow
                continue
            barrier.pending -= 1
            barrier.try_complete()
        elif action == "expect":
            barrier.tx += amount
        else:
            barrier.tx -= amount
            barrier.try_complete()
        model.step(action, amount)
        assert barrier.phase == model.done
        assert [barrier.passes(p) for p in (0, 1)] == [model.passes(p) for p in (0, 1)]


def test_a_fresh_barrier_passes_parity_1_and_blocks_parity_0():
    barrier = MBarrier("b", None, 0, 1)
    assert barrier.passes(1)
    assert not barrier.passes(0)


def test_bytes_may_complete_before_they_are_expected():
    barrier = MBarrier("b", None, 0, 1)
    barrier.tx -= 64
    assert not barrier.try_complete()
    barrier.tx += 64
    barrier.pending -= 1
    assert barrier.try_complete()


def test_a_phase_publishes_nothing_of_the_next():
    barrier = MBarrier("b", None, 0, 1)
    first, second = Bundle(2), Bundle(2)
    first.generic.epochs[0], second.generic.epochs[0] = 1, 2
    for bundle in (first, second):
        barrier.slot.publish("near", bundle)
        barrier.pending -= 1
        barrier.try_complete()
    clock = Bundle(2)
    barrier.slots[0].acquire(clock, False, 0)
    assert clock.generic.epochs[0] == 1


def test_a_narrow_arrival_publishes_finished_copies_but_no_generic_access():
    slot, bundle = Slot(), Bundle(2)
    bundle.generic.epochs[0], bundle.generic.events = 3, 0b10
    slot.publish("narrow", bundle)
    clock = Bundle(2)
    slot.acquire(clock, False, 0)
    assert clock.generic.epochs[0] == 0
    assert clock.generic.events == 0b10
    assert clock.narrow.epochs[0] == 3
