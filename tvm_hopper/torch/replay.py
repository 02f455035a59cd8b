"""Calls of a built graph by replaying CUDA graphs.

first call with new sizes: two runs, then a capture of the third
later calls: copy inputs, replay, copy results
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from typing import Any

import torch

from .graph_build import GraphCall, order_streams

MOST_GRAPHS = 64  # of one captured program; the one that was replayed longest ago is forgotten
WARM_UP = 2


class _Captured:
    """One CUDA graph with its inputs and results."""

    def __init__(self, call: GraphCall, given: tuple[Any, ...], copied: list[int]) -> None:
        self.copied, self.index = copied, call.index
        self.inputs = list(given)
        with torch.inference_mode(False), torch.no_grad():  # later calls may be in another mode
            for i in copied:
                self.inputs[i] = given[i].clone()
        with torch.cuda.device(call.device):
            side, current = torch.cuda.Stream(), torch.cuda.current_stream()
            side.wait_stream(current)
            with torch.cuda.stream(side):
                for _ in range(WARM_UP):  # modules load outside of the capture
                    call(*self.inputs)
            current.wait_stream(side)
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
                self.results = call(*self.inputs)

    def __call__(self, given: tuple[Any, ...]) -> list[Any]:
        order_streams(self.index)
        for i in self.copied:
            self.inputs[i].copy_(given[i])
        self.graph.replay()
        return [x.clone() if isinstance(x, torch.Tensor) else x for x in self.results]


class ReplayedGraph:
    """Replays a CUDA graph for each set of sizes.

    - `fixed` (collection of int): places of inputs that stay where they are, as weights do. They
      are not copied; where one moved, another graph is captured.
    """

    def __init__(self, call: GraphCall, fixed: Collection[int]) -> None:
        self.call = call
        self.fixed = sorted(x.place for x in call.imported.arguments if x.place in fixed)
        self.copied = [x.place for x in call.imported.arguments if x.place not in fixed]
        self.graphs: OrderedDict[Any, _Captured] = OrderedDict()

    def __call__(self, *given: Any) -> list[Any]:
        """Return the results, in memory of their own."""
        if torch.cuda.is_current_stream_capturing():  # the caller's graph has the kernels
            return self.call(*given)
        key = (
            tuple(int(given[i]) for i in self.call.imported.sizes.values()),
            tuple(given[i].data_ptr() for i in self.fixed),
        )
        captured = self.graphs.get(key)
        if captured is None:
            captured = _Captured(self.call, given, self.copied)
            self.graphs[key] = captured
            if len(self.graphs) > MOST_GRAPHS:
                self.graphs.popitem(last=False)
        self.graphs.move_to_end(key)
        return captured(given)
