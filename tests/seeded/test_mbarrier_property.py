"""The mbarrier of the simulator, and that of the skeleton, against a model of thirty lines.

Random programs of one thread: arrivals, expected and completed bytes, drops.  After each step the
kernel asks the barrier for both parities by one try_wait each and writes the answers down.  The
model is written from PTX ISA 9.7.13.15 alone and shares nothing with either implementation.
"""

from dataclasses import dataclass

import numpy as np
from hypothesis import given, settings, strategies as st
from tvm.script import tirx as T

from tests.seeded.golden.common import Kernel
from tests.seeded.lowering import lower
from tests.seeded.running import run
from tests.sim import ptx
from tests.sim.hand_threaded import I32, U32, U64, Local, Shared, hand_threaded
from tvm_hopper.sim.protocol.agents import Op, SkeletonAgent
from tvm_hopper.sim.protocol.system import System


@dataclass
class Model:
    """What the ISA says: a phase ends when nothing is pending and no byte is owed."""

    expected: int
    pending: int
    owed: int = 0
    completed: int = 0

    def arrive(self, count=1, expect=0, drop=False):
        self.owed += expect
        if drop:
            self.expected -= count
        self.pending -= count
        self._maybe_complete()

    def expect(self, size):
        self.owed += size

    def complete(self, size):
        self.owed -= size
        self._maybe_complete()

    def _maybe_complete(self):
        if self.pending == 0 and self.owed == 0:
            self.completed += 1
            self.pending = self.expected

    def passes(self, parity):
        """Tell whether the newest finished phase has that parity: then a wait returns true."""
        newest_finished = self.completed - 1
        return newest_finished % 2 == parity


ACTION = st.sampled_from(["arrive", "arrive_expect", "expect", "complete", "drop"])
SIZE = st.sampled_from([16, 32, 48])


@st.composite
def programs(draw):
    """Draw a legal program: (count, steps, answers); undefined steps are left out."""
    count = draw(st.integers(1, 4))
    model, steps, answers = Model(count, count), [], []
    for action, size in draw(st.lists(st.tuples(ACTION, SIZE), min_size=1, max_size=30)):
        arrives = action in ("arrive", "arrive_expect", "drop")
        if arrives and model.pending == 0:
            continue  # one arrival too many
        if action == "drop" and model.expected == 1:
            continue  # nobody would be left
        if action == "arrive":
            model.arrive()
        elif action == "arrive_expect":
            model.arrive(expect=size)
        elif action == "expect":
            model.expect(size)
        elif action == "complete":
            model.complete(size)
        else:
            model.arrive(drop=True)
        steps.append((action, size))
        answers.append([model.passes(0), model.passes(1)])
    return count, steps, answers


def as_kernel(count, steps):
    total = max(len(steps), 1)

    def do(address, action, size):
        arrive = T.ptx.mbarrier.arrive
        expect = "mbarrier.expect_tx.relaxed.cta.shared::cta.b64"
        complete = "mbarrier.complete_tx.relaxed.cta.shared::cta.b64"
        return {
            "arrive": lambda: arrive.shared.b64(address),
            "arrive_expect": lambda: arrive.expect_tx.shared.b64(address, T.uint32(size)),
            "expect": lambda: T.ptx[expect](address, T.uint32(size)),
            "complete": lambda: T.ptx[complete](address, T.uint32(size)),
            "drop": lambda: T.ptx.mbarrier.arrive_drop.shared.b64(address),
        }[action]()

    def emit(bar, seen, Y):  # adds statements to the function that is being parsed
        for i, (action, size) in enumerate(steps):
            T.evaluate(do(T.address_of(bar[0]), action, size))
            for p in range(2):
                ask = T.ptx["mbarrier.try_wait.parity.shared::cta.b64"]
                T.evaluate(ask(seen[0], T.address_of(bar[0]), T.uint32(p)))
                T.buffer_store(Y, T.Cast("int32", seen[0]), [i, p])

    @hand_threaded(32, smem=128)
    def main(Y: I32[total, 2], tx, bar: Shared[U64], seen: Local[U32]):
        if tx == 0:
            ptx.init_mbarrier(bar[0], count)
            emit(bar, seen, Y)

    return Kernel(main, {})


@settings(max_examples=12, deadline=None)
@given(programs())
def test_the_simulator_agrees_with_the_model(program):
    count, steps, answers = program
    kernel = as_kernel(count, steps)
    result = run(kernel, lower(kernel.func))
    assert result.outputs["Y"][: len(answers)].tolist() == np.int32(answers).tolist()
    assert "MBAR_ARRIVE_OVERFLOW" not in result.rules


@settings(max_examples=200, deadline=None)
@given(programs())
def test_the_skeleton_agrees_with_the_model(program):
    count, steps, answers = program
    key = (0, "smem", 0)
    ops = [Op("init", ((key, count, 0),))]
    for action, size in steps:
        arrivals, owed = {
            "arrive": (1, 0),
            "arrive_expect": (1, size),
            "expect": (0, size),
            "complete": (0, -size),
            "drop": (1, 0),
        }[action]
        kind = "arrive" if action == "arrive_expect" else action
        ops.append(Op(kind, ((key, arrivals, owed),)))
    system = System([SkeletonAgent(0, "thread", tuple(ops))], 32, 1)
    state = system.step(system.initial(), 0)
    for answer in answers:
        state = system.step(state, 0)
        phase = state.barriers[0][0]
        assert [(phase & 1) != parity for parity in (0, 1)] == answer
    assert {v.rule for v in system.violations.values()} <= {"MBAR_MISSING_WAIT"}
