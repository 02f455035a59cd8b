"""Hand-written Hopper kernels that are right, each with switches that make it wrong in one way."""
