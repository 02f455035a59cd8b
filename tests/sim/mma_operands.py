"""Random operands of a form of mma.sync, and its result by numpy."""

import numpy as np

from tests.sim import mma_kernels, sparse_operands
from tests.sim.ptx_fragments import TYPES, packed, places, unpacked
from tvm_hopper.sim.ops.mma_forms import find_product
from tvm_hopper.sim.ops.sparse_metadata import gathered, meaningless

RANGES = {"b1": (0, 2), "u4": (0, 16), "s4": (-8, 8), "u8": (0, 256), "s8": (-128, 128)}


def cut_to_tf32(values):
    """Cut numbers to what tf32 holds."""
    bits = values.astype(np.float32).view(np.uint32) >> np.uint32(13) << np.uint32(13)
    return bits.view(np.float32).astype(np.float64)


class Operands:
    """Random operands of a form: matrices, and the words of the lanes."""

    def __init__(self, form, seed=0, whole=True, selector=0):
        mods = mma_kernels.modifiers(*form)
        shape, kinds = mods["shape"], [mods[x] for x in ("atype", "btype", "ctype", "dtype")]
        self.kinds, self.shape, self.mods, self.selector = kinds, shape, mods, selector
        self.sparse = "spvariant" in mods
        rows, depth = (int(x) for x in shape[1:].split("n8k"))
        quads = 4 if shape == "m8n8k4" and kinds[0] == "f16" else 1
        rng = np.random.default_rng(seed)

        def drawn(kind, shape):
            low, high = RANGES.get(kind, (-3, 4))
            if whole or kind in RANGES or kind == "s32":
                return rng.integers(low, high, shape).astype(TYPES[kind]).astype(np.float64)
            kept = rng.normal(size=shape).astype(TYPES[kind]).astype(np.float64)
            return cut_to_tf32(kept) if kind == "tf32" else kept

        self.a = drawn(kinds[0], (quads, rows, depth // (2 if self.sparse else 1)))
        self.b = drawn(kinds[1], (quads, depth, 8))
        self.c = drawn(kinds[2], (quads, rows, 8))
        if kinds[2] == "s32" and not whole:  # so that some sums leave the range
            self.c = rng.choice([-1, 1], self.c.shape) * (
                2.0**31 - rng.integers(1, 99, self.c.shape)
            )
        layouts = (mods["alayout"], mods["blayout"], kinds[2])
        self.where = [
            places(shape, kind, operand, layout, self.sparse)
            for operand, kind, layout in zip("abc", kinds, layouts, strict=False)
        ]
        self.raw = [
            packed(matrix, where, kind)
            for matrix, where, kind in zip(
                (self.a, self.b, self.c), self.where, kinds, strict=False
            )
        ]
        self.words = np.zeros(32, np.uint32)
        self.dense = self.a
        if self.sparse:
            ordered = mods["spvariant"] != "sp" or kinds[0] in ("e4m3", "e5m2")
            dense, self.words = sparse_operands.draw(
                rng, kinds[0], depth, self.a[0], selector, ordered
            )
            self.dense = dense[None]

    def matrix_of(self, raw):
        """Return D as a matrix."""
        where = places(self.shape, self.kinds[3], "c", self.kinds[3])
        return unpacked(raw, where, self.kinds[3], self.c.shape)

    def computed(self):
        """Return D as the simulator's function has it."""
        mods, kinds = self.mods, self.kinds
        product = find_product(
            mods["shape"], (mods["alayout"], mods["blayout"]), tuple(kinds[:3]),
            bool(mods.get("satfinite")), d_type=kinds[3], bit_operation=mods.get("bitop", ""),
            rounding=mods.get("rnd", ""), sparse=self.sparse,
        )  # fmt: skip
        fields = None
        if self.sparse:
            fields = gathered(self.words, kinds[0], product.depth, self.selector)
            ordered = mods["spvariant"] != "sp"
            assert not len(meaningless(fields, kinds[0], ordered))
        return self.matrix_of(product.multiply(*self.raw, fields))

    def expected(self):
        """Return D by numpy, rounded once: of whole numbers."""
        if self.mods.get("bitop") == "xor":
            total = (self.dense[:, :, :, None] != self.b[:, None]).sum(2) + self.c
        else:
            total = np.einsum("pmk,pkn->pmn", self.dense, self.b) + self.c
        if self.kinds[3] != "s32":
            return total.astype(TYPES[self.kinds[3]])
        if self.mods.get("satfinite"):
            return np.array([max(-(2**31), min(2**31 - 1, int(x))) for x in total.flat]).reshape(
                total.shape
            )
        return ((total.astype(np.int64) + 2**31) % 2**32 - 2**31).astype(np.int32)
