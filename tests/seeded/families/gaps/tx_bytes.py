"""Bytes that an mbarrier expects against those of the copies that are really issued."""

from ...golden import b_multicast, b_two_copies, b_two_threads
from ...rows import OVERFLOW, OVERWRITE, READ, TX, Golden, mutations

COPIES = Golden("B two copies", b_two_copies.build)
THREADS = Golden("B two threads", b_two_threads.build)
MULTICAST = Golden("B multicast", b_multicast.build)
GOLDEN = (COPIES, THREADS, MULTICAST)

MUTATIONS = mutations(
    (
        ("B01", COPIES, "halves counted as floats", f"{TX} + DEADLOCK", "SVX"),
        ("B02", COPIES, "one of two buffers counted", TX, "SVX"),
        ("B03", COPIES, "a copy under a predicate", f"{TX} + DEADLOCK", "SVX"),
        ("B04", COPIES, "a clipped box counted as clipped", f"{TX} + DEADLOCK", "SVX"),
        ("B05", COPIES, "right in the sum of all trips", f"{TX} + DEADLOCK", "SVX"),
        ("B06", COPIES, "half of the row is loaded", f"{TX} + DEADLOCK", "SVX"),
        ("B07", COPIES, "a copy signals another barrier", f"{TX} + DEADLOCK", "SVX"),
        ("B08", THREADS, "each thread expects for both", f"{TX} + DEADLOCK", "SVX"),
        ("B09", THREADS, "two threads, init count 1", OVERFLOW, "SV"),
        ("B10", THREADS, "every lane expects", f"{TX} + DEADLOCK", "SVX"),
        ("B11", THREADS, "the second thread expects nothing", TX, "V"),
        ("B12", THREADS, "right bytes in the wrong place", f"{OVERWRITE} + UNINIT_READ", "V"),
        ("B13", MULTICAST, "the bytes that the CTA itself issues", TX, "SVX"),
        ("B14", MULTICAST, "the mask names the own CTA", f"{TX} + DEADLOCK", "SVX"),
        ("B15", MULTICAST, "one CTA leaves its last copy out", f"{TX} + DEADLOCK", "SVX"),
        ("B16", MULTICAST, "too much here, too little there", TX, "SVX"),
        ("B17", MULTICAST, "slot reused when one CTA has met", f"{READ}/{OVERWRITE} + {TX}", "V"),
    )
)
