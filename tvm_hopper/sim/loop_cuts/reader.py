"""Find the dependences of a device function's control flow and synchronisation.

One reader looks at a whole function, or at the body of one loop as that loop's variable moves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tvm import ir, tirx

from tvm_hopper.sim.loop_cuts.shift import (
    DATA,
    Known,
    Moved,
    Shift,
    both,
    index_of,
    masked,
    shift_of,
    unmoved,
)
from tvm_hopper.sim.loop_cuts.threshold import Threshold, threshold_of
from tvm_hopper.sim.ops.atomics import order_of
from tvm_hopper.sim.tir import PTX, PtxCall, decode_ptx, nodes_in, op_name, short_name
from tvm_hopper.sim.translate.steering import LOADS, STORES, VALUE_CALLS, VALUE_OPERANDS, named
from tvm_hopper.sim.walk import walk_nodes

# Instructions whose effect is the same in each iteration if their operands are; by the name's
# beginning.
REPEATABLE = (
    *("mbarrier_arrive_expect", "mbarrier_arrive", "mbarrier_expect_tx"),
    *("cp_async_bulk_tensor_g2s", "cp_async_bulk_g2s", "cp_async_bulk_s2c"),
    *("cp_async_bulk_tensor_s2g", "cp_async_bulk_s2g"),
    *("cp_async_bulk_commit_group", "cp_async_bulk_wait_group", "cp_async_bulk_prefetch"),
    *("cp_async_ca", "cp_async_cg", "cp_async_commit_group", "cp_async_wait", "cp_async_mbarrier"),
    *("wgmma_", "mma", "ldmatrix", "stmatrix", "mov", "mapa", "fence", "bar_", "barrier_"),
    *("prefetch", "nanosleep", "applypriority", "getctarank", "st_async", "red_async"),
    "createpolicy",
)
_HINT = "cache_policy"  # an operand that changes nothing that memory holds
# Other operations that a kernel without data-dependent control may have.
ONCE = ("mbarrier_init", "mbarrier_inval", "mbarrier_arrive_drop", "setmaxnreg", "griddepcontrol")
TRIES = ("mbarrier_try_wait", "mbarrier_test_wait")  # their result depends on the schedule alone
_FROM_GLOBAL = {
    "cp_async_bulk_tensor_g2s": "coords",
    "cp_async_bulk_g2s": "src_mem",
    "cp_async_ca": "src_mem",
    "cp_async_cg": "src_mem",
}
_TO_GLOBAL = {"cp_async_bulk_tensor_s2g": "coords", "cp_async_bulk_s2g": "dst_mem"}
_CALLS = (
    *("cuda.mbarrier_wait", "cuda.mbarrier_wait_acquire_cluster", "tvm_storage_sync"),
    *("cuda.cta_sync", "cuda.cluster_sync", "cuda.warpgroup_sync", "cuda.warp_sync"),
    "cuda.grid_sync",
    *("cuda.nano_sleep", "cuda.wgmma_noop_barrier_uint32", "cuda.wgmma_noop_barrier_float32"),
    *("tvm_hopper_hold_float32", "tvm_hopper_hold_int32", "tvm_hopper_hold_uint32"),
    *("tvm_hopper_hold_value", "tvm_hopper_code_fence"),
)
# Calls within expressions that synchronize, or that access memory by addresses of their own.
_MEET_IN_EXPRESSIONS = (
    "cuda.cta_reduce",
    "cuda.syncthreads_and",
    "cuda.syncthreads_or",
    "cuda.ldg",
)
_ENCODE = "cuda.wgmma_encode_matrix_descriptor"
ALIGNED = 16  # a step that is a multiple keeps the alignment of every access, in elements or bytes


class RefusedError(Exception):
    """Something in a loop or function differs between iterations; the text names it."""


class Reader:
    """Walks statements with known facts about variables and registers.

    - `period` (int): iterations after which the whole loop body repeats.
    - `place_period` (int): iterations after which all places in global memory have moved on by
      equal steps: a period touches the ends of each row of such places.
    - `stores` (bool): whether something is stored to global memory.
    - `synchronises` (bool): whether there is any instruction.
    - `thresholds` (list of Threshold): conditions that do not repeat.
    """

    def __init__(
        self,
        known: Known,
        decoded: dict[Any, PtxCall | None],
        loop_var: Any = None,
        outer: Sequence[Any] = (),
    ) -> None:
        self.known, self.decoded = known, decoded
        self.loop_var, self.outer, self.in_loop = loop_var, outer, loop_var is not None
        self.inside: dict[Any, range | None] = {}  # loops in the body
        self.bound: dict[Any, Any] = {}  # expressions of variables in the body
        self.scalars: set[Any] = set()  # block indices and parameters
        self.thresholds: list[Threshold] = []
        self.period = self.place_period = 1
        self.stores = self.synchronises = False

    # -- claims that are needed -------------------------------------------------------------------

    def repeats(self, claim: Moved, subject: str) -> None:
        """Require that a value repeats after some iterations; in a function: depends on no data."""
        if claim is DATA:
            raise RefusedError(f"{subject} depends on data")
        if not self.in_loop:
            return
        if not isinstance(claim, Shift) or claim.step:
            raise RefusedError(f"{subject} is not the same after any number of iterations")
        self.period = math.lcm(self.period, claim.period)

    def holds(self, node: Any, subject: str) -> None:
        """Need a condition that repeats, or changes in few iterations."""
        claim = self.value(node)
        repeated = isinstance(claim, Shift) and not claim.step
        if claim is not DATA and self.in_loop and not repeated:
            if isinstance(node, (tirx.And, tirx.Or)):
                self.holds(node.a, subject)
                self.holds(node.b, subject)
                return
            found = threshold_of(
                node, self.loop_var, self.outer, self.inside, self.bound, self.scalars
            )
            if found is not None:
                self.thresholds.append(found)
                return
        self.repeats(claim, subject)

    def grows(self, claim: Moved, subject: str) -> None:
        """Need a place in global memory that moves on by equal steps, and stays aligned."""
        if claim is DATA:
            raise RefusedError(f"{subject} depends on data")
        if self.in_loop and (not isinstance(claim, Shift) or claim.step % ALIGNED):
            raise RefusedError(f"{subject} does not move on by equal steps")
        if isinstance(claim, Shift):
            self.place_period = math.lcm(self.place_period, claim.period)

    # -- statements -------------------------------------------------------------------------------

    def read(self, node: Any) -> None:
        """Read one statement."""
        getattr(self, f"_{type(node).__name__.lower()}", self._refuse)(node)

    def _refuse(self, node: Any) -> None:
        raise RefusedError(f"statement {type(node).__name__}")

    def _seqstmt(self, node: Any) -> None:
        for inner in node.seq:
            self.read(inner)

    def _attrstmt(self, node: Any) -> None:
        if node.attr_key in ("thread_extent", "virtual_thread"):
            self.known.values[node.node.var] = Shift(positive=True)
        self.read(node.body)

    def _allocbuffer(self, node: Any) -> None:
        if self.in_loop and not node.buffer.scope().startswith("local"):
            raise RefusedError(f"allocation of {node.buffer.name}")

    def _assertstmt(self, node: Any) -> None:
        """Pass: nothing is run."""

    def _declbuffer(self, node: Any) -> None:
        if node.buffer.scope().startswith("local"):
            source = node.data.args[0] if isinstance(node.data, ir.Call) else node.data
            if source in self.known.tainted:
                self.known.tainted.add(node.buffer)
            elif node.buffer in self.known.tainted:
                self.known.tainted.add(source)
            return
        self.known.values[node.buffer] = self.value(node.data)

    def _bind(self, node: Any) -> None:
        self.bound[node.var] = node.value
        self.known.values[node.var] = self.value(node.value)

    def _for(self, node: Any) -> None:
        start, extent = self.value(node.min), self.value(node.extent)
        self.repeats(start, f"start of loop {node.loop_var.name}")
        self.repeats(extent, f"extent of loop {node.loop_var.name}")
        self.forget(node.body)
        self.known.values[node.loop_var] = both(start, extent, _within)
        constant = isinstance(node.min, tirx.IntImm) and isinstance(node.extent, tirx.IntImm)
        low = int(node.min) if constant else 0
        self.inside[node.loop_var] = range(low, low + int(node.extent)) if constant else None
        self.read(node.body)
        self.forget(node.body)

    def _while(self, node: Any) -> None:
        if self.in_loop:
            raise RefusedError("a while loop")
        self.forget(node.body)
        self.repeats(self.value(node.condition), "a while loop")
        self.read(node.body)
        self.forget(node.body)

    def _ifthenelse(self, node: Any) -> None:
        self.holds(node.condition, "a condition")
        before = dict(self.known.registers)
        self.read(node.then_case)
        after = self.known.registers
        self.known.registers = before
        if node.else_case is not None:
            self.read(node.else_case)
        self.known.registers = {
            key: claim
            for key, claim in after.items()
            if key in self.known.registers and self.known.registers[key] == claim
        }

    def _bufferstore(self, node: Any) -> None:
        claim = self.value(node.value)
        place = self.address(node.indices, f"index of {node.buffer.name}")
        scope = node.buffer.scope()
        if scope.startswith("local"):
            self.repeats(place, f"register of {node.buffer.name}")
            self.keep(node.buffer, place, claim)
        elif scope.startswith("shared"):
            self.repeats(place, f"place in {node.buffer.name}")
        else:
            self.stores = True
            if place is DATA:
                raise RefusedError(f"place in {node.buffer.name} depends on data")

    # -- expressions ------------------------------------------------------------------------------

    def value(self, node: Any) -> Moved:
        """Return the claim of an expression, and read the memory accesses in it."""
        if not isinstance(node, (ir.Var, tirx.IntImm, int)):
            for load in nodes_in(node, ir.TensorLoad):
                self._load(load)
            for call in nodes_in(node, ir.Call):
                self._inside(call)
        return shift_of(node, self.known)

    def _load(self, load: ir.TensorLoad) -> None:
        place = self.address(load.indices, f"index of {load.source.name}")
        scope = load.source.scope()
        if scope.startswith(("local", "shared")):
            self.repeats(place, f"place in {load.source.name}")
        else:
            self.grows(place, f"place in {load.source.name}")

    def _inside(self, call: ir.Call) -> None:
        if short_name(call) == "if_then_else":
            self.repeats(shift_of(call.args[0], self.known), "a condition")
        if "atomic" in short_name(call):
            raise RefusedError("an atomic")
        if short_name(call) in _MEET_IN_EXPRESSIONS:
            raise RefusedError(f"call {short_name(call)}")

    def address(self, indices: Any, subject: str) -> Moved:
        """Return the claim of a place; a place that depends on data is none."""
        place = index_of(indices, self.known)
        if place is DATA:
            raise RefusedError(f"{subject} depends on data")
        return place

    # -- registers --------------------------------------------------------------------------------

    def keep(self, buffer: Any, place: Moved, claim: Moved) -> None:
        """Note the current claim about a register."""
        if claim is DATA:
            self.known.tainted.add(buffer)
        if isinstance(place, Shift) and place.value is not None:
            self.known.registers[buffer, place.value] = claim
        else:
            self._drop({buffer})

    def forget(self, body: Any) -> None:
        """Forget registers that a loop's body writes: each iteration reads the previous one's."""
        written: set[Any] = set()

        def call(node: ir.Call) -> None:
            ptx = self.decode(node)
            targets = ptx.results if ptx is not None else []
            if short_name(node) == _ENCODE:
                targets = [x for x in node.args[:1] if isinstance(x, ir.TensorLoad)]
            written.update(x.source for x in targets)

        def store(node: tirx.BufferStore) -> None:
            written.add(node.buffer)

        walk_nodes(body, [(tirx.BufferStore, store), (ir.Call, call)])
        self._drop(written)

    def _drop(self, buffers: set[Any]) -> None:
        registers = self.known.registers
        for key in [key for key in registers if key[0] in buffers]:
            del registers[key]

    # -- instructions -----------------------------------------------------------------------------

    def decode(self, call: ir.Call) -> PtxCall | None:
        """Decode an instruction, once."""
        if call not in self.decoded:
            self.decoded[call] = decode_ptx(call)
        return self.decoded[call]

    def _evaluate(self, node: Any) -> None:
        call = node.value
        if not isinstance(call, ir.Call):
            return
        self.synchronises = True
        name = short_name(call)
        if op_name(call).startswith(PTX) and name != "ptx.addr":
            ptx = self.decode(call)
            if ptx is None:
                raise RefusedError(name)
            self._instruction(ptx)
        elif name in _CALLS:
            for position, arg in enumerate(call.args):
                claim = self.value(arg)
                if position == 1 and "mbarrier_wait" in name:  # only one bit of the phase is read
                    claim = both(claim, Shift(1, 0, True, 1), masked)
                if not any(word in name for word in VALUE_CALLS):
                    self.repeats(claim, name)
        elif name == _ENCODE:
            claims = [self.value(arg) for arg in call.args[1:]]
            for claim in claims:
                self.repeats(claim, name)
            self._write(call.args[0].args[0], unmoved(claims))
        else:
            raise RefusedError(f"call {name}")

    def _instruction(self, ptx: PtxCall) -> None:
        name = ptx.name
        plain = name in (*LOADS, *STORES) and order_of(ptx.mods)[0] == "weak"
        if not plain:
            self._check_repeatable(name)
        if ptx.pred is not None:
            self.repeats(self.value(ptx.pred), f"predicate of {name}")
        values = named(VALUE_OPERANDS, name) or ()
        source, target = named(_FROM_GLOBAL, name), named(_TO_GLOBAL, name)
        if plain and ptx.mods.get("space") == "global":
            source, target = ("addr", None) if name in LOADS else (None, "addr")
        self.stores = self.stores or target is not None
        claims: list[Moved] = []
        for operand, expressions in ptx.operands.items():
            if operand == _HINT or (operand in ptx.writes and operand not in values):
                continue
            role = "value" if operand in values else ""
            role = {source: "source", target: "target"}.get(operand, role)
            for expression in (x for x in expressions if x is not None):
                claims.append(self._operand(expression, role, f"{operand} of {name}"))
        moves = name.startswith(("mapa", "mov", "getctarank", "createpolicy"))
        result: Moved = unmoved(claims) if moves else DATA
        self._write_results(ptx, None if name.startswith(TRIES) else result)

    def _write_results(self, ptx: PtxCall, claim: Moved) -> None:
        for written in ptx.results:
            self._write(written, claim)

    def _operand(self, expression: Any, role: str, subject: str) -> Moved:
        """Return the claim of an operand, which has to suit its use by the instruction."""
        claim = self.value(expression)
        if role == "source":
            self.grows(claim, subject)
        elif role == "target":
            if claim is DATA:
                raise RefusedError(f"{subject} depends on data")
        elif role != "value":
            self.repeats(claim, subject)
        return claim

    def _check_repeatable(self, name: str) -> None:
        """Refuse an instruction that does not do the same in each iteration of a loop."""
        if name.startswith(REPEATABLE) and not name.startswith(ONCE):
            return
        if self.in_loop or not name.startswith((*ONCE, *TRIES)):
            raise RefusedError(f"instruction {name}")

    def _write(self, target: ir.TensorLoad, claim: Moved) -> None:
        place = self.address(target.indices, f"register of {target.source.name}")
        self.repeats(place, f"register of {target.source.name}")
        self.keep(target.source, place, claim)


def _within(start: Shift, extent: Shift) -> Moved:
    """Claim of the variable of a loop inside: it takes the same values when its bounds do."""
    claim = unmoved([start, extent])
    return claim._replace(positive=start.positive) if isinstance(claim, Shift) else claim
