"""Check bounds, alignment, overlap and coverage of all CTAs of a launch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tvm_hopper.sim.coverage.accesses import LOAD, GlobalAccess, Undecided
from tvm_hopper.sim.coverage.bounds import misaligned, misaligned_box, negative_box, out_of_bounds
from tvm_hopper.sim.coverage.footprint import BUDGET_S, Piece, Preparer, box_pieces, plain_pieces
from tvm_hopper.sim.coverage.lattice import Conflict, Lattice, fills_memory
from tvm_hopper.sim.coverage.loops import assign_roles
from tvm_hopper.sim.coverage.points import Deadline, Points, UndecidedError
from tvm_hopper.sim.coverage.walk import Walker
from tvm_hopper.sim.findings import Finding, finding
from tvm_hopper.sim.grid import index_of
from tvm_hopper.sim.kinds.groups import groups_of
from tvm_hopper.sim.launch.tensors import Pointer, TensorPlacement, place
from tvm_hopper.sim.launch.tma import TensorMapArg
from tvm_hopper.sim.tir import statement_text


@dataclass
class TensorFootprint:
    """Bytes of one tensor that one launch touches.

    - `pieces`: stores and atomic updates that happen.
    - `doubts`: why more may be stored: statements that could not be followed.
    - `whole`: this launch alone stores every element.
    """

    pieces: list[Piece] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    whole: bool = False


@dataclass(frozen=True)
class Coverage:
    """Facts about every CTA of a launch that its indices prove.

    - `findings`: broken rules, and an INCOMPLETE for each statement that could not be decided.
    - `text`: one line with the proven facts.
    - `footprints`: by tensor.
    """

    findings: tuple[Finding, ...]
    text: str
    footprints: Mapping[str, TensorFootprint]


class Checker:
    """Checks one launch."""

    def __init__(
        self,
        func: Any,
        setup: Mapping[str, Any],
        arrays: Mapping[str, np.ndarray],
        all_run: bool,
        budget_s: float,
    ) -> None:
        self.deadline = Deadline(budget_s)
        self.params = dict(setup["params"])
        self.grid = tuple(int(g) for g in setup["grid"])
        self.func, self.setup, self.all_run = func, setup, all_run
        self.kernel = str((func.attrs or {}).get("global_symbol", "kernel"))
        self.places = {name: place(array) for name, array in arrays.items()}
        self.found: dict[Any, Finding] = {}
        self.footprints: dict[str, TensorFootprint] = {}
        self.pieces: dict[str, list[Piece]] = {}
        self.inexact: dict[int, str] = {}  # access -> a condition of it that is not known
        self.broken: set[str] = set()  # tensors with an access out of bounds
        self.unsure: set[str] = set()  # tensors with some unknown access
        self.disjoint: list[str] = []
        self.shared: list[str] = []
        self.order_known = True  # whether the order of conflicting CTAs is known
        self.walker = Walker(func, self.params, self.grid, setup["block"], setup["cluster"])
        self.num_ctas = int(np.prod(self.grid))

    # -- findings ---------------------------------------------------------------------------------

    def cta(self, number: int) -> str:
        """Return a CTA's name."""
        return f"CTA {index_of(int(number), self.grid)}"

    def report(self, rule: str, access: GlobalAccess, message: str, **more: Any) -> None:
        """Report a broken rule; if a condition on the way is not known, that it may be broken."""
        doubt = self.inexact.get(id(access), "")
        if doubt:
            self.undecide(access.statement, f"{message}, if it happens: {doubt}")
            return
        more.setdefault("statements", (statement_text(access.statement),))
        key = (rule, more["statements"])
        self.found.setdefault(key, finding(rule, f"{self.kernel}: {message}", **more))

    def undecide(self, statement: Any, reason: str) -> None:
        """Report an undecided statement; nothing if each CTA is simulated."""
        if self.all_run:
            return
        text = statement_text(statement)
        short = reason if len(reason) < 240 else reason[:237] + "..."
        self.found.setdefault(
            ("INCOMPLETE", text),
            finding(
                "INCOMPLETE",
                f"{self.kernel}: indices of all {self.num_ctas} CTAs: {short}",
                statements=(text,),
                hint="run every CTA (max_ctas), or make the index depend on no data",
            ),
        )

    # -- accesses ---------------------------------------------------------------------------------

    def tensor(self, param: str | None) -> str:
        """Return the tensor that a parameter points into."""
        value = self.params.get(param or "")
        return str(getattr(value, "tensor", param or ""))

    def run(self) -> Coverage:
        """Check everything."""
        walker = self.walker
        assign_roles(walker.accesses, self.num_ctas)
        needed = self._needed()
        decided: dict[int, bool] = {}
        try:
            root = Points.of_grid(self.grid, walker.axes)
        except UndecidedError as error:
            for unknown in walker.undecided:
                self._unknown(unknown)
            for access in walker.accesses:
                self._give_up(access, str(error))
        else:
            preparer = Preparer(walker.nodes, root, self.deadline)
            for unknown in walker.undecided:
                if preparer.may_reach(unknown.path):
                    self._unknown(unknown)
            for access in walker.accesses:
                try:
                    self._access(preparer, access, needed)
                    decided[id(access.statement)] = True
                except UndecidedError as error:
                    self._give_up(access, str(error))
                except Exception as error:  # no reference: nothing is proven
                    self._give_up(access, f"{type(error).__name__}: {error}")
        for name in self.pieces:
            self._tensor(name)
        return Coverage(tuple(self.found.values()), self._text(len(decided)), self.footprints)

    def _needed(self) -> set[str]:
        """Return the tensors whose loads are compared with something."""
        stored = {self.tensor(a.param) for a in self.walker.accesses if a.kind != LOAD}
        views = {name for name, where in self.places.items() if not fills_memory(where)}
        return stored | views

    def _unknown(self, unknown: Undecided) -> None:
        self.undecide(unknown.statement, unknown.reason)
        names = set(map(self.tensor, self.params)) if unknown.param is None else {
            self.tensor(unknown.param)
        }  # fmt: skip
        self.unsure |= names
        if unknown.stores:
            for name in names & set(self.places):
                text = f"{statement_text(unknown.statement)}: {unknown.reason}"
                self._footprint(name).doubts.append(text)

    def _give_up(self, access: GlobalAccess, reason: str) -> None:
        stores = access.kind != LOAD
        self._unknown(Undecided(access.statement, reason, access.param, stores))

    def _footprint(self, name: str) -> TensorFootprint:
        return self.footprints.setdefault(name, TensorFootprint())

    def _access(self, preparer: Preparer, access: GlobalAccess, needed: set[str]) -> None:
        value = self.params.get(access.param)
        name = self.tensor(access.param)
        where = self.places.get(name)
        prepared = preparer.prepare(access)
        if not len(prepared.points):  # it never runs: its pointer may be null
            if access.kind != LOAD:
                self._footprint(name)
            return
        if where is None:
            raise UndecidedError(f"memory of {access.param}, which is no argument")
        if prepared.doubt:
            self.inexact[id(access)] = prepared.doubt
        if isinstance(value, TensorMapArg):
            if access.kind == LOAD:
                misaligned_box(self, prepared, value)
            else:
                negative_box(self, prepared)
            pieces = box_pieces(prepared, value) if name in needed else []
        elif isinstance(value, Pointer):
            pieces = plain_pieces(prepared, value.offset)
            misaligned(self, pieces)
        else:
            raise UndecidedError(f"parameter {access.param}, which is no pointer to a tensor")
        if any(out_of_bounds(self, piece, where) for piece in pieces):
            self.broken.add(name)
        elif name in needed:
            self.pieces.setdefault(name, []).extend(pieces)
        if access.kind != LOAD:
            footprint = self._footprint(name)
            if prepared.doubt:
                footprint.doubts.append(f"{statement_text(access.statement)}: {prepared.doubt}")
            else:
                footprint.pieces += pieces

    # -- tensors ----------------------------------------------------------------------------------

    def _tensor(self, name: str) -> None:
        """Compare the accesses of one tensor with each other and with its elements."""
        pieces, where = self.pieces[name], self.places[name]
        stores = [p for p in pieces if p.access.kind != LOAD]
        if name in self.broken or not pieces:
            return
        try:
            lattice = Lattice(pieces, where, self.deadline)
            conflict = self._across(name, lattice) if stores and self.num_ctas > 1 else None
            stranger = lattice.strangers()
            doubtful = any(id(p.access) in self.inexact for p in stores)
            whole = bool(stores) and not doubtful and not len(lattice.holes())
        except (UndecidedError, MemoryError) as error:
            self.undecide(pieces[0].access.statement, f"{name}: {error}")
            return
        if stores and not (conflict or name in self.unsure or name in self.shared):
            self.disjoint.append(name)
        if conflict is not None:
            self._conflict(name, conflict)
        if stranger is not None:
            piece, owner, byte = stranger
            verb = "reads" if piece.access.kind == LOAD else "writes"
            text = (
                f"{self.cta(owner)} {verb} byte {byte} of the memory that {name} is a view of, "
                f"which is none of {name}'s own elements"
            )
            self.report("OUT_OF_VIEW", piece.access, text, buffer=name, byte_range=(byte, byte + 1))
        if stores:
            self._footprint(name).whole = whole

    def _across(self, name: str, lattice: Lattice) -> Conflict | None:
        """Return a conflict of CTAs that do not communicate.

        CTAs that communicate may have ordered their accesses. The runs check this: they run
        together.
        """
        conflict = lattice.conflict()
        if conflict is None:
            return None
        group = self._groups()
        if group is None:
            return conflict
        across = lattice.conflict(group)
        if across is None:
            self.shared.append(name)
        return across

    def _groups(self) -> np.ndarray | None:
        """Return for each CTA its group of communicating CTAs; None: each is alone."""
        groups = groups_of(self.func, self.setup)
        known = groups.label is not None
        self.order_known = known or not (
            groups.communication or groups.trouble or self.walker.communicates
        )
        return groups.launched(self.setup["cluster"])

    def _conflict(self, name: str, conflict: Conflict) -> None:
        pieces = (conflict.first, conflict.second)
        ctas = [self.cta(owner) for owner in conflict.owners]
        verbs = ["stores to" if p.access.kind != LOAD else "loads" for p in pieces]
        element = element_at(self.places[name], conflict.byte)
        where = f"byte {conflict.byte} of {name}, element {element}"
        text = f"{ctas[0]} {verbs[0]} {where}, and {ctas[1]} {verbs[1]} it"
        statements = tuple(dict.fromkeys(statement_text(p.access.statement) for p in pieces))
        if not self.order_known:
            why = f"{text}: they may be ordered by flags"
            self.undecide(pieces[0].access.statement, why)
            return
        doubts = [self.inexact[id(p.access)] for p in pieces if id(p.access) in self.inexact]
        if doubts:
            self.undecide(pieces[0].access.statement, f"{text}, if it happens: {doubts[0]}")
            return
        rule = "RACE_WRITE_WRITE" if all(p.access.kind != LOAD for p in pieces) else (
            "RACE_READ_INFLIGHT"
        )  # fmt: skip
        self.report(
            rule,
            pieces[0].access,
            text,
            buffer=name,
            byte_range=(conflict.byte, conflict.byte + 1),
            statements=statements,
            agents=tuple(ctas),
            missing="CTAs that touch memory of their own, or an order between the two",
        )

    def _text(self, decided: int) -> str:
        text = f"{self.num_ctas} CTA{'s' * (self.num_ctas != 1)}"
        bad = {f.statements for f in self.found.values() if f.severity == "error"}
        good = decided - len(bad)
        text += f": indices of {good} statement{'s' * (good != 1)} in bounds and aligned"
        if self.disjoint:
            text += f", stores to {', '.join(sorted(self.disjoint))} disjoint"
        if self.shared:
            text += f", {', '.join(sorted(self.shared))} shared by CTAs that communicate"
        return text


