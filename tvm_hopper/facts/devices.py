"""What differs from one part of compute capability 9.0 to another: how many SMs it has.

Everything else that a kernel is built for is the same on all of them, see `facts.arch`.

Sources: "NVIDIA H100 Tensor Core GPU Architecture" (H100 SXM5 and PCIe), "NVIDIA Grace Hopper
Superchip Architecture" (GH200), and for H800, H20 and H200 what the driver reports there as
`cudaDevAttrMultiProcessorCount`.
"""

NUM_SMS = {
    "h100-sxm": 132,
    "h100-pcie": 114,
    "h200": 132,
    "h800": 132,  # SXM
    "h20": 78,
    "gh200": 132,
}
DEFAULT_NUM_SMS = 132  # what a part is taken for that nothing is said of


def balanced_blocks(tiles: int, num_sms: int) -> int:
    """Return how many thread blocks share output tiles, when an SM holds one block at a time.

    No more than the slowest needs: 512 tiles take four turns on 132 SMs as on 128, which leaves
    the others more power and bandwidth.
    """
    turns = -(-tiles // num_sms)
    return -(-tiles // turns)
