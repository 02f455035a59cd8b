"""References for the register instructions by their names in TVM's table: bits in, bits out."""

import math

from . import ptx_reference as ref

M32 = 0xFFFFFFFF


def bits(kind):
    """Return the bits of a type of PTX."""
    name, _, lanes = kind.partition("x")
    return (ref.bits_of(name) if name in ref.SHAPES else int(name[1:])) * int(lanes or 1)


def split(word, kind):
    name, _, lanes = kind.partition("x")
    size = bits(name)
    return [word >> size * i & ((1 << size) - 1) for i in range(int(lanes or 1))]


def join(parts, size):
    return sum((part & ((1 << size) - 1)) << size * i for i, part in enumerate(parts))


def each(kind, function, *words):
    """Apply a function of bits to each element."""
    name = kind.partition("x")[0]
    return join(
        [function(name, *p) for p in zip(*(split(w, kind) for w in words), strict=True)], bits(name)
    )


def ints(function):
    """Lift a function of integers of the type `type`; `.sat` clamps."""

    def apply(m, *words):
        def element(name, *parts):
            value = function(m, *(ref.integer(p, name) for p in parts))
            if m.get("sat"):
                low, high = ref.limits(name)
                value = min(max(value, low), high)
            return value

        return each(m["type"], element, *words)

    return apply


def half_product(m, a, b):
    size = bits(m["type"])
    return (a * b) >> size if m["mode"] == "hi" else ref.integer(a * b, f"{m['type'][0]}{size}")


def product24(m, a, b):
    kind = f"{m['type'][0]}24"
    exact = ref.integer(a, kind) * ref.integer(b, kind)
    return exact >> 16 if m["mode"] == "hi" else exact


def wide(m, a, b, c=0):
    kind = m["type"]
    out = f"{kind[0]}{2 * bits(kind)}"
    return (ref.integer(a, kind) * ref.integer(b, kind) + ref.integer(c, out)) % (1 << bits(out))


