"""Sparse operands of mma.sp: a dense A with zeros where the metadata says, element by element."""

import numpy as np

PAIRS = ("u4", "s4")
ORDERED = ((0, 1), (0, 2), (1, 2), (0, 3), (1, 3), (2, 3))


def chunk_of(kind):
    """Return the columns that one field of metadata stands for."""
    return {"tf32": 2, "u4": 8, "s4": 8}.get(kind, 4)


def holder(kind, depth, row, chunk, selector):
    """Return the lane and the lowest bit of a field (figures 119, 122, 125, 127, 129, 136 to 147).

    Of 16-bit and tf32 elements a lane has four chunks of two rows; of narrower ones eight of one.
    """
    group, upper = 4 * (row % 8), int(row >= 8)
    chunks = depth // chunk_of(kind)
    if kind in ("f16", "bf16", "tf32"):
        lane = selector if chunks == 4 else 2 * selector + chunk // 4
        return group + lane, 16 * upper + 4 * (chunk % 4)
    return group + 2 * selector + 2 * (chunk // 8) + upper, 4 * (chunk % 8)


def draw(rng, kind, depth, values, selector, ordered=True):
    """Return A as it is stored (16, depth / 2), dense (16, depth), and 32 words of metadata."""
    dense = np.zeros((16, depth))
    words = [int(w) for w in rng.integers(0, 2**32, 32)]  # what no field is in means nothing
    width = chunk_of(kind)
    for row in range(16):
        for chunk in range(depth // width):
            stored = values[row, chunk * width // 2 : (chunk + 1) * width // 2]
            if kind == "tf32":
                place = int(rng.integers(2))
                dense[row, chunk * 2 + place] = stored[0]
                field = 0b1110 if place else 0b0100
            else:
                first, second = ORDERED[rng.integers(6)]
                if not ordered and rng.random() < 0.5:
                    first, second = second, first
                together = width // 4
                for n, at in enumerate((first, second)):
                    for x in range(together):
                        column = chunk * width + at * together + x
                        dense[row, column] = stored[n * together + x]
                field = first | second << 2
            lane, bit = holder(kind, depth, row, chunk, selector)
            words[lane] = words[lane] & ~(15 << bit) | field << bit
    return dense, np.array(words, np.uint32)
