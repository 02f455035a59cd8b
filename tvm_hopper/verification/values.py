"""The last stage of `verify`: compares the kernel's results with a plain program.

Two runs of chosen CTAs over their whole sums, on integers and on normal numbers, and short ones on
special numbers, where the program does more than add and multiply. Their output is compared
element by element: bit for bit where every order of the plain program's operations gives the same
(on integers, usually), else within the bound of `Reference.evaluate`.

On integers all CTAs run if that is little work. Otherwise representatives of the others run
(`sim.kinds.representatives`), and some in between. The cost of a run grows with the length of the
sums: where it would take too long, fewer CTAs run, and they end after some of their output tiles.
With several launches, and with CTAs that accumulate into one output, the CTAs that the chosen ones
depend on run too (`sim.coverage.traffic`). The report states how much was compared.
"""

from __future__ import annotations

import gc
import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm import ir

from tvm_hopper.reference.evaluate import Outside, Reference, TooMuchWork
from tvm_hopper.reference.plain import PlainProgramError
from tvm_hopper.sim import Finding, Result, RunOptions
from tvm_hopper.sim.cta_selection import Choice
from tvm_hopper.sim.findings import finding
from tvm_hopper.sim.grid import index_of
from tvm_hopper.sim.kernel_code import touched_tensors
from tvm_hopper.sim.kinds.flow import flow_of
from tvm_hopper.sim.kinds.representatives import Representatives, representatives
from tvm_hopper.sim.launch.arguments import complete
from tvm_hopper.sim.tir import nodes_in, short_name
from tvm_hopper.verification.case import Case
from tvm_hopper.verification.compare import Comparison, compare
from tvm_hopper.verification.numbers import Numbers, blank_memory, choose_numbers
from tvm_hopper.verification.special_numbers import ONE_DRAW, SpecialNumbers, special_numbers

POLICY, SEED = "eager", 0
WORK = {"integers": 5.4e8, "normal": 1.35e8}  # multiply-adds, about, that one run may simulate
LITTLE = 1000  # steps of warps that one run of all CTAs may take: a second, or less
ELEMENTS = 256  # elements stored in the time of one step, estimated
MOST_KINDS = 48  # CTAs that run for all others
WORDS = {"integers": "integers", "normal": "normal numbers", "special": "special numbers"}
MOST_CTAS = 8  # CTAs between the representatives
ADDING = re.compile("atom|cp_reduce|red(_|$)")  # names of instructions that add to memory
MUCH = 32  # times that, where CTAs need each other: half a minute of each
MOST_ELEMENTS = 1 << 24  # largest tensor that is compared whole
SOME = 4  # times that: from there on only those run that the chosen ones need
NOT_GIVEN = (
    "not checked: no plain program is known (verify(..., against=...); of a schedule, the module "
    "before its first hs.* helper)"
)


@dataclass(frozen=True)
class ValueReport:
    """Whether values were compared, and how many.

    - `checked`: false: the kernel's results were not compared.
    - `text`: description of the comparison, or why there is none.
    """

    checked: bool
    text: str


NOTHING_LAUNCHED = ValueReport(False, "not checked: nothing was launched")


@dataclass(frozen=True)
class _Extent:
    """The CTAs that run, and the elements that they end after.

    The last launch that stores to a tensor makes its final contents: with `last`, only these are
    compared, since not all tiles of earlier launches are continued.
    """

    blocks: list[Any]
    stop_after: int | None
    last: bool = False


