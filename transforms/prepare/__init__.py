"""Make exact what TVM leaves open: annotations, tile extents, guards, bounds, row pointers."""

from .compact_tiles import CompactTiles as CompactTiles
from .expand_inner_pipelines import ExpandInnerPipelines as ExpandInnerPipelines
from .fuse_thread_axes import FuseThreadAxes as FuseThreadAxes
from .hoist_store_guards import HoistStoreGuards as HoistStoreGuards
from .index_row_pointers import IndexRowPointers as IndexRowPointers
from .lower_to_opaque_blocks import LowerToOpaqueBlocks as LowerToOpaqueBlocks
from .propagate_tile_guards import PropagateTileGuards as PropagateTileGuards
from .record_configuration import RecordConfiguration as RecordConfiguration
from .restore_axis_annotations import RestoreAxisAnnotations as RestoreAxisAnnotations
from .simplify_register_indices import SimplifyRegisterIndices as SimplifyRegisterIndices
