"""`AttentionConfig`: tile, rings and roles of an attention kernel."""

from __future__ import annotations

from dataclasses import dataclass

from tvm_hopper.errors import cannot_schedule
from tvm_hopper.facts import wgmma
from tvm_hopper.requests.keys import BY_DEVICE
from tvm_hopper.schedule.arguments import as_int, as_pair
from tvm_hopper.schedule.given_fields import GivenFields
from tvm_hopper.schedule.products.config import CONSUMERS, Roles
from tvm_hopper.schedule.products.field_values import MOST_BLOCKS

WHERE = "attention config"
KEY_STEP = wgmma.instruction_k("float16")  # keys that an instruction multiplies values with


@dataclass(frozen=True, repr=False)
class AttentionConfig(GivenFields):
    """One way to compute attention with TMA, mbarrier rings and WGMMA.

    Parameters
    ----------
    tile : (int, int), optional
        Query rows of a thread block, a multiple of 64 for each consumer, and keys of a step, a
        multiple of 16. None: chosen from the head dimensions and lengths.
    stages : int, optional
        Slots of the rings of key tiles and of value tiles. None: 2.
    consumers : int, optional
        Consumer warp groups, which share the rows of a tile: 1, 2 or 3. None: one for each 64 rows.
    registers : (int, int), optional
        Registers of a producer and of a consumer thread. None: the default of the consumers.
    overlap : bool, optional
        Multiply values with the weights of a step while the next step's are computed. None: where
        the ring has two slots or more.
    in_order : bool, optional
        Let consumers multiply one after another: one computes weights while another one keeps the
        tensor cores busy. None: no, since consumers that are not in step do so by themselves.
    splits : int, optional
        Parts that the keys are split into, which a second kernel merges. None: as many as fill the
        chip where there are few queries.
    persistent : int, optional
        Thread blocks that share all tiles, so that loads of the next tile overlap the end of one;
        0: one block a tile, BY_DEVICE (-1): as many as the device has room for. None: BY_DEVICE
        where there are more tiles than SMs. Where a mask makes later rows see more keys a block
        takes tiles in pairs, of two heads, the second from the other end.
    packs : bool, optional
        Whether heads that share keys are rows of one tile. None: where a tile has room for them.

    Raises
    ------
    ScheduleError
        A field is out of range.
    """

    tile: tuple[int, int] | None = None
    stages: int | None = None
    consumers: int | None = None
    registers: tuple[int, int] | None = None
    overlap: bool | None = None
    in_order: bool | None = None
    splits: int | None = None
    persistent: int | None = None
    packs: bool | None = None

    def __post_init__(self) -> None:
        need = "query rows of a thread block and keys of a step, e.g. (128, 128)"
        self.set_fields(tile=as_pair(WHERE, "tile", self.tile, need))
        counts = dict.fromkeys(("stages", "splits"), (1, None))
        self.set_ints(WHERE, {**counts, "consumers": (1, max(CONSUMERS))})
        self.set_fields(
            persistent=as_int(WHERE, "persistent", self.persistent, BY_DEVICE, MOST_BLOCKS)
        )
        self.check_flags(WHERE, "overlap", "in_order", "packs")
        if self.overlap and self.stages == 1:
            need = "two slots or more: values of one step and keys of the next are read at once"
            raise cannot_schedule(WHERE, "overlap=True with stages=1", need)
        roles = Roles(self.consumers or 2, self.registers)
        self.set_fields(registers=roles.registers)
        if self.tile is None:
            return
        rows, keys = self.tile
        each = wgmma.INSTRUCTION_M * (self.consumers or 1)
        if rows <= 0 or rows % each or keys <= 0 or keys % KEY_STEP:
            need = f"rows, a multiple of {each}, and keys, a multiple of {KEY_STEP}"
            raise cannot_schedule(WHERE, f"tile={self.tile}", need)
