"""Reductions across the threads of a block (shuffles) and the blocks of a cluster."""

from .fuse_mean_and_variance import FuseMeanAndVariance as FuseMeanAndVariance
from .reduce_across_threads import ReduceAcrossThreads as ReduceAcrossThreads
from .split_rows_across_cluster import SplitRowsAcrossCluster as SplitRowsAcrossCluster