class ValueCheck:
    """Compares one program with its plain one.

    - `case`: its values are arguments of any kind, for their shapes.
    - `requested`: the chosen CTAs were requested: no others run.
    - `steps`: about how many all CTAs together would take; None: not known.
    """

    def __init__(
        self, reference: Reference, case: Case, requested: bool = False, steps: float | None = None
    ) -> None:
        self.reference, self.case, self.requested, self.steps = reference, case, requested, steps
        self.program, self.inputs = case.program, case.inputs
        self.launches, self.choices, self.related = case.launches, case.choices, case.related
        self.values, self.outputs = case.values, case.outputs
        self.speaking: dict[int, Representatives | None] = {}
        self.names = [argument.name for argument in self.program.arguments]
        self.findings: list[Finding] = []
        reference.sizes(self._in_order(self.values))  # raises an error if the parameters differ

    def _in_order(self, values: Mapping[str, Any]) -> list[Any]:
        return [values[name] for name in self.names]

    def run(self, end: float) -> ValueReport:
        """Make both runs until a deadline of the monotonic clock; errors are in `findings`."""
        texts = []
        try:
            numbers = choose_numbers(self.reference, self.names, self._in_order(self.values))
            for kind in numbers:
                gc.collect()  # the memory of the run before: its machine and warps hold each other
                found, _ = self._one(kind, self._extent(kind.kind), end)
                compared = ", ".join(map(str, found)) or "nothing was written"
                texts.append(f"on {WORDS[kind.kind]} {compared}")
            texts += self._special(numbers[1], end)
        except MemoryError as error:
            text = f"{error or 'what is needed'} does not fit into memory"
            self.findings.append(
                finding("INCOMPLETE", f"values: {text}", hint="verify a smaller shape")
            )
            return ValueReport(False, f"not checked: {text}")
        except (PlainProgramError, _NotCompared) as error:
            message = f"values: {error}"
            self.findings.append(finding("INCOMPLETE", message, hint="verify a smaller shape"))
            return ValueReport(False, f"not checked: {error}")
        self.findings = [*map(_outside, self.reference.outside), *self.findings]
        name = self.reference.program.name
        return ValueReport(True, f"compared with {name}: " + "; ".join(texts))

    # -- runs -------------------------------------------------------------------------------------

    def _extent(self, kind: str) -> _Extent:
        """Choose the CTAs of one run, and its end."""
        arguments = self._in_order(self.values)
        stored = sum(arguments[place].size for place in self.reference.output_places)
        num_outputs = max(len(self.reference.output_places), 1)
        work = self.reference.one_element(arguments).work / num_outputs
        if kind == "special":  # whole rows run, since their elements share their inputs
            work = min(work, self.reference.everything(arguments).work / max(stored, 1))
        most = WORK.get(kind, ONE_DRAW)
        elements_left = most / max(work, 1)  # elements that may be computed
        every = min(stored * work, self.reference.everything(arguments).work)
        little = self.steps is not None and self.steps + stored / ELEMENTS <= LITTLE
        if kind == "integers" and little and every <= WORK[kind] and not self.requested:
            return _Extent([None] * len(self.launches), None)
        adds = any(_adds(launch.func) for launch in self.launches)
        if len(self.launches) == 1 and not self._communicates() and not adds:
            return self._some(self.choices[0], kind, elements_left, stored)
        blocks = self._of_several(kind, adds, most * SOME / every if every else math.inf)
        steps = self._share(blocks) * every
        if steps > most * MUCH:
            raise _NotCompared(
                f"CTAs that need each other compute about {steps:.1e} steps, more than the "
                f"{most * MUCH:.1e} that are simulated for values"
            )
        return _Extent(blocks, None, any(blocks))

    def _of_several(self, kind: str, adds: bool, share: float) -> list[Any]:
        """Choose the CTAs of launches, or of CTAs, that need each other.

        Where they would do more than a share of the work, fewer of them, if that is known.
        """
        blocks = self.case.chosen
        if any(blocks) and (adds or self._read_what_others_write()):
            blocks = [None] * len(self.launches)
        elif any(blocks) and self._communicates() and not self.requested:
            blocks = self._needed(kind, share) or blocks
        if (
            not adds and not self._communicates()
        ):  # a launch whose output no other touches may run in part
            last = [self._is_last(i) for i in range(len(self.launches))]
            blocks = [
                self._part(i, kind) if is_last else blocks[i] for i, is_last in enumerate(last)
            ]
        if self._share(blocks) > share:
            blocks = self._needed(kind, share) or blocks
        return blocks

    def _share(self, blocks: Sequence[Any]) -> float:
        """Return the share of the work that some CTAs of any launch do.

        One that loads nothing, as where memory is cleared, has no sums to compute.
        """
        parts = [
            len(some) / choice.total if some else 1
            for some, choice, launch in zip(blocks, self.choices, self.launches, strict=True)
            if touched_tensors(launch.func, launch.setup["params"])[1]
        ]
        return max(parts, default=0)  # empty tensors launch nothing

    def _needed(self, kind: str, share: float) -> list[Any] | None:
        """Choose some CTAs of the launches that store last, and those without which they err.

        As many as do at most a share of the work, on integers at least two; None if the dependences
        between CTAs are unknown.
        """
        related = self.related
        if related is None:
            return None
        wanted = {i: self._spread(i, kind) for i in related.last}
        most = max(map(len, wanted.values()), default=0)
        for count in (most, MOST_CTAS, MOST_CTAS // 2, 2 if kind == "integers" else 1):
            few = {
                i: (blocks[::-1] if kind == "normal" else blocks)[:count]
                for i, blocks in wanted.items()
            }
            found = related.with_needed(few)
            found = [
                None if one.everything else some
                for one, some in zip(self.choices, found, strict=True)
            ]
            if self._share(found) <= share:
                break
        return found

    def _some(self, choice: Choice, kind: str, elements_left: float, stored: int) -> _Extent:
        """Choose some CTAs of the only launch; each computes independently."""
        blocks = self._spread(0, kind)
        if kind == "normal":  # others first, if not all of them run
            blocks.reverse()
        per_cta = stored / choice.total
        if elements_left >= per_cta * len(blocks):
            return _Extent([None if len(blocks) >= choice.total else blocks], None)
        fewest = min(2 if kind == "integers" else 1, len(blocks))
        count = max(int(elements_left / per_cta), fewest)
        may_stop = self._stored(0) <= choice.only_written  # nothing is stored, and added to later
        stop = max(int(elements_left), 1) if may_stop and count * per_cta > elements_left else None
        return _Extent([blocks[:count]], stop)

    def _part(self, number: int, kind: str) -> list[tuple[int, ...]] | None:
        """Choose the CTAs of a launch whose CTAs compute independently; None: all."""
        found = self._spread(number, kind)
        return None if len(found) >= self.choices[number].total else found

    def _is_last(self, number: int) -> bool:
        """Return whether no other launch touches the tensors that a launch stores to."""
        others = (x for i, x in enumerate(self.launches) if i != number)
        stored = self._stored(number)
        return not any(
            stored & loaded_or_stored
            for launch in others
            for loaded_or_stored in touched_tensors(launch.func, launch.setup["params"])
        )

    def _speaking(self, number: int) -> list[tuple[int, ...]]:
        """Return representative CTAs of a launch, as many as may run."""
        if number not in self.speaking:
            launch = self.launches[number]
            extra_keys = self.related.extra_keys[number] if self.related is not None else ()
            self.speaking[number] = representatives(launch.func, launch.setup, extra_keys)
        found = self.speaking[number]
        return [] if found is None else list(found.blocks[:MOST_KINDS])

    def _kinds(self, number: int) -> int:
        found = self.speaking[number]
        return 0 if found is None else found.kinds

    def _spread(self, number: int, kind: str) -> list[tuple[int, ...]]:
        """Add CTAs to those that stand for the others in their synchronisation.

        On integers, which distinguish places: representatives of the others' values, and some in
        between. On normal numbers: one of each kind of representative.
        """
        choice = self.choices[number]
        blocks = list(choice.blocks)
        if self.requested:
            return blocks
        speaking = self._speaking(number)
        if kind == "normal" and speaking:
            return list(dict.fromkeys([blocks[0], *blocks, *speaking[: self._kinds(number)]]))
        ends = [blocks[0], *speaking, blocks[-1]]
        grid = self.launches[number].setup["grid"]
        places = (choice.total * i // MOST_CTAS + i for i in range(1, MOST_CTAS))
        spread = [index_of(place % choice.total, grid) for place in places]
        return list(dict.fromkeys([*ends, *blocks, *spread]))

    def _communicates(self) -> bool:
        """Return whether CTAs communicate; then those of a group run together, or none."""
        communicates = any(flow_of(launch.func).exchanges for launch in self.launches)
        left_out = [one.reason for one in self.choices if not one.covered]
        if communicates and left_out:
            raise _NotCompared(f"CTAs that communicate did not all run: {left_out[0]}")
        return communicates

    def _read_what_others_write(self) -> bool:
        """Return whether a launch reads the output of a launch that ran partly."""
        partly: set[str] = set()
        for number, (launch, choice) in enumerate(zip(self.launches, self.choices, strict=True)):
            stored, loaded = touched_tensors(launch.func, launch.setup["params"])
            if partly & (stored | loaded):
                return True
            if not choice.everything:
                partly |= self._stored(number)
        return False

    def _stored(self, number: int) -> set[str]:
        launch = self.launches[number]
        return touched_tensors(launch.func, launch.setup["params"])[0]

    # -- one run ----------------------------------------------------------------------------------

    def _special(self, usual: Numbers, end: float) -> list[str]:
        """Make the draws of special numbers that are cheap; return how many."""
        try:
            extent = self._extent("special")
        except _NotCompared:  # too much work for some more numbers
            return []
        arguments = {name: self.values[name] for name in self.names}
        whole = self.reference.everything(self._in_order(self.values)).work
        share = self._share(extent.blocks)
        drawn = set(self.names) - set(self.inputs) - set(self.outputs)
        draws = special_numbers(self.reference, arguments, drawn, usual, share, share * whole)
        count, writers = 0, None
        for draw in draws:
            if self.findings:
                break
            try:
                _, writers = self._one(draw, extent, end, writers)
            except _NotCompared:
                if time.monotonic() < end:
                    raise
                break  # two runs have been compared
            count += 1
        return [f"on {count} draws of special numbers"] if count else []

    def _one(
        self, kind: Numbers | SpecialNumbers, extent: _Extent, end: float, writers: Any = None
    ) -> tuple[list[Comparison], Any]:
        """Run and compare once; also returns the writers.

        `writers` are those of an earlier run of the same CTAs: then this one is not watched.
        """
        values, missing = complete(self.program.arguments, self.inputs, blank_memory)
        for argument in self.program.arguments:  # outputs need no numbers
            if argument.name in set(missing) - set(self.outputs):
                kind.fill(argument, values[argument.name])
        result = self._simulate(values, extent, end, writers is None or bool(extent.stop_after))
        if writers is not None:
            result.writers = writers
        found = self._compare(values, result, extent)
        if result.ended_early and any(one.wrong for one in found):  # perhaps it was not ready
            result = self._simulate(values, replace(extent, stop_after=None), end)
            found = self._compare(values, result, extent)
        where = f"on {WORDS[kind.kind]}"
        self.findings += [one.finding(where, result) for one in found if one.wrong]
        return found, result.writers

    def _simulate(
        self, values: Mapping[str, Any], extent: _Extent, end: float, watched: bool = True
    ) -> Result:
        left = end - time.monotonic()
        if left <= 0:
            raise _NotCompared("no time was left (budget_s)")
        options = RunOptions(
            POLICY, SEED, watched, left, record_writers=watched, stop_after=extent.stop_after
        )
        result = self.case.run(extent.blocks, options, values=values)
        # a run that was ended on purpose leaves unfinished work
        found = result.findings
        self.findings += [x for x in found if not result.ended_early or x.severity == "error"]
        if result.stopped and not result.ended_early:
            raise _NotCompared("the run did not come to its end")
        if extent.last:
            result.writers = {name: found[-1:] for name, found in result.writers.items()}
        return result

    def _compare(
        self, values: Mapping[str, Any], result: Result, extent: _Extent
    ) -> list[Comparison]:
        arguments = self.reference, self.names, values, result
        whole = self._held_before(values)
        if any(extent.blocks) or result.ended_early or not whole:
            return compare(*arguments)
        try:
            return compare(*arguments, whole)
        except TooMuchWork:  # more work than allowed for unwritten elements
            return compare(*arguments)

    def _held_before(self, values: Mapping[str, Any]) -> list[str]:
        """Return the tensors in which a store that is left out shows no hole: old values stay."""
        names = [self.names[place] for place in self.reference.output_places]
        tensors = [name for name in names if name not in self.outputs]
        return [name for name in tensors if 0 < values[name].size <= MOST_ELEMENTS]


def _outside(found: Outside) -> Finding:
    """Report an index in an argument that leads the plain program outside of a tensor."""
    source = f", read from {', '.join(found.sources)}," if found.sources else ""
    return finding(
        "OOB_ACCESS",
        f"index {found.index}{source} leads the plain program outside of {found.tensor}, which has "
        f"{found.extent} elements along axis {found.axis}; the kernel may read another row there",
        buffer=found.tensor,
        hint="give indices inside of the tensor, or guard the access in the program",
    )


def _adds(func: Any) -> bool:
    """Return whether a kernel adds to memory: then an element may be the work of several CTAs."""
    names = {short_name(call).rpartition(".")[2] for call in nodes_in(func.body, ir.Call)}
    return any(ADDING.match(name) for name in names)


class _NotCompared(Exception):
    """Why the values of a program are not compared."""
