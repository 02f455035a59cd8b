"""Kernels bound by memory: rows in registers, L2 and shared memory, vectors, online softmax."""

from .fuse_online_softmax import FuseOnlineSoftmax as FuseOnlineSoftmax
from .guard_row_loop import GuardRowLoop as GuardRowLoop
from .hoist_reduction_inits import HoistReductionInits as HoistReductionInits
from .hoist_row_reciprocals import HoistRowReciprocals as HoistRowReciprocals
from .pipeline_row_loop import PipelineRowLoop as PipelineRowLoop
from .prefetch_row_scalars import PrefetchRowScalars as PrefetchRowScalars
from .prefetch_rows_to_l2 import PrefetchRowsToL2 as PrefetchRowsToL2
from .split_vector_tails import SplitVectorTails as SplitVectorTails
from .stage_rows_in_shared import StageRowsInShared as StageRowsInShared
from .unstage_rows import UnstageRows as UnstageRows
from .vectorize_gathers import VectorizeGathers as VectorizeGathers
