"""Chips of compute capability 9.0: number of SMs, bandwidth and clock rates of each.

Everything else that a kernel is built for is the same on all of them, see `facts.arch`. A kernel is
right on each; what is best may differ, so that the choice of a configuration asks here.

Sources: "NVIDIA H100 Tensor Core GPU Architecture" (H100 SXM5 and PCIe), "NVIDIA Grace Hopper
Superchip Architecture" (GH200), and for H800, H20 and H200 what the driver reports there as
`cudaDevAttrMultiProcessorCount`; bandwidth, power, L2 and the rate of the tensor cores are those of
the parts' data sheets. Only an H200 was measured. SXM parts, and a GH200, clock up to 1980 MHz, an
H100 PCIe up to 1755; cycles of all of them are counted at the latter.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

NUM_SMS = {
    "h100-sxm": 132,
    "h100-pcie": 114,
    "h200": 132,
    "h800": 132,  # SXM
    "h20": 78,
    "gh200": 132,
}
NUM_SMS_ATTR = "feature.num_sms"  # of a target: how many SMs its device has
# GH100 has eight GPCs of nine TPCs of two SMs, of which parts lack some (NVIDIA H100 whitepaper).
MOST_GPCS, SMS_OF_TPC = 8, 2
DEFAULT_NUM_SMS = 132  # what a part is taken for that nothing is said of
MOST_PORTABLE_CLUSTER = 8  # thread blocks, on every part (CUDA programming guide)
# Clusters of 2, 3 and so on to 16 thread blocks, each of which fills an SM, that an H200's 132 SMs
# hold at once (cuOccupancyMaxActiveClusters).
CLUSTERS = (66, 39, 30, 22, 17, 15, 15, 9, 7, 7, 7, 7, 7, 7, 7)


@dataclass(frozen=True)
class Chip:
    """The rates of a chip for estimates, as shares of an H200's.

    Attributes
    ----------
    num_sms
        SMs that thread blocks run on.
    megahertz
        Clock that an SM's cycles are counted in.
    memory_rate
        Bytes a second of the device's memory: 1 is 4.8 TB/s.
    tensor_rate
        Products a cycle of one SM's tensor cores: 1 is 2048 multiply-adds of 16-bit values.
    power_rate
        Watts that the chip may take: 1 is 700.
    l2_bytes
        Bytes of the L2 cache.
    """

    num_sms: int = DEFAULT_NUM_SMS
    megahertz: float = 1755.0
    memory_rate: float = 1.0
    tensor_rate: float = 1.0
    power_rate: float = 1.0
    l2_bytes: int = 50 << 20

    @property
    def memory_share(self) -> float:
        """An SM's share of the device's memory, in bytes a cycle: 1 is that of an H200."""
        return self.memory_rate * DEFAULT_NUM_SMS / self.num_sms

    def holds_clusters(self, size: int) -> bool:
        """Tell whether several clusters of so many thread blocks are sure to find room at once."""
        return size <= MOST_PORTABLE_CLUSTER or self.num_sms >= DEFAULT_NUM_SMS

    def clusters(self, size: int) -> int:
        """Return how many clusters of so many thread blocks run at once, one block an SM.

        A cluster lies in one part of the chip (GPC), and these have no multiple of every size.
        Other parts than the one measured are taken to have as many for each SM.
        """
        if size <= 1:
            return self.num_sms
        return max(CLUSTERS[size - 2] * self.num_sms // DEFAULT_NUM_SMS, 1)


CHIPS = {
    "h200": Chip(132),
    "h100-sxm": Chip(132, memory_rate=3.35 / 4.8),
    "h100-pcie": Chip(114, memory_rate=2.0 / 4.8, power_rate=0.5),
    "h800": Chip(132, memory_rate=3.35 / 4.8),
    "h20": Chip(78, memory_rate=4.0 / 4.8, tensor_rate=0.25, l2_bytes=60 << 20),
    "gh200": Chip(132, memory_rate=4.0 / 4.8),
}


def chip_of(part: str | None, num_sms: int) -> Chip:
    """Return the rates of a part by its name, else an H200's, with as many SMs as are said."""
    return replace(CHIPS.get(part or "", Chip()), num_sms=num_sms)


def sms_together(num_sms: int) -> int:
    """Return how many SMs at least one GPC has, of so many: a cluster lies in one.

    However a part's SMs are spread, one GPC has the average or more, in whole TPCs.
    """
    tpcs = num_sms // SMS_OF_TPC
    return SMS_OF_TPC * -(-tpcs // MOST_GPCS)


def balanced_blocks(tiles: int, num_sms: int) -> int:
    """Return how many thread blocks share output tiles, when an SM holds one block at a time.

    No more than the slowest needs: 512 tiles take four turns on 132 SMs as on 128, which leaves
    the others more power and bandwidth.
    """
    turns = -(-tiles // num_sms)
    return -(-tiles // turns)
