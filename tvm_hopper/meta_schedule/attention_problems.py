"""Search space of softmax attention: tiles, rings, the order of tiles and of consumers.

tiles        what registers and shared memory hold: `schedule/attention/choose.py`
stages       two slots, and three where they fit
order        tiles in turn by as many blocks as SMs, or a block for each
consumers    multiply when they are ready, or one after another
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from tvm_hopper import schedule as hs
from tvm_hopper.dlight.attention import may_be_attention
from tvm_hopper.errors import HopperError
from tvm_hopper.schedule import BY_DEVICE
from tvm_hopper.schedule.attention.apply import attention_shape
from tvm_hopper.schedule.attention.choose import AttentionShape, choose_attention, rank_attention

from .configurations import Configuration
from .problems import Floats, Problem, bytes_of
from .scheduling import canonical

STAGES = (2, 3)
FAR = 1.5  # times the least estimate, beyond which tiles are left out
IN_ORDER_LOSS = 1.01  # it gained nothing on an H200


@dataclass(frozen=True, eq=False)
class AttentionProblem(Problem):
    """Attention with static extents; `shape` is what the package's own choice depends on."""

    shape: AttentionShape

    def built_in(self) -> Configuration:
        """Return what leaves all choices to the package."""
        return hs.AttentionConfig()

    def resolved(self, config: Configuration) -> Configuration:
        """Return the configuration with the choices of the package."""
        with self.target:
            return choose_attention(self.shape, cast(hs.AttentionConfig, config))

    def configurations(self) -> list[Configuration]:
        """List every tile that is not far from the best, with what goes with it."""
        found: dict[Configuration, None] = {}
        for stages in STAGES:
            for persistent in (BY_DEVICE, 0):
                given = hs.AttentionConfig(stages=stages, persistent=persistent)
                with self.target:
                    ranked = rank_attention(self.shape, given)
                for one in (x.config for x in ranked):
                    plain = replace(
                        given,
                        tile=one.tile,
                        consumers=one.consumers,
                        splits=one.splits,
                        packs=one.packs,
                    )
                    found[plain] = None
                    if one.consumers and one.consumers > 1:
                        found[replace(plain, in_order=True)] = None
        configs = list(found)
        times = self.estimates(configs)
        return [x for x, us in zip(configs, times.tolist(), strict=True) if us < FAR * times.min()]

    def estimates(self, configs: list[Configuration]) -> Floats:
        """Return the estimates of `schedule/attention/choose.py`."""
        with self.target:
            times = [self._time(cast(hs.AttentionConfig, x)) for x in configs]
        return np.asarray(times, dtype=np.float64)

    def _time(self, config: hs.AttentionConfig) -> float:
        us = rank_attention(self.shape, config)[0].microseconds
        return us * (IN_ORDER_LOSS if config.in_order else 1)

    def shape_of(self, config: Configuration) -> Any:
        """Return the tile."""
        return cast(hs.AttentionConfig, self.resolved(config)).tile

    def features(self, configs: list[Configuration]) -> Floats:
        """Return rows, keys and slots of a tile, parts, and flags."""
        return np.array([self._row(cast(hs.AttentionConfig, self.resolved(x))) for x in configs])

    def _row(self, config: hs.AttentionConfig) -> list[float]:
        rows, keys = config.tile or (1, 1)
        return [
            np.log2(rows / 128),
            (keys - 128) / 64,
            float((config.stages or 2) - 2),
            np.log2(config.splits or 1),
            1.5 * float(not config.persistent),
            0.5 * float(bool(config.in_order)),
        ]


def as_attention(func: Any, target: Any) -> AttentionProblem | None:
    """Return the problem of a static function of one attention, None if it is none."""
    mod = canonical(func)
    if not may_be_attention(mod["main"]):
        return None
    try:
        shape = attention_shape(mod["main"])
        if shape.rows is None or shape.keys is None or shape.heads is None:
            return None
        extents = shape.heads, shape.rows, shape.keys
        columns = shape.depth, shape.columns
        form = f"attention {shape.dtype} {columns} group {shape.group} band {shape.band}"
        multiply_adds = shape.heads * shape.rows * shape.keys * sum(columns)
        multiply_adds //= 2 if shape.is_masked else 1
        moved = bytes_of(mod["main"])
        problem = AttentionProblem(mod, target, form, extents, moved, multiply_adds, shape)
        problem.schedule(problem.built_in())
    except HopperError:
        return None
    return problem
