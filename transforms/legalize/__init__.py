"""Last rewrites for what CUDA's code generator and compiler accept or compile well."""

from .barrier_after_zero_trip_loops import BarrierAfterZeroTripLoops as BarrierAfterZeroTripLoops
from .legalize_vectors import LegalizeVectors as LegalizeVectors
from .unpack_half_pairs import UnpackHalfPairs as UnpackHalfPairs
from .unroll_register_loops import UnrollRegisterLoops as UnrollRegisterLoops
