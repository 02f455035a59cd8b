"""Memory-bound kernels: rows in registers, L2 and shared memory, vectors, online softmax."""

from .fuse_online_softmax import FuseOnlineSoftmax as FuseOnlineSoftmax
from .hoist_reduction_inits import HoistReductionInits as HoistReductionInits
from .pipeline_row_loop import PipelineRowLoop as PipelineRowLoop
from .prefetch_rows import PrefetchRows as PrefetchRows
from .vectorize_accesses import VectorizeAccesses as VectorizeAccesses