def dot(m, a, b, c, size):
    first = [ref.integer(a >> size * i, f"{m['atype'][0]}{size}") for i in range(32 // size)]
    second = [ref.integer(b >> 8 * i, f"{m['btype'][0]}8") for i in range(4)]
    second = second[2:] if m.get("mode") == "hi" else second
    return (c + sum(x * y for x, y in zip(first, second, strict=False))) & M32


def truncated(a, b):
    return math.trunc(a / b) if abs(a) < 1 << 50 else abs(a) // abs(b) * (1 if a * b > 0 else -1)


def cvt_pack(m, a, b, c=0):
    size = int(m["convert"][1:])
    low, high = ref.limits(m["convert"])
    x, y = (min(max(ref.integer(v, "s32"), low), high) for v in (a, b))
    return join([y, x], size) | (c << 2 * size & M32)


def bit(word, place):
    return word >> place & 1


def lop3(a, b, c, table):
    return sum(bit(table, 4 * bit(a, i) + 2 * bit(b, i) + bit(c, i)) << i for i in range(32))


def lop3_bool(m, a, b, c, table, q):
    word = lop3(a, b, c, table)
    found = word != 0
    return word, int(found or q if m["boolop"] == "or" else found and q)


def shf(m, a, b, c):
    n = min(c, 32) if m["mode"] == "clamp" else c % 32
    if m["dir"] == "l":
        return ((b << n) | (a >> (32 - n))) & M32
    return ((b << (32 - n)) | (a >> n)) & M32


def bfind(m, a):
    size = bits(m["type"])
    if m["type"][0] == "s" and bit(a, size - 1):
        a = ~a & ((1 << size) - 1)
    for i in range(size - 1, -1, -1):
        if bit(a, i):
            return size - 1 - i if m["shiftamt"] else i
    return M32


def fns(mask, base, offset):
    offset = ref.integer(offset, "s32")
    if offset == 0:
        return base if bit(mask, base) else M32
    place, count, step = base, abs(offset) - 1, 1 if offset > 0 else -1
    while 0 <= place < 32:
        if bit(mask, place):
            if count == 0:
                return place
            count -= 1
        place += step
    return M32


def bfe(m, a, b, c):
    size = bits(m["type"])
    place, length = ((x & 0xFF if size == 32 else min(x, 255)) for x in (b, c))
    top = size - 1
    sign = 0 if m["type"][0] == "u" or length == 0 else bit(a, min(place + length - 1, top))
    return sum(
        (bit(a, place + i) if i < length and place + i <= top else sign) << i for i in range(size)
    )


def bfi(m, a, b, c, d):
    size = bits(m["type"])
    place, length = ((x & 0xFF if size == 32 else min(x, 255)) for x in (c, d))
    for i in range(length):
        if place + i < size:
            b = b & ~(1 << place + i) | bit(a, i) << place + i
    return b


def szext(m, a, b):
    low = b & 31
    large = b >= 32 and m["mode"] == "clamp"
    mask = 0 if large else (M32 << low) & M32
    sign = 0 if low == 0 or large or m["type"] != "s32" else bit(a, (low - 1) & 31)
    return a & ~mask & M32 | (mask if sign else 0)


def bmsk(m, a, b):
    first, length = a & 31, b & 31
    mask0, mask1 = (M32 << first) & M32, (M32 << (first + length)) & M32
    clamp = m["mode"] == "clamp"
    if clamp and a >= 32:
        mask0 = 0
    if first + length >= 32 or (clamp and (a >= 32 or b >= 32)):
        mask1 = 0
    elif length == 0:
        mask1 = M32
    return mask0 & ~mask1 & M32


PRMT = {  # as the table of PTX: bytes 3 to 0 for selectors 0 to 3
    "f4e": ("3210", "4321", "5432", "6543"),
    "b4e": ("5670", "6701", "7012", "0123"),
    "rc8": ("0000", "1111", "2222", "3333"),
    "ecl": ("3210", "3211", "3222", "3333"),
    "ecr": ("0000", "1110", "2210", "3210"),
    "rc16": ("1010", "3232", "1010", "3232"),
}


def prmt(m, a, b, c):
    source = [*split(a, "u8x4"), *split(b, "u8x4")]
    if m["mode"]:
        return join([source[int(p)] for p in reversed(PRMT[m["mode"]][c & 3])], 8)
    found = []
    for i in range(4):
        choice = c >> 4 * i
        byte = source[choice & 7]
        found.append((0xFF if bit(byte, 7) else 0) if bit(choice, 3) else byte)
    return join(found, 8)


BOOL = {"and": lambda a, b: a and b, "or": lambda a, b: a or b, "xor": lambda a, b: a != b}


def predicates(m, kind, a, b, c):
    name = kind.partition("x")[0]
    found = [
        ref.holds(m["cmp"], m["ftz"], name, x, y)
        for x, y in zip(split(a, kind), split(b, kind), strict=True)
    ]
    if len(found) == 1 and c is None:
        return [found[0], not found[0]]
    if c is None:
        return found
    plain = found if len(found) == 2 else [found[0], not found[0]]
    return [bool(BOOL[m["boolop"]](f, bool(c))) for f in plain]


def set_register(m, a, b, c=None):
    out = m["dtype"].partition("x")[0]
    found = predicates(m, m["stype"], a, b, c)
    count = 2 if m["stype"].endswith("x2") else 1
    size = bits(m["dtype"]) // count
    one = ref.write((0, 1), out) if out in ref.SHAPES else (1 << size) - 1
    return join([one if f else 0 for f in found[:count]], size)


def setp(m, a, b, c=None):
    return int(predicates(m, m["type"], a, b, c)[0])


def setp_pair(m, a, b, c=None):
    return tuple(map(int, predicates(m, m["type"], a, b, c)))


def slct(m, a, b, c):
    if m["ctype"] == "s32":
        return a if ref.integer(c, "s32") >= 0 else b
    number = ref.read(c, "f32")
    number = ref.flushed(number, "f32") if m["ftz"] else number
    return a if not ref.is_nan(number) and ref.key(number)[0] >= 0 else b


def testp(m, a):
    number = ref.read(a, m["type"])
    size, nan = number[1], ref.is_nan(number)
    finite = not isinstance(size, str)
    subnormal = finite and 0 < size < ref.least_normal(m["type"])
    return int(
        {
            "finite": finite,
            "infinite": size == "inf",
            "number": not nan,
            "notanumber": nan,
            "normal": finite and not subnormal,
            "subnormal": subnormal,
        }[m["op"]]
    )


def sign_op(change):
    def apply(m, a):
        def element(name, word):
            word = change(word, 1 << ref.bits_of(name) - 1)
            number = ref.read(word, name)
            small = m.get("ftz") and ref.flushed(number, name) != number
            return word & (1 << ref.bits_of(name) - 1) if small else word

        return each(m["type"], element, a)

    return apply


def floats(name):
    return lambda m, *w: each(m["type"], lambda k, *p: ref.arithmetic(name, m, k, p), *w)


def extremes(name):
    def apply(m, a, b):
        kind = m["type"]
        if kind[0] in "us":
            choose = max if name == "max" else min

            def element(k, x, y):
                found = choose(ref.integer(x, k), ref.integer(y, k))
                return max(found, 0) if m.get("relu") else found

            return each(kind, element, a, b)
        return each(kind, lambda k, x, y: ref.extreme(name, m, k, x, y), a, b)

    return apply


def pair(m, a, b):
    out = m["dtype"][:-2]
    return join([ref.narrow(m, out, "f32", x) for x in (b, a)], bits(out))


def pairs(m, a):
    out, kind = m["dtype"][:-2], m["atype"][:-2]
    return join([ref.narrow(m, out, kind, x) for x in split(a, m["atype"])], bits(out))


def complement(m, a):
    return int(not a) if m["type"] == "pred" else ~a % (1 << bits(m["type"]))


REFERENCES = {
    "add_int": ints(lambda m, a, b: a + b),
    "sub_int": ints(lambda m, a, b: a - b),
    "mul_int": ints(lambda m, a, b: half_product(m, a, b)),
    "mad_int": ints(lambda m, a, b, c: half_product(m, a, b) + c),
    "mul_wide": wide,
    "mad_wide": wide,
    "mul24": ints(product24),
    "mad24": ints(lambda m, a, b, c: product24(m, a, b) + c),
    "sad": ints(lambda m, a, b, c: c + (a - b if a >= b else b - a)),
    "div": ints(lambda m, a, b: truncated(a, b)),
    "rem": ints(lambda m, a, b: a - truncated(a, b) * b),
    "abs": ints(lambda m, a: abs(a)),
    "neg_int": ints(lambda m, a: -a),
    "dp4a": lambda m, a, b, c: dot(m, a, b, c, 8),
    "dp2a": lambda m, a, b, c: dot(m, a, b, c, 16),
    "cvt_pack": cvt_pack,
    "cvt_pack_c": cvt_pack,
    "and": lambda m, a, b: a & b,
    "or": lambda m, a, b: a | b,
    "xor": lambda m, a, b: a ^ b,
    "not": complement,
    "cnot": lambda m, a: int(a == 0),
    "lop3": lambda m, a, b, c, t: lop3(a, b, c, t),
    "lop3_bool": lop3_bool,
    "lop3_bool_sink": lambda m, *w: lop3_bool(m, *w)[1],
    "shl": lambda m, a, b: 0 if b >= bits(m["type"]) else a << b,
    "shr": lambda m, a, b: (
        (ref.integer(a, m["type"]) if m["type"][0] == "s" else a) >> min(b, bits(m["type"]))
    ),
    "shf": shf,
    "popc": lambda m, a: bin(a).count("1"),
    "clz": lambda m, a: bits(m["type"]) - len(bin(a)[2:].lstrip("0")),
    "bfind": bfind,
    "fns": lambda m, mask, base, offset: fns(mask, base, offset),
    "brev": lambda m, a: sum(bit(a, i) << bits(m["type"]) - 1 - i for i in range(bits(m["type"]))),
    "bfe": bfe,
    "bfi": bfi,
    "szext": szext,
    "bmsk": bmsk,
    "prmt": prmt,
    "mov": lambda m, a: a,
    "mov_pack_b16x2": lambda m, *w: join(w, 16),
    "mov_pack_b16x4": lambda m, *w: join(w, 16),
    "mov_pack_b32x2": lambda m, *w: join(w, 32),
    "mov_unpack_b16x2": lambda m, a: tuple(split(a, "u16x2")),
    "mov_unpack_b16x4": lambda m, a: tuple(split(a, "u16x4")),
    "mov_unpack_b32x2": lambda m, a: tuple(split(a, "u32x2")),
    **dict.fromkeys(("set", "set_bool", "set_half", "set_half_bool"), set_register),
    **dict.fromkeys(("setp", "setp_bool", "setp_half", "setp_half_bool"), setp),
    **dict.fromkeys(("setp_pq", "setp_bool_pq", "setp_half_pq", "setp_half_bool_pq"), setp_pair),
    "selp": lambda m, a, b, c: a if c else b,
    "slct": slct,
    "max": extremes("max"),
    "min": extremes("min"),
    **{name: floats(name) for name in ("add", "sub", "mul", "fma", "rcp", "sqrt")},
    **{f"{name}_half": floats(name) for name in ("add", "sub", "mul", "fma")},
    "mad_f": floats("mad"),
    "div_f": floats("div"),
    **dict.fromkeys(("abs_f", "abs_half"), sign_op(lambda w, s: w & ~s)),
    **dict.fromkeys(("neg", "neg_half"), sign_op(lambda w, s: w ^ s)),
    "testp": testp,
    "copysign": lambda m, a, b: (
        (a >> bits(m["type"]) - 1 << bits(m["type"]) - 1) | b & ((1 << bits(m["type"]) - 1) - 1)
    ),
    "cvt": ref.convert,
    "cvt_tf32_f32": lambda m, a: ref.narrow(m, "tf32", "f32", a),
    **dict.fromkeys(("cvt_f16x2_f32", "cvt_bf16x2_f32", "cvt_f8x2_f32"), pair),
    **dict.fromkeys(("cvt_f8x2_fp16x2", "cvt_f16x2_f8x2"), pairs),
}
