"""Functions and divisions in fewer instructions, and types that CUDA has no functions for."""

from .forbid_fma_contraction import ForbidFmaContraction as ForbidFmaContraction
from .lower_float_math import LowerFloatMath as LowerFloatMath
