"""Schedule helpers: turn plain loops into Hopper kernels, whole or step by step.

from tvm_hopper import schedule as hs
"""

from tvm_hopper.requests.keys import BY_DEVICE

from .attention.apply import attention
from .attention.cache_loops import cache_loops
from .attention.config import AttentionConfig
from .attention.online import online
from .attention.paged import paged_attention
from .cluster import share_loads
from .column_reduction.apply import column_reduction
from .column_reduction.config import ColumnReductionConfig
from .memory_bound.widen import widen_sums
from .pointwise.apply import pointwise
from .pointwise.config import PointwiseConfig
from .products.apply import matmul
from .products.branches import size_classes
from .products.class_choice import choose_classes
from .products.config import MatmulConfig, Roles
from .products.direct_shape import DirectShape
from .products.dot_shape import DotShape
from .products.field_values import Raster, SplitK, TmaStore
from .products.fuse import fuse_epilogue, fuse_prologue
from .products.model import choose_config
from .products.normalize import normalize
from .products.pixel_boxes import box_pixels
from .products.ranges import choose_ranges
from .products.tile_groups import tile_groups
from .reductions import across_blocks, across_cluster
from .row_reduction.apply import row_reduction
from .row_reduction.config import RowReductionConfig
from .steps import async_copy, async_store, pad, pipeline, wgmma
from .tile_order import raster

__all__ = [
    "BY_DEVICE",
    "AttentionConfig",
    "ColumnReductionConfig",
    "DirectShape",
    "DotShape",
    "MatmulConfig",
    "PointwiseConfig",
    "Raster",
    "Roles",
    "RowReductionConfig",
    "SplitK",
    "TmaStore",
    "across_blocks",
    "across_cluster",
    "async_copy",
    "async_store",
    "attention",
    "box_pixels",
    "cache_loops",
    "choose_classes",
    "choose_config",
    "choose_ranges",
    "column_reduction",
    "fuse_epilogue",
    "fuse_prologue",
    "matmul",
    "normalize",
    "online",
    "pad",
    "paged_attention",
    "pipeline",
    "pointwise",
    "raster",
    "row_reduction",
    "share_loads",
    "size_classes",
    "tile_groups",
    "wgmma",
    "widen_sums",
]
