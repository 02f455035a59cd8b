"""WGMMA: one operation per warp group, asynchronous in its operand reads and accumulator writes.

The four warps of a warp group execute the same sequence of wgmma instructions, each at its own
time; an operation is issued when the last of them has.  It reads shared memory when it runs, which
a policy may delay to the covering `wait_group`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tvm_hopper.sim.arithmetic.elements import FLOAT8, SUMS, float8_sum, rounded_sum
from tvm_hopper.sim.layouts.fragments import a_fragment_index, lanes_of_rows, rows_of
from tvm_hopper.sim.machine.lanes import as_lanes, is_lanes, one
from tvm_hopper.sim.machine.machine import PendingOp
from tvm_hopper.sim.machine.registers import RegRef
from tvm_hopper.sim.ops.mbarrier import Wait
from tvm_hopper.sim.ops.shared_operand import (
    SharedOperand,
    described_by,
    operand_chunks,
    operand_values,
    stored_as,
    widened,
)
from tvm_hopper.sim.races.clocks import Bundle
from tvm_hopper.sim.races.shadow import ASYNC, Reliance, alike


class WarpGroup:
    """Shared state of four warps: their wgmma operations, in order."""

    def __init__(self, warps: list[Any]) -> None:
        self.warps = warps
        self.operations: list[PendingOp] = []
        self.newest: PendingOp | None = None
        self.hidden: dict[Any, np.ndarray] = {}  # accumulators of chains in flight, 64 x n
        self.sequence: list[tuple[int, Any]] = []  # (site, first warp) of each wgmma instruction


class WgmmaOps:
    """WGMMA instructions of one warp."""

    blocked_on: tuple[str, Any, int, int] | None

    def init_wgmma(self) -> None:
        """Begin with no operation."""
        self.wgmma_position = self.wgmma_steps = self.wgmma_commits = 0
        self.wgmma_open: list[PendingOp] = []
        self.wgmma_groups: list[list[PendingOp]] = []
        self.warp_group: WarpGroup | None = None

    @property
    def _group(self) -> WarpGroup:
        """The warp group of an issued wgmma: `op_wgmma` has turned away warps that are in none."""
        assert self.warp_group is not None
        return self.warp_group

    def op_cuda_wgmma_encode_matrix_descriptor(
        self, site: int, mask: Any, addr: Any, ldo: Any, sdo: Any, swizzle: Any
    ) -> Any:
        """Encode a descriptor; offsets count 16 bytes, `swizzle` is 0 none, 1 32, 2 64, 3 128."""
        layout = (0, 3, 2, 1)[one(swizzle, mask)]
        rest = (one(ldo, mask) & 0x3FFF) << 16 | (one(sdo, mask) & 0x3FFF) << 32 | layout << 62
        start = as_lanes(addr).astype(np.uint64) >> np.uint64(4) & np.uint64(0x3FFF)
        return start | np.uint64(rest)

    def op_cuda_wgmma_noop_barrier_uint32(self, site: int, mask: Any, *_: Any) -> None:
        """Keep a register alive: nothing to do."""

    op_cuda_wgmma_noop_barrier_float32 = op_cuda_wgmma_noop_barrier_uint32
    op_tvm_hopper_hold_float32 = op_cuda_wgmma_noop_barrier_uint32
    op_tvm_hopper_hold_int32 = op_cuda_wgmma_noop_barrier_uint32
    op_tvm_hopper_hold_uint32 = op_cuda_wgmma_noop_barrier_uint32
    op_tvm_hopper_hold_value = op_cuda_wgmma_noop_barrier_uint32
    op_tvm_hopper_code_fence = op_cuda_wgmma_noop_barrier_uint32

    def _in_step(self, site: int, mask: Any, instruction: str) -> None:
        """Check that the four warps execute the same wgmma instructions in the same order."""
        self._require_full(site, mask, instruction, exists=True)
        if self.warp_group is None:
            return
        sequence, position = self.warp_group.sequence, self.wgmma_steps
        self.wgmma_steps += 1
        if position == len(sequence):
            sequence.append((site, self))
        elif sequence[position][0] != site:
            other_site, other = sequence[position]
            self.report(
                "WARP_CONVERGENCE",
                site,
                f"{instruction}: {other.label} of the same warp group executes "
                f"{self.machine.statement(other_site)} here",
            )

    def op_wgmma_fence(self, site: int, mask: Any, mods: Any) -> None:
        """Order register accesses before the following wgmma."""
        self._in_step(site, mask, "wgmma.fence")
        for state in self.reg_states.values():
            if state.any_dirty:
                state.dirty[:] = state.any_dirty = False

    def op_wgmma_commit_group(self, site: int, mask: Any, mods: Any) -> None:
        """Close the group of wgmma since the last commit."""
        self._in_step(site, mask, "wgmma.commit_group")
        self.wgmma_groups.append(self.wgmma_open)
        self.wgmma_commits += 1
        self.wgmma_open = []

    def op_wgmma_wait_group(self, site: int, mask: Any, mods: Any, group: Any) -> Wait:
        """Wait until at most `group` groups are pending."""
        self.site = site
        self._in_step(site, mask, "wgmma.wait_group")
        pending = self.check_groups(site, group)
        covered = self.wgmma_groups[: max(len(self.wgmma_groups) - pending, 0)]
        known = 0
        for ops in covered:
            for op in ops:
                while not op.done:
                    missing = 4 - len(op.members)
                    self.waiting = (
                        f"waits for a wgmma that {missing} of 4 warps have not executed"
                        if missing
                        else "waits for a wgmma"
                    )
                    self.blocked_on = ("wgmma", op, 0, site)
                    yield op
                known |= op.events
                for ref in op.registers[self]:
                    ref.state.busy[ref.bytes] -= 1
                    ref.state.num_busy -= 1
            self.clock.join_events(known)
        self.blocked_on = None
        self.wgmma_groups = self.wgmma_groups[len(covered) :]

    # -- mma_async --------------------------------------------------------------------------------

    def op_wgmma(
        self,
        site: int,
        mask: Any,
        mods: Any,
        d: RegRef,
        b_desc: Any,
        scale_d: Any,
        a_desc: Any = None,
        a: Any = None,
        scale_a: int = 1,
        scale_b: int = 1,
        trans_a: int = 0,
        trans_b: int = 0,
    ) -> None:
        """Multiply a shared operand, or registers, by a shared one into the accumulator."""
        a = a_desc if a is None else a
        self.site = site
        self.roles.add("consumer")
        self._in_step(site, mask, "wgmma.mma_async")
        group, position = self.warp_group, self.wgmma_position
        self.wgmma_position += 1
        if group is None:
            self.report("WARP_CONVERGENCE", site, "wgmma outside of a warp group")
            return
        registers = [d, a] if isinstance(a, RegRef) else [d]
        self._check_registers(site, mods["shape"], d, registers)
        if position == len(group.operations):
            op = PendingOp("wgmma", self, site)
            op.members, op.registers, op.issued = {}, {}, False
            op.before, group.newest = group.newest, op
            group.operations.append(op)
        op = group.operations[position]
        wide = [
            v if isinstance(v, RegRef) else self.uniform(site, v, mask, "a wgmma descriptor")
            for v in (a, b_desc)
        ]
        adds = self._scale_d(site, mask, scale_d)
        op.members[self] = (d, *wide, adds)
        if d.state.held is not None:
            from_a = a.state.held.lanes(a.bytes) if isinstance(a, RegRef) and a.state.held else True
            d.state.held.accumulate(d.bytes, adds, from_a)
        op.registers[self] = registers
        self.wgmma_open.append(op)
        if len(op.members) == len(group.warps):
            flags = (int(scale_a), int(scale_b), int(trans_a), int(trans_b))
            self._check_flags(site, flags)
            self._issue(op, site, mods, flags)

    def _scale_d(self, site: int, mask: Any, scale_d: Any) -> bool:
        """Return whether a warp adds to D; PTX does not define it for lanes that differ."""
        if not is_lanes(scale_d):
            return bool(scale_d)
        here = (scale_d if mask is None else scale_d[mask]) != 0
        if not alike(here):
            self._unequal_scale_d(site)
        return bool(here[0])

    def _unequal_scale_d(self, site: int) -> None:
        self.machine.incomplete("wgmma with a scale-d that differs among its lanes", site)

    def _check_flags(self, site: int, flags: tuple[int, int, int, int]) -> None:
        """Check the immediates: ptxas accepts only these values (9.7.15.5.2)."""
        for name, value, legal in zip(
            ("scale-a", "scale-b", "trans-a", "trans-b"), flags, [(-1, 1)] * 2 + [(0, 1)] * 2,
            strict=True,
        ):  # fmt: skip
            if value not in legal:
                text = f"imm-{name} {value}: need {legal[0]} or {legal[1]}"
                self.report("ILLEGAL_OPERAND", site, text)

    def _check_registers(self, site: int, shape: str, d: RegRef, registers: list[RegRef]) -> None:
        key = hash(shape) & 0x7FFFFFFF or 1
        for ref in registers:
            state, part = ref.state, ref.bytes
            if state.any_dirty and state.dirty[part].any():
                text = f"{state.name} was touched since the last wgmma.fence (or none ran yet)"
                self.report("WGMMA_FENCE_MISSING", site, text, buffer=state.name)
            if (
                state.num_busy
                and state.busy[part].any()
                and (ref is not d or (state.shape[part] != key).any())
            ):
                text = (
                    f"{state.name} is used by a wgmma of another shape or as A while one is in "
                    "flight"
                )
                self.report("WGMMA_REG_INFLIGHT", site, text, buffer=state.name)
            state.busy[part] += 1
            state.num_busy += 1
        d.state.shape[d.bytes] = key

    def _issue(self, op: PendingOp, site: int, mods: Any, flags: tuple[int, int, int, int]) -> None:
        machine, group = self.machine, self._group
        n, depth = (int(x) for x in mods["shape"].partition("n")[2].split("k"))
        _, a, b, adds = op.members[self]
        if any(op.members[other][3] != adds for other in group.warps):
            self._unequal_scale_d(site)
        for other in group.warps:
            _, other_a, other_b, _ = op.members[other]
            if other_b != b or (not isinstance(a, RegRef) and other_a != a):
                self.report(
                    "WARP_CONVERGENCE", site, "the warps of a warp group hold different descriptors"
                )
        found = [self._operand(site, b, n, depth, mods["btype"], flags[3], "B")]
        if not isinstance(a, RegRef):
            found.insert(0, self._operand(site, a, 64, depth, mods["atype"], flags[2], "A"))
        sources = [source for source in found if source is not None]
        op.group = self.wgmma_commits
        op.addresses = tuple(int(source.chunks[0]) + source.start for source in sources)
        if len(sources) < len(found):
            op.steps.append(lambda: None)
        else:
            if machine.log is not None:
                self._read_operands(op, site, sources)
            op.steps.append(lambda: self._compute(op, sources, n, mods, flags))
            if machine.mode != "eager" and machine.values:
                self._hide(op, n, mods)
        op.issued = True
        machine.submit(op)
        machine.wake(op)

    def _read_operands(self, op: PendingOp, site: int, sources: list[SharedOperand]) -> None:
        """Check the reads of shared memory against the knowledge of all four warps."""
        warps = self._group.warps
        clock = warps[0].clock.async_shared.copy()
        for other in warps[1:]:
            clock.meet(other.clock.async_shared)

        def known() -> Bundle:
            bundle: Bundle = warps[0].clock.copy()
            for other in warps[1:]:
                bundle.async_shared.meet(other.clock.async_shared)
                bundle.generic.meet(other.clock.generic)
                bundle.narrow.meet(other.clock.narrow)
            return bundle

        access = self.access(site, False, ASYNC, op.read_event, op)
        for source in sources:
            starts = source.chunks + source.start
            self.check(self.cta.shared, starts, source.chunk, access, Reliance(clock, known))

    def _operand(
        self, site: int, value: int, rows: int, depth: int, kind: str, transposed: int, which: str
    ) -> SharedOperand | None:
        """Find one operand in shared memory, or report the error of its descriptor."""
        described, (dtype, stored) = described_by(value), stored_as(kind, depth)
        repeated = described.start & ~0x3FF  # no mode repeats later: cached offsets are near 0
        major = "mn" if transposed else "k"
        key = (value - (repeated >> 4), major, rows, stored, dtype.itemsize)
        chunks, chunk = operand_chunks(*key)
        low, high = repeated + int(chunks[0]), repeated + int(chunks[-1]) + chunk
        if not self.inside(site, self.cta.shared, low, high - low, f"operand {which} reads"):
            return None
        return SharedOperand(key, repeated, chunks, chunk, dtype)

    def _accumulator(self, op: PendingOp, n: int, dtype: np.dtype) -> np.ndarray:
        """Gather the accumulator of four warps, shape (64, n)."""
        full = np.empty((64, n), dtype)
        for number, warp in enumerate(self._group.warps):
            ref = op.members[warp][0]
            values = ref.array[:, ref.indices]
            if values.dtype != dtype:
                values = np.ascontiguousarray(values).view(dtype)
            rows_of(full, number)[...] = lanes_of_rows(values)
        return full

    def _scatter(self, op: PendingOp, full: np.ndarray) -> None:
        for number, warp in enumerate(self._group.warps):
            ref = op.members[warp][0]
            if isinstance(ref.indices, slice) and ref.array.dtype == full.dtype:
                lanes_of_rows(ref.array[:, ref.indices])[...] = rows_of(full, number)
                continue
            values = np.empty((32, full.shape[1] // 2), full.dtype)
            lanes_of_rows(values)[...] = rows_of(full, number)
            ref.write(values.view(ref.array.dtype))

    def _hide(self, op: PendingOp, n: int, mods: Any) -> None:
        """Keep the accumulator aside while it is in flight, and poison the registers."""
        group = self._group
        key = op.members[group.warps[0]][0].key
        if key not in group.hidden:
            dtype = _accumulator_dtype(mods)
            group.hidden[key] = self._accumulator(op, n, dtype)
            for warp in group.warps:
                ref = op.members[warp][0]
                raw = np.full(ref.read().nbytes, 0xFF, np.uint8)
                ref.write(raw.view(ref.array.dtype).reshape(32, -1))

    def _compute(
        self, op: PendingOp, sources: list[SharedOperand], n: int, mods: Any, flags: Any
    ) -> None:
        op.read_done = True
        if not self.machine.values:
            return
        group, shared = self._group, self.cta.shared
        key = op.members[group.warps[0]][0].key
        dtype = _accumulator_dtype(mods)
        b = operand_values(shared, sources[-1], mods["btype"])
        if len(sources) == 2:
            a = operand_values(shared, sources[0], mods["atype"])
        else:
            a = self._a_registers(op, mods["atype"])
        sign = flags[0] * flags[1]
        full = group.hidden.get(key)
        if full is None:
            full = self._accumulator(op, n, dtype)
        adds = op.members[group.warps[0]][3]
        if mods["atype"] in FLOAT8 and mods["dtype"] == "f32":
            start = full if adds else np.zeros_like(full)
            full = float8_sum(a * np.float32(sign), b, (mods["atype"], mods["btype"]), start)
        else:
            product = (a @ b.T) * sign
            if adds:
                with np.errstate(invalid="ignore", over="ignore"):
                    product = full.astype(product.dtype) + product
            full = rounded_sum(product, mods["dtype"], bool(mods.get("satfinite")))
        if key in group.hidden and self._still_used(op, key):
            group.hidden[key] = full
            return
        group.hidden.pop(key, None)
        self._scatter(op, full)

    def _still_used(self, op: PendingOp, key: Any) -> bool:
        """Return whether a later issued operation in flight accumulates into the registers."""
        group = self._group
        first = group.warps[0]
        return any(
            other is not op
            and other.issued
            and other.number > op.number
            and other.members[first][0].key == key
            for other in self.machine.pending
            if other.kind == "wgmma" and other.warp.warp_group is group
        )

    def _a_registers(self, op: PendingOp, atype: str) -> np.ndarray:
        dtype, _ = stored_as(atype, 0)
        full = np.empty((64, 32 // dtype.itemsize), dtype)
        row, column = a_fragment_index(dtype.itemsize)
        for number, warp in enumerate(self._group.warps):
            values = np.ascontiguousarray(op.members[warp][1].read()).view(dtype)
            full[number * 16 + row, column] = values
        return widened(full, atype)


def _accumulator_dtype(mods: Any) -> np.dtype:
    return np.dtype(SUMS[mods["dtype"]])