def element_at(where: TensorPlacement, byte: int) -> tuple[int, ...]:
    """Return the index of a tensor's element at a byte of its memory."""
    array, left = where.array, byte - where.offset
    index = [0] * array.ndim
    for d in sorted(range(array.ndim), key=lambda d: -abs(array.strides[d])):
        if array.strides[d] > 0:
            index[d] = min(left // array.strides[d], array.shape[d] - 1)
            left -= index[d] * array.strides[d]
    return tuple(index)


def check_every_cta(
    func: Any,
    setup: Mapping[str, Any],
    arrays: Mapping[str, np.ndarray],
    all_run: bool = False,
    budget_s: float = BUDGET_S,
) -> Coverage:
    """Check the indices of every CTA of a launch, without running any.

    - `func` (tvm.tirx.PrimFunc): final device function, as code is printed from it.
    - `setup` (dict): params, grid, block, cluster: see `tvm_hopper.sim.launch.host.Launch.bind`.
    - `arrays` (dict): every tensor that the parameters point into, by name; only its place and its
      strides count.
    - `all_run`: every CTA is simulated as well: an undecided access is then no finding.
    - `budget_s`: seconds after which open accesses stay undecided.
    - returns: findings: OOB_ACCESS, OUT_OF_VIEW, MISALIGNED, RACE_WRITE_WRITE and
      RACE_READ_INFLIGHT of two CTAs, each of a CTA that it names; and INCOMPLETE.
    """
    return Checker(func, setup, arrays, all_run, budget_s).run()


def check_outputs(
    coverages: Sequence[Coverage],
    outputs: Sequence[str],
    arrays: Mapping[str, np.ndarray],
    all_run: bool = False,
) -> tuple[list[Finding], list[str]]:
    """Find elements of outputs that no launch stores to.

    - `coverages`: of every launch of a function.
    - `outputs`: names of tensors that hold nothing before.
    - `arrays` (dict): as for `check_every_cta`.
    - returns: OUTPUT_COVERAGE and INCOMPLETE findings, and the names of the outputs that are
      covered.
    """
    findings, covered = [], []
    for name in outputs:
        prints = [c.footprints[name] for c in coverages if name in c.footprints]
        if not prints or arrays[name].size == 0:
            continue
        if any(p.whole for p in prints):
            covered.append(name)
            continue
        where = place(arrays[name])
        doubts = [d for p in prints for d in p.doubts]
        try:
            lattice = Lattice([piece for p in prints for piece in p.pieces], where)
            cells = lattice.holes()
        except (UndecidedError, MemoryError) as error:
            doubts, cells = [str(error)], np.zeros(1, np.int64)
        if not len(cells):
            covered.append(name)
        elif doubts:
            if not all_run:
                text = f"{name}: not known whether every element is stored to: {doubts[0]}"
                findings.append(finding("INCOMPLETE", text, buffer=name))
        else:
            findings.append(_uncovered(name, where, lattice, cells))
    return findings, covered


def _uncovered(name: str, where: TensorPlacement, lattice: Lattice, cells: np.ndarray) -> Finding:
    missing = int(lattice.bytes_in(cells).sum()) // where.array.itemsize
    starts = [lattice.byte_of(int(c)) for c in (cells[0], cells[-1])]
    first, last = min(starts), max(starts)
    index = element_at(where, first)
    return finding(
        "OUTPUT_COVERAGE",
        f"{name}: {missing} of {where.array.size} elements are never written by any CTA, the first "
        f"of them {index}",
        buffer=name,
        byte_range=(first, last + where.array.itemsize),
    )
