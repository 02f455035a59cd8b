"""Instructions on barriers, copies and addresses, short: they take `bar[0]`, not its address."""

from tvm.script import tirx as T


def init_mbarrier(bar, count):
    """Initialise a barrier of `count` arrivals."""
    return T.ptx.mbarrier.init.shared.b64(T.address_of(bar), T.uint32(count))


def set_up(tx, *barriers, sync=lambda: T.tvm_storage_sync("shared")):
    """Let thread 0 initialise barriers, of (bar[0], count) each; then all threads meet, or none."""
    with T.If(tx == 0), T.Then():
        for bar, count in barriers:
            T.evaluate(init_mbarrier(bar, count))
        T.evaluate(T.ptx.fence.mbarrier_init.release.cluster())
    if sync is not None:
        T.evaluate(sync())


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


def expect_and_load(tile, tensor, num_bytes, bar):
    """Expect the bytes of a copy, and issue it."""
    T.evaluate(expect_bytes(bar, num_bytes))
    T.evaluate(load_bytes(tile, tensor, num_bytes, bar))


def store_bytes(tensor, tile, num_bytes):
    """Copy bytes from shared memory, in a bulk group."""
    return T.ptx["cp.async.bulk.global.shared::cta.bulk_group"](
        T.address_of(tensor), T.address_of(tile), T.uint32(num_bytes)
    )


def store_and_wait(tensor, tile, num_bytes, read=False):
    """Copy bytes from shared memory; wait until they are written, or only read."""
    T.evaluate(store_bytes(tensor, tile, num_bytes))
    T.evaluate(T.ptx.cp.async_.bulk.commit_group())
    T.evaluate(T.ptx["cp.async.bulk.wait_group" + ".read" * read](0))


def poll(load, word, flag):
    """Load a flag to a register until it is not 0."""
    T.buffer_store(word, T.uint32(0), [0])
    with T.While(word[0] == T.uint32(0)):
        T.evaluate(T.ptx[load](word[0], T.address_of(flag)))


def map_to_rank(address, place, rank):
    """Write the address that a place of shared memory has in another block of the cluster."""
    shared = T.cuda.cvta_generic_to_shared(T.address_of(place))
    return T.ptx.mapa.shared__cluster.u32(address, shared, T.Cast("uint32", rank))
