"""TMA: tiled copies (`cp.async.bulk.tensor`, PTX ISA 9.1, 9.7.9.27.1.2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm.script import tirx as T

from .cache import hinted

_STORE = "cp.async.bulk.tensor.{rank}d.global.shared::cta.tile.bulk_group"
_REDUCE = "cp.reduce.async.bulk.tensor.{rank}d.global.shared::cta.{operation}.tile.bulk_group"
_LOAD = "cp.async.bulk.tensor.{rank}d.shared::cluster.global.mbarrier::complete_tx::bytes"
_MULTICAST = _LOAD + ".multicast::cluster"


def prefetch(tensor_map: Any) -> Any:
    """Fetch a tensor map, a parameter of the kernel, into the cache that copies read it from.

    `prefetch.tensormap`, PTX ISA 9.1, 9.7.9.17; `tensor_map` is a pointer to its 128 bytes.
    """
    return T.ptx.prefetch.tensormap(tensor_map)


def load(
    tile: Any, tensor_map: Any, coordinates: Sequence[Any], barrier: Any, policy: Any = None
) -> Any:
    """Copy a box from global memory; its bytes complete on an mbarrier.

    - `tile`: pointer to where the box goes in this thread block's shared memory.
    - `tensor_map`: pointer to the 128-byte map of the tensor.
    - `coordinates`: where the box begins, in elements, innermost dimension first; int32. Their
      number is the rank, 1 to 5.
    - `barrier`: pointer to the mbarrier. It counts whole boxes, elements out of bounds included.
    - `policy`: what L2 is to do with the bytes (`cache.create_policy`); None says nothing.
    """
    name, more = hinted(_LOAD.format(rank=len(coordinates)), policy)
    return T.ptx[name](tile, tensor_map, *coordinates, barrier, *more)


def load_multicast(
    tile: Any,
    tensor_map: Any,
    coordinates: Sequence[Any],
    barrier: Any,
    mask: Any,
    policy: Any = None,
) -> Any:
    """Copy a box to the same place in several blocks of a cluster, and complete on each one's own.

    `mask`, a uint16, has a bit for each block by its rank in the cluster; tile and barrier lie at
    the same offsets in each of them. The other parameters are those of `load`.
    """
    name, more = hinted(_MULTICAST.format(rank=len(coordinates)), policy)
    return T.ptx[name](tile, tensor_map, *coordinates, barrier, mask, *more)


def store(tile: Any, tensor_map: Any, coordinates: Sequence[Any]) -> Any:
    """Copy a box to global memory, as part of this thread's next bulk group.

    What lies out of the map's bounds is not written. `tile` points to where the box begins in this
    thread block's shared memory; the other parameters are those of `load`.
    """
    return T.ptx[_STORE.format(rank=len(coordinates))](tensor_map, *coordinates, tile)


def reduce(tile: Any, tensor_map: Any, coordinates: Sequence[Any], operation: str) -> Any:
    """Combine a box with what global memory holds, as part of this thread's next bulk group.

    Each element by a relaxed atomic operation at gpu scope (PTX ISA 9.1, 9.7.9.27.2). `operation`
    is one of "add", "min", "max", "and", "or", "xor"; the type is that of the map. The other
    parameters are those of `store`.
    """
    instruction = _REDUCE.format(rank=len(coordinates), operation=operation)
    return T.ptx[instruction](tensor_map, *coordinates, tile)
