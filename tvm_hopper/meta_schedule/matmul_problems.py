"""Search space of products: legal tiles, stages, rasterization and split-K.

tiles        what the chip can hold: `schedule/products/candidates.py`, both ways to multiply
stages       the deepest ring, and one that leaves shared memory for other data
order        tiles as the grid has them, or in groups of rows by as many blocks as SMs
parts        1; 2, 4, 8 where tiles alone leave SMs without work
clusters     that load for one another, where the package's choice may be one: pairs in all
             orders, larger ones in one
ping-pong    consumers that alternate between tiles, of shallow sums and several waves
dots         of one or two rows, dot products by threads
direct       of few rows, warps that load what they multiply
store        by each thread, or through shared memory
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple, dataclass, replace
from typing import Any, cast

import numpy as np
import tvm_ffi
from tvm import s_tir, tirx

import tvm_hopper.schedule as hs
from tvm_hopper.errors import HopperError
from tvm_hopper.facts.dtypes import HALF_DTYPES, dtype_bytes
from tvm_hopper.schedule import BY_DEVICE, MatmulConfig
from tvm_hopper.schedule.products.branches import ProductSite, look_at
from tvm_hopper.schedule.products.candidates import as_candidates, candidates
from tvm_hopper.schedule.products.class_choice import estimate_all
from tvm_hopper.schedule.products.config import ARCH, find_violations, most_stages
from tvm_hopper.schedule.products.direct_choice import estimate_direct
from tvm_hopper.schedule.products.direct_shape import DirectShape, padded_rows, steps_of
from tvm_hopper.schedule.products.dot_choice import (
    choose_dots,
    choose_shape,
    estimate_dots,
    may_be_dots,
)
from tvm_hopper.schedule.products.dot_shape import VECTOR_BYTES, DotShape
from tvm_hopper.schedule.products.gather import choose_tile, excluded, is_whole, plain_config
from tvm_hopper.schedule.products.model import MOST_TRANSPOSED, as_product, in_rows, rank_both
from tvm_hopper.schedule.products.parts import in_clusters, without_allocator
from tvm_hopper.schedule.products.product_shape import ProductShape
from tvm_hopper.schedule.products.ring_and_order import num_tiles

from .configurations import Configuration
from .problems import Floats, Problem, bytes_of
from .scheduling import canonical, reductions_of

PARTS = (1, 2, 4, 8)
MOST_WAVES = 2  # of tiles, above which parts of a sum are not tried
FEWEST_STEPS = 4  # of the ring, for each part
GROUPS = (1, 4, 8, 16)  # rows of tiles that are visited together
TURNS, MOST_STEPS_IN_TURNS = (2, 3), 8  # consumers, and steps of a sum above which they lose
NUM_FEATURES = 21
CLUSTER_FEATURE_SCALE = 0.7  # near enough to each other that one of them tells of the next
# Times the least estimate, beyond which tiles are left out. Of 16x29568x4096, all 1672 measured on
# an H200, none of the 156 beyond it came within 1.47 of the best.
FAR = 2.0
MOST_DOT_ROWS = 2  # of the output, above which dot products are not tried
DOT_THREADS = (
    (32, 4),
    (64, 1),
    (64, 2),
    (128, 1),
    (128, 2),
    (192, 1),
    (256, 1),
    (512, 1),
)  # and groups
MOST_DIRECT_ROWS = 16
DIRECT_WARPS = (2, 4, 8, 16)
DOT_VECTORS = (2, 4, 5, 7, 8, 14)
WIDEST_STORE = 16  # columns of which a tile that leaves through shared memory is a multiple


@dataclass(frozen=True, eq=False)
class MatmulProblem(Problem):
    """A product with static extents, its casts and its epilogue."""

    dtype: str
    out_dtype: str
    majors: tuple[str, str]
    accumulate: str | None
    gathered: int = 0  # columns that a tile holds whole for one output, 0: it takes one element
    batch: int = 1  # products of these extents

    def built_in(self) -> MatmulConfig:
        """Return what leaves all choices to the package."""
        return MatmulConfig(accumulate=self.accumulate)

    @property
    def reads_whole_tensors(self) -> bool:
        """Tell whether the epilogue reads a tensor of the output's shape."""
        *read, output = (x for x in self.mod["main"].params if tirx.is_buffer_var(x))
        return any(tvm_ffi.structural_equal(x.ty.shape, output.ty.shape) for x in read[2:])

    def resolved(self, config: Configuration) -> MatmulConfig:
        """Return the configuration with the choices of `hs.choose_config`."""
        given = without_allocator(cast(MatmulConfig, config))
        m, n, k = self.extents
        if self.reads_whole_tensors:
            given = in_rows(given, m)
        if self.gathered:
            with self.target:
                given, _ = choose_tile(self._shape(), plain_config(given), self.gathered)
        if self._goes_without_tiles and may_be_dots(given) and not isinstance(given.form, DotShape):
            with self.target:
                best, *_ = rank_both(self._shape(), given, self.chip, 1)
            if given.dots or choose_dots(self._shape(), given, best.microseconds, self.chip):
                shape = choose_shape(m, n, k, self.dtype, self.chip)
                return replace(given, form=shape)
        if not given.has_tiles:
            return given
        with self.target:
            return hs.choose_config(
                m, n, k, self.dtype, given=given, majors=self.majors, out_dtype=self.out_dtype,
                batch=self.batch,
            )  # fmt: skip

    def configurations(self) -> list[Configuration]:
        """List every legal tile with what goes with it."""
        m, n, _ = self.extents
        chosen = self.resolved(self.built_in())  # of many rows the other way where it is chosen
        ways = [False, True] if m <= MOST_TRANSPOSED or chosen.transposed else [False]
        configs: dict[MatmulConfig, None] = {}
        for way in ways:
            rows, columns = (n, m) if way else (m, n)
            for tile, consumers in _tiles(self.dtype):
                if not _reaches_too_far(tile, rows, columns):
                    for config in self._around(tile, consumers, rows, columns, way):
                        configs[config] = None
        tiles: list[Configuration] = [x for x in configs if self._goes(x)]
        times = self.estimates(tiles)
        near = times < FAR * times.min(initial=np.inf)
        return [
            *(x for x, is_near in zip(tiles, near.tolist(), strict=True) if is_near),
            *(x for x in self._without_tiles() if self._goes(x)),
        ]

    @property
    def _goes_without_tiles(self) -> bool:
        """Tell whether threads and warps can compute it from what they load themselves."""
        return self.batch == 1 and self.dtype in HALF_DTYPES

    def _without_tiles(self) -> Iterator[MatmulConfig]:
        if self._goes_without_tiles:
            yield from self._dots()
            yield from self._direct()

    def _goes(self, config: MatmulConfig) -> bool:
        """Tell whether a configuration goes with what is after the product."""
        if not self.gathered:
            return True
        if excluded(config) or config.tile is None:
            return False
        return is_whole(config.tile, config.sharers, self.gathered)

    def _shape(self) -> ProductShape:
        m, n, k = self.extents
        return as_product(m, n, k, self.dtype, self.majors, self.out_dtype, self.batch)

    def _dots(self) -> Iterator[MatmulConfig]:
        """Yield ways to compute dot products, of few rows."""
        m, _, k = self.extents
        if m > MOST_DOT_ROWS or self.majors != ("k", "k"):
            return
        count = -(-k * dtype_bytes(self.dtype) // VECTOR_BYTES)
        for threads, groups in DOT_THREADS:
            for columns in (1, 2):
                for vectors in DOT_VECTORS:
                    if threads * vectors < 2 * count and columns <= m:
                        shape = DotShape(threads, groups, columns, vectors)
                        yield MatmulConfig(accumulate=self.accumulate, form=shape)

    def _direct(self) -> Iterator[MatmulConfig]:
        """Yield ways to multiply what warps load, of few rows."""
        m, n, k = self.extents
        if m > MOST_DIRECT_ROWS:
            return
        columns, depth = steps_of(self.majors[1] == "k")
        for warps in DIRECT_WARPS:
            for wide, deep in ((1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (2, 4), (4, 2)):
                shape = DirectShape(warps, wide * columns, deep * depth)
                reaches = warps * shape.depth < 2 * k and shape.columns < 2 * n
                if reaches and not shape.shortfall(padded_rows(m)):
                    yield MatmulConfig(accumulate=self.accumulate, form=shape)

    def _around(
        self, tile: tuple[int, int, int], consumers: int, rows: int, columns: int, way: bool
    ) -> Iterator[MatmulConfig]:
        """Yield what a tile is tried with."""
        form = "transposed" if way else None
        plain = MatmulConfig(tile, None, consumers, accumulate=self.accumulate, form=form)
        count = self.batch * num_tiles(rows, columns, tile)
        sms = self.chip.num_sms
        steps = -(-self.extents[2] // tile[2])
        most = min(most_stages(tile, self.dtype, ARCH), 8)
        for parts in PARTS:
            if parts > 1 and (count > MOST_WAVES * sms or steps < FEWEST_STEPS * parts):
                continue
            turns = -(-count // sms) if parts == 1 else 1  # tiles of a block share its ring
            depth = max(2, turns * -(-steps // parts))
            slots = sorted({min(most, depth), min(max(2, most - 1), depth)})
            for stages in slots:
                if find_violations(tile, stages, plain, self.dtype, ARCH):
                    continue
                for pending in (0, 1) if consumers == 1 else (0,):
                    base = replace(
                        plain,
                        stages=stages,
                        wgmma_pending=pending,
                        split_k=parts if parts > 1 else None,
                    )
                    yield from _orders(base, count, sms, -(-rows // tile[0]))
            if parts == 1 and not way:
                deepest = replace(plain, stages=min(most, depth))
                yield from self._with_mechanisms(deepest, rows, columns)

    def _with_mechanisms(
        self, base: MatmulConfig, rows: int, columns: int
    ) -> Iterator[MatmulConfig]:
        """Yield other mechanisms with their deepest ring: stores, clusters, ping-pong."""
        tile, sms = base.tile, self.chip.num_sms
        assert tile is not None
        assert base.stages is not None
        most = most_stages(tile, self.dtype, ARCH)
        count, below = self.batch * num_tiles(rows, columns, tile), -(-rows // tile[0])
        stores: list[MatmulConfig] = []
        if columns > 1 and tile[1] % WIDEST_STORE == 0 and most > 2:  # one column is no box
            stores = [replace(base, stages=min(most - 1, base.stages), store="tma")]
            yield from _orders(stores[0], count, sms, below)
        for cluster in self._clusters(base):
            plain = replace(base, wgmma_pending=int(base.consumers == 1), cluster=cluster)
            if cluster[0] * cluster[1] > 2:  # one of each: of six products none won by one
                yield next(_orders(plain, count, sms, below))
                continue
            for config in (plain, *(replace(x, cluster=cluster) for x in stores)):
                yield from _orders(config, count, sms, below)
        steps = -(-self.extents[2] // tile[2])
        if base.consumers == 1 and base.stages > 1 and count > sms and steps <= MOST_STEPS_IN_TURNS:
            for groups in TURNS:
                given: dict[str, Any] = {"consumers": groups, "schedule": "pingpong"}
                for config in _orders(base, count, sms, below):
                    made = replace(config, wgmma_pending=1, **given) if config.persistent else None
                    if made and not find_violations(tile, base.stages, made, self.dtype, ARCH):
                        yield made

    def _clusters(self, base: MatmulConfig) -> list[tuple[int, int]]:
        """Return the clusters of tiles whose blocks the package might let load for one another."""
        alone = as_candidates([base], self.dtype, self.extents[2])
        clusters = in_clusters(alone, self._shape(), base, self.chip)
        pairs = zip(
            clusters.rows_of_blocks.tolist(), clusters.columns_of_blocks.tolist(), strict=True
        )
        return [x for x in pairs if x != (1, 1)]

    def estimates(self, configs: list[Configuration]) -> Floats:
        """Return the estimates of `schedule/products/estimate.py`; what it leaves out counts 1."""
        shape = self._shape()
        given = cast("list[MatmulConfig]", configs)
        times = np.full(len(given), estimate_dots(shape, self.chip))
        times[[bool(x.direct) for x in given]] = estimate_direct(shape, self.chip)
        tiled = [i for i, config in enumerate(given) if config.has_tiles]
        if tiled:
            with self.target:
                times[tiled] = estimate_all([shape], [given[i] for i in tiled], self.chip)[0]
        sms = self.chip.num_sms
        for place, config in enumerate(given):
            if config.tile is None:
                continue
            rows, columns = self._oriented(config)
            several = num_tiles(rows, columns, config.tile) > sms
            late = several and not config.persistent and config.parts == 1
            times[place] *= 1 + 0.02 * late + 0.01 * (several and config.raster_group == 1)
            times[place] *= 1 + 0.02 * config.by_tma
        return np.asarray(times, dtype=np.float64)

    def shape_of(self, config: Configuration) -> Any:
        """Return tile and parts of a sum, or how products of few rows are made."""
        given = cast(MatmulConfig, config)
        way = "dots" if given.dots else "direct" if given.direct else given.tile
        return way, given.transposed, given.parts

    def features(self, configs: list[Configuration]) -> Floats:
        """Return waves, tail, steps, ring, registers, bytes, and what is set of the rest."""
        rows = [self._row(cast(MatmulConfig, config)) for config in configs]
        return np.array([row + [0.0] * (NUM_FEATURES - len(row)) for row in rows])

    def _oriented(self, config: MatmulConfig) -> tuple[int, int]:
        m, n, _ = self.extents
        return (n, m) if config.transposed else (m, n)

    def _row(self, config: MatmulConfig) -> list[float]:
        if isinstance(config.form, (DotShape, DirectShape)):  # far from all tiles
            far = [0.0, 5.0] if config.dots else [5.0, 0.0]
            return [*far, *(float(np.log2(x)) for x in astuple(config.form))]
        assert config.tile is not None
        tile_m, tile_n, tile_k = config.tile
        m, n = self._oriented(config)
        k, parts, sms = self.extents[2], config.parts, self.chip.num_sms
        consumers = config.sharers
        cluster = config.cluster or (1, 1)
        count = num_tiles(m, n, config.tile) * parts
        waves = count / sms
        steps = -(-k // (tile_k * parts))
        size = dtype_bytes(self.dtype)
        stages = config.stages or 2
        slot = (tile_m + tile_n) * tile_k * size
        loaded = count * steps * slot
        return [
            np.log2(max(waves, 1 / sms)) / 3,
            2 * (np.ceil(waves) / waves - 1) if waves > 1 else 0.0,
            np.log2(steps) / 3,
            stages * slot / (100 << 10),
            (stages - 4) / 3,
            tile_m * tile_n / consumers / 128 / 64,
            np.log2(loaded / (m * n + (m + n) * k) / size) / 2,
            np.log2(tile_m) / 1.5,
            np.log2(tile_n) / 1.5,
            np.log2(tile_k) / 0.7,
            float(consumers),
            float(config.wgmma_pending or 0),
            np.log2(config.raster_group or 1) / 3,
            1.5 * float((config.persistent or 0) == 0),
            np.log2(parts),
            2 * float(config.transposed),
            1.5 * float(config.by_tma),
            float(tile_n % 64 == 0),
            CLUSTER_FEATURE_SCALE * np.log2(cluster[0]),
            CLUSTER_FEATURE_SCALE * np.log2(cluster[1]),
            0.5 * (config.turns - 1) if config.turns > 1 else 0.0,
        ]


def _orders(base: MatmulConfig, count: int, sms: int, rows: int) -> Iterator[MatmulConfig]:
    """Yield the orders of tiles that differ: of one wave, groups of rows alone."""
    groups = sorted({min(group, rows) for group in GROUPS})
    if base.parts > 1 or count <= sms:
        for group in sorted({1, groups[-1]}):
            yield replace(base, raster=group, persistent=0)
        return
    for group in groups:
        yield replace(base, raster=group, persistent=BY_DEVICE)
    yield replace(base, raster=groups[-1], persistent=0)


def _tiles(dtype: str) -> Iterator[tuple[tuple[int, int, int], int]]:
    """Yield every legal tile with every number of consumers."""
    tiles = candidates(dtype, MatmulConfig())
    for place in range(len(tiles)):
        yield tiles.tile(place), int(tiles.consumers[place])


def _reaches_too_far(tile: tuple[int, int, int], rows: int, columns: int) -> bool:
    """Tell a tile of which a smaller one covers the output as well."""
    return tile[0] > max(64, -(-rows // 64) * 64) or tile[1] > max(8, -(-columns // 8) * 8)


def find_product(func: Any, target: Any) -> ProductSite | None:
    """Recognise the product of a function, static or with symbolic rows; None without one."""
    mod = hs.normalize(canonical(func))
    sch = s_tir.Schedule(mod)
    with target:
        for name in reductions_of(sch):
            try:
                return look_at(sch, name)
            except HopperError:
                continue
    return None


def as_matmul(func: Any, target: Any) -> MatmulProblem | None:
    """Return the problem of a static function with one product, None if it is none."""
    site = find_product(func, target)
    if site is None:
        return None
    found = site.problem
    extents = (found.m.extent, found.n.extent, found.depth, found.batch)
    if not all(isinstance(x, int) for x in extents):
        return None
    majors = (found.lhs.major, found.rhs.major)
    m, n, k, batch = extents
    mod = canonical(func)
    problem = MatmulProblem(
        mod,
        target,
        f"matmul {found.lhs.dtype} {site.out_dtype} {majors[0]} {majors[1]}"
        + (f" gathered {site.gathered}" if site.gathered else "")
        + (f" batch {batch}" if batch > 1 else ""),
        (m, n, k),
        bytes_of(mod["main"]),
        batch * m * n * k,
        found.lhs.dtype,
        site.out_dtype,
        majors,
        "float32" if found.acc_dtype in HALF_DTYPES else None,
        site.gathered,
        batch,
    )
    try:
        problem.schedule(problem.built_in())
    except HopperError:
        return None
    return problem
