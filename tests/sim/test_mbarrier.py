"""What a phase of an mbarrier publishes.

When it ends is that of `tests/seeded/test_mbarrier_property.py`.
"""

from tvm_hopper.sim.machine.mbarrier import MBarrier, Slot
from tvm_hopper.sim.races.clocks import Bundle


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
