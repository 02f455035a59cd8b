"""Reductions across the threads of a block (shuffles) and the blocks of a cluster."""

from .reduce_across_threads import ReduceAcrossThreads as ReduceAcrossThreads
