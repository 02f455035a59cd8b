"""Check the memory accesses of all CTAs by their indices alone, without values.

The simulator runs chosen CTAs. This check finds errors of the other ones: an index out of bounds, a
store into a neighbor's tile, a tile that nothing writes, a misaligned vector.

    walk          accesses of global memory, with loops and conditions around them, as nodes
    loops         which loops are the CTA's, over tiles, and which its threads'
    points        every CTA (and iteration of its loops), as lists that conditions filter
    split         an index as a part of the CTA plus a part of its threads, exactly; CTAs fall into
                  few kinds, in each of which threads do the same
    footprint     bytes of each statement: a list of bases, and the threads' offsets of each kind
    boxes         offsets as boxes in a tensor's rows
    lattice       the tensor cut where boxes end: the CTAs that store to each cell, and the gaps
    check         the rules, and the proofs
    traffic       cells that each CTA loads and stores: CTAs of several launches that need others

A set of offsets is listed once for each kind of CTA, so conditions are exact: no superset replaces
the accesses that happen, and a report names a CTA and an element. Overlap and coverage are counted
on the cells between the ends of boxes, not on elements: a million tiles are a million cells. (To
recognise the bases as arithmetic progressions instead would need no list of CTAs, but has to give
up at each ragged edge, swizzled order of tiles or persistent loop; a list of 10^6 costs
milliseconds.)

Accesses that depend on data, or would cost more than the budgets below, are INCOMPLETE by name.
"""

from tvm_hopper.sim.coverage.check import Coverage, check_every_cta, check_outputs

__all__ = ["Coverage", "check_every_cta", "check_outputs"]
