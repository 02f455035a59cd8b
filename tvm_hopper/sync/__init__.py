"""The sync engine: places waits, fences and barriers into a small abstract program.

    for k:                                 for k:
        Step(C[k] = acc)          ->           Wait(wgmma_group)     iteration k - 1 writes acc
        Step(acc += A B, wgmma)                Step(C[k] = acc)
                                               Fence(wgmma)
                                               Step(acc += A B, wgmma)
                                               Commit(wgmma_group)
                                           Wait(wgmma_group)         nothing is left in flight

`program` has the data types, `nodes` the program as a tree with paths, and `state` the lattice and
its transfer functions. `check` analyses a tree with placed syncs, `place` searches for syncs, and
`defined` finds whether a ring's old content is ever read. Imports the facts and nothing else of
this package.
"""

from .defined import reads_its_own_copies as reads_its_own_copies
from .place import place_syncs as place_syncs
from .program import (
    Access as Access,
    Barrier as Barrier,
    Body as Body,
    Branch as Branch,
    Buffer as Buffer,
    Commit as Commit,
    Fence as Fence,
    Loop as Loop,
    Open as Open,
    Path as Path,
    Placement as Placement,
    Space as Space,
    Step as Step,
    Sync as Sync,
    Wait as Wait,
    WaitPhase as WaitPhase,
)
