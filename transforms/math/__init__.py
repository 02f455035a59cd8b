"""Functions and divisions in fewer instructions, and types that CUDA has no functions for."""

from .approximate_functions import ApproximateFunctions as ApproximateFunctions
from .forbid_fma_contraction import ForbidFmaContraction as ForbidFmaContraction
from .widen_narrow_floats import WidenNarrowFloats as WidenNarrowFloats
