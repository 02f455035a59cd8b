"""Schedule helpers: a matmul becomes a Hopper kernel, whole, step by step, or by bare annotations.

from tvm_hopper import schedule as hs
"""

from tvm_hopper.keys import BY_DEVICE

from .choose import choose_config
from .config import MatmulConfig, Roles
from .fuse import fuse_epilogue, fuse_prologue
from .gemm import matmul
from .normalize import normalize
from .steps import async_copy, pad, pipeline, raster, wgmma

__all__ = [
    "BY_DEVICE",
    "MatmulConfig",
    "Roles",
    "async_copy",
    "choose_config",
    "fuse_epilogue",
    "fuse_prologue",
    "matmul",
    "normalize",
    "pad",
    "pipeline",
    "raster",
    "wgmma",
]
