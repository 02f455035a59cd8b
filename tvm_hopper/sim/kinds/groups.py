"""Groups of communicating CTAs, and which groups are alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import tirx

from tvm_hopper.sim.kinds.flow import BLOCK, CtaExchange, Flow, flow_of
from tvm_hopper.sim.kinds.grid_values import MAX_CTAS, GridValues
from tvm_hopper.sim.kinds.keys import Keys, UnprovableError
from tvm_hopper.sim.launch.tensors import Pointer
from tvm_hopper.sim.tir import param_names

MAX_SORTED = 1 << 20  # CTAs that communicate with others, sorted into kinds one group at a time
MAX_REACH = 1 << 40  # bytes: an index without a bound reaches further


@dataclass(frozen=True)
class CtaGroups:
    """The CTAs of a launch, sorted.

    - `values`: maps a CTA's number to its (x, y, z).
    - `label` (numpy.ndarray or None): (total,) int64, the smallest number of each CTA's group;
      None: all groups are alike, or the groups are unknown.
    - `kinds` (tuple of numpy.ndarray): numbers of the CTAs of one group of each kind, the first one
      of that kind.
    - `trouble`: why groups that are missing in `kinds` are not proved alike; empty if they are.
    - `communication`: the access by which they communicate; empty if only CTAs of a cluster do.
    """

    values: GridValues
    label: np.ndarray | None
    kinds: tuple[np.ndarray, ...]
    trouble: str = ""
    communication: str = ""

    def launched(self, cluster: Sequence[int]) -> np.ndarray | None:
        """Return for each CTA, in the order of launch, its group; None: each is alone.

        Without `label` the groups are the clusters.
        """
        gx, gy, gz = self.values.grid
        if self.label is not None:  # numbered with blockIdx.z fastest
            return self.label.reshape(gx, gy, gz).transpose(2, 1, 0).ravel()
        cx, cy, cz = (int(c) for c in cluster)
        if cx * cy * cz == 1:
            return None
        number = np.arange(gx * gy * gz, dtype=np.int64)
        x, y, z = number % gx // cx, number // gx % gy // cy, number // (gx * gy) // cz
        return (z * gy + y) * gx + x


def groups_of(
    func: tirx.PrimFunc, setup: Mapping[str, Any], extra_keys: Sequence[np.ndarray] = ()
) -> CtaGroups:
    """Sort the CTAs of a launch into groups that communicate, and these into kinds.

    Two groups are alike if there is a way to pair their CTAs so that everything that steers
    synchronisation has the same value in both of a pair, and two words by which CTAs communicate
    are one in one group where they are one in the other. They then do the same at other
    addresses.

    - `setup` (dict): params, grid, cluster: see `Launch.bind`.
    - `extra_keys` (sequence of numpy.ndarray): further keys, by the CTA's number, that must agree
      in both CTAs of a pair.
    """
    flow = flow_of(func)
    values = GridValues(func, setup["params"], setup["grid"], flow.block_vars, flow.binds)
    keys = Keys(flow, values)
    communication = flow.exchanges[0].name if flow.exchanges else ""
    total, trouble = values.total, ""
    if flow.meeting:  # one group of all CTAs
        reason = f"every CTA meets all others at {flow.meeting}"
        return CtaGroups(values, np.zeros(total, np.int64), (), reason, flow.meeting)
    clustered = int(np.prod(setup["cluster"])) > 1
    if total > (MAX_SORTED if flow.exchanges else MAX_CTAS) and (flow.exchanges or flow.steering):
        return CtaGroups(values, None, (), f"{total} CTAs are too many to sort", communication)
    table: list[np.ndarray] = []
    try:
        table = [*_table(flow, keys), *(key for key in extra_keys if (key != key[0]).any())]
    except UnprovableError as error:
        trouble = str(error)
    if not flow.exchanges and not table:
        return CtaGroups(values, None, () if trouble else (_first_cluster(setup),), trouble)
    clusters = [_clusters(values, setup["cluster"])] if clustered else []
    try:
        exchanged = _Words(func, setup["params"], keys).of(flow.exchanges, total)
    except UnprovableError as error:
        return CtaGroups(values, None, (), str(error), communication)
    label = _components(total, [*clusters, *exchanged])
    if trouble:
        return CtaGroups(values, label, (), trouble, communication)
    return CtaGroups(values, label, _kinds(label, table, exchanged), "", communication)


def _table(flow: Flow, keys: Keys) -> list[np.ndarray]:
    """Return one key for each thing that steers and differs between CTAs, without doubles."""
    found: dict[bytes, np.ndarray] = {}
    for expr in flow.steering:
        for key in keys.of(expr):
            if (key != key[0]).any():
                found.setdefault(key.tobytes(), key)
    return list(found.values())


def _first_cluster(setup: Mapping[str, Any]) -> np.ndarray:
    """Return the numbers of the CTAs of the cluster at the origin."""
    _, y, z = setup["grid"]
    i, j, k = (np.arange(extent, dtype=np.int64) for extent in setup["cluster"])
    return ((i[:, None, None] * y + j[:, None]) * z + k).ravel()


def _clusters(values: GridValues, cluster: Sequence[int]) -> np.ndarray:
    """Return the number of each CTA's cluster."""
    x_of, y_of, z_of = (values.axis(axis) for axis in "xyz")
    shape = [-(-g // c) for g, c in zip(values.grid, cluster, strict=True)]
    return (x_of // cluster[0] * shape[1] + y_of // cluster[1]) * shape[2] + z_of // cluster[2]


class _Words:
    """The words by which CTAs communicate, as numbers: one array (total,) an access."""

    def __init__(self, func: tirx.PrimFunc, params: Mapping[str, Any], keys: Keys) -> None:
        self.keys = keys
        names = param_names(func)
        self.pointers = {
            param: params[name]
            for param, name in zip(func.params, names, strict=True)
            if isinstance(params.get(name), Pointer)
        }

    def of(self, exchanges: Sequence[CtaExchange], first: int) -> list[np.ndarray]:
        """Return for each access the number, from `first`, of the memory that each CTA reaches.

        Accesses with overlapping bytes reach the same memory, also transitively.
        """
        spans: dict[str, list[tuple[int, np.ndarray, np.ndarray]]] = {}
        for number, communication in enumerate(exchanges):
            tensor, low, high = self._span(communication)
            spans.setdefault(tensor, []).append((number, low, high))
        found: dict[int, np.ndarray] = {}
        for parts in spans.values():
            low = np.concatenate([part[1] for part in parts])
            high = np.concatenate([part[2] for part in parts])
            order = np.argsort(low, kind="stable")
            reach = np.maximum.accumulate(high[order])
            starts = np.ones(low.size, bool)
            starts[1:] = low[order][1:] >= reach[:-1]
            numbers = np.empty(low.size, np.int64)
            numbers[order] = np.cumsum(starts) + first
            first = int(numbers.max())
            for (number, _, _), part in zip(parts, np.split(numbers, len(parts)), strict=True):
                found[number] = part
        return [found[i] for i in range(len(exchanges))]

    def _span(self, communication: CtaExchange) -> tuple[str, np.ndarray, np.ndarray]:
        """Return the tensor and the first and last byte that each CTA reaches by an access."""
        pointer, size, total = self.pointers.get(communication.tensor), communication.itemsize, None
        if len(communication.index) == 1 and not self.keys.flow.taint(communication.index[0]) - {
            BLOCK
        }:
            total = self.keys.sum(communication.index[0])
        if pointer is None or total is None:
            raise UnprovableError(f"which words CTAs share by {communication.name} is not known")
        low, high = total.added.low, total.added.high
        if max(-low, high) * size > MAX_REACH:
            raise UnprovableError(f"which words CTAs share by {communication.name} is not known")
        count = self.keys.values.total
        block = np.broadcast_to(np.asarray(total.block, np.int64), (count,))
        start = pointer.offset + (block + low) * size
        return pointer.tensor, start, start + (high - low + 1) * size


def _components(total: int, words: Sequence[np.ndarray]) -> np.ndarray:
    """Return the smallest CTA that each one is connected to by words of the same number."""
    label = np.arange(total, dtype=np.int64)
    if not words:
        return label
    count = max(int(numbers.max()) for numbers in words) + 1
    while True:
        before = label.copy()
        least = np.full(count, total, np.int64)
        for numbers in words:
            np.minimum.at(least, numbers, label)
        for numbers in words:
            np.minimum.at(label, before, least[numbers])  # the root of each learns it too
            label = np.minimum(label, least[numbers])
        label = label[label]
        if np.array_equal(label, before):
            return label


def _kinds(
    label: np.ndarray, table: Sequence[np.ndarray], exchanged: Sequence[np.ndarray]
) -> tuple[np.ndarray, ...]:
    """Return one group of each kind, as the numbers of its CTAs."""
    order = np.argsort(label, kind="stable")
    starts = np.flatnonzero(np.diff(label[order], prepend=-1))
    sizes = np.diff(starts, append=label.size)
    found: dict[Any, np.ndarray] = {}
    if not exchanged:  # groups of one size each: rows of one matrix
        for size in np.unique(sizes):
            members = order[starts[sizes == size][:, None] + np.arange(size)]
            rows = np.stack([key[members] for key in table], axis=-1) if table else members[..., :0]
            _, where = np.unique(rows.reshape(len(members), -1), axis=0, return_index=True)
            found.update({(size, n): members[n] for n in np.sort(where)})
        return tuple(found.values())
    for start, size in zip(starts.tolist(), sizes.tolist(), strict=True):
        members = order[start : start + size]
        words = np.concatenate([numbers[members] for numbers in exchanged])
        _, first, inverse = np.unique(words, return_index=True, return_inverse=True)
        row = (size, first[inverse].tobytes(), *(key[members].tobytes() for key in table))
        found.setdefault(row, members)
    return tuple(found.values())
