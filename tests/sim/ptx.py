"""Instructions on barriers, copies and addresses, short: they take `bar[0]`, not its address."""

from tvm.script import tirx as T


def init_mbarrier(bar, count):
    """Initialise a barrier of `count` arrivals."""
    return T.ptx.mbarrier.init.shared.b64(T.address_of(bar), T.uint32(count))


def set_up(tx, *barriers):
    """Let thread 0 initialise barriers, of (bar[0], count) each, for all threads."""
    with T.If(tx == 0), T.Then():
        for bar, count in barriers:
            T.evaluate(init_mbarrier(bar, count))
        T.evaluate(T.ptx.fence.mbarrier_init.release.cluster())
    T.evaluate(T.tvm_storage_sync("shared"))


def arrive(bar):
    """Arrive once, and release what was written."""
    return T.ptx.mbarrier.arrive.shared.b64(T.address_of(bar))


def expect_bytes(bar, num_bytes):
    """Arrive, and let the phase wait for the bytes of copies too."""
    return T.ptx.mbarrier.arrive.expect_tx.shared.b64(T.address_of(bar), T.uint32(num_bytes))


def wait(bar, parity):
    """Wait for a phase of that parity."""
    return T.cuda.mbarrier_wait(T.address_of(bar), parity)


def load_bytes(tile, tensor, num_bytes, bar):
    """Copy bytes to shared memory; they count at the barrier."""
    return T.ptx["cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"](
        T.address_of(tile), T.address_of(tensor), T.uint32(num_bytes), T.address_of(bar)
    )


def store_bytes(tensor, tile, num_bytes):
    """Copy bytes from shared memory, in a bulk group."""
    return T.ptx["cp.async.bulk.global.shared::cta.bulk_group"](
        T.address_of(tensor), T.address_of(tile), T.uint32(num_bytes)
    )


def map_to_rank(address, place, rank):
    """Write the address that a place of shared memory has in another block of the cluster."""
    shared = T.cuda.cvta_generic_to_shared(T.address_of(place))
    return T.ptx.mapa.shared__cluster.u32(address, shared, T.Cast("uint32", rank))
