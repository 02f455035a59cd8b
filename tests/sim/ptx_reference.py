"""What PTX instructions on registers give, once more: one value at a time, from the PTX text.

Numbers are a sign and a fraction, "inf" or "nan". Rounding looks for the two neighbours among the
bit patterns of the format. Nothing here is shared with the simulator.
"""

import functools
from fractions import Fraction

# exponent bits, fraction bits, bits of zeros below, has infinities
SHAPES = {
    "f64": (11, 52, 0, True),
    "f32": (8, 23, 0, True),
    "tf32": (8, 10, 13, True),
    "f16": (5, 10, 0, True),
    "bf16": (8, 7, 0, True),
    "e5m2": (5, 2, 0, True),
    "e4m3": (4, 3, 0, False),
}
NANS = {"f64": 0x7FF8 << 48, "f32": 0x7FFFFFFF, "tf32": 0x7FFFFFFF, "f16": 0x7FFF, "bf16": 0x7FFF}


def bits_of(kind):
    """Return the bits of a register part of a format."""
    exponent, fraction, below, _ = SHAPES[kind]
    return 1 + exponent + fraction + below


def magnitude(pattern, kind):
    """Return the fraction of a pattern without its sign and the zeros below."""
    exponent, fraction, _, _ = SHAPES[kind]
    bias = (1 << exponent - 1) - 1
    field, rest = pattern >> fraction, pattern & ((1 << fraction) - 1)
    hidden = (1 << fraction) if field else 0
    power = max(field, 1) - bias - fraction
    return Fraction(hidden + rest) * Fraction(2) ** power


def top_pattern(kind):
    """Return the pattern of the largest finite number."""
    exponent, fraction, _, infinite = SHAPES[kind]
    return (((1 << exponent) - 1) << fraction) - 1 if infinite else 0x7E


def read(bits, kind):
    """Return (sign, fraction or "inf" or "nan")."""
    _, _, below, infinite = SHAPES[kind]
    size = bits_of(kind)
    sign, pattern = bits >> (size - 1) & 1, (bits & ((1 << size - 1) - 1)) >> below
    if pattern > top_pattern(kind):
        return sign, "inf" if infinite and pattern == top_pattern(kind) + 1 else "nan"
    return sign, magnitude(pattern, kind)


def write(number, kind):
    """Return the bits of a number that the format has, or of its NaN."""
    sign, size = number
    if size == "nan":
        return NANS.get(kind, 0x7F)
    top = bits_of(kind) - 1
    if size == "inf":
        pattern = top_pattern(kind) + 1
    else:
        pattern = below_or_equal(size, kind)
        assert magnitude(pattern, kind) == size
    return sign << top | pattern << SHAPES[kind][2]


def below_or_equal(size, kind):
    """Return the pattern of the largest finite number that is not above a fraction."""
    low, high = 0, top_pattern(kind)
    while low < high:
        middle = (low + high + 1) // 2
        if magnitude(middle, kind) <= size:
            low = middle
        else:
            high = middle - 1
    return low


def rounded(sign, low, compare, kind, mode, finite=False):
    """Return a number between pattern `low` and the next one.

    `compare(x)` tells how the exact size stands to a fraction x: -1 below, 0 equal, 1 above.
    """
    if compare(magnitude(low, kind)) == 0:
        return sign, magnitude(low, kind)
    last = low == top_pattern(kind)
    above = (
        magnitude(low, kind) * 2 - magnitude(low - 1, kind) if last else magnitude(low + 1, kind)
    )
    middle = compare((magnitude(low, kind) + above) / 2)
    beyond = last and compare(above) >= 0
    up = {
        "rn": beyond or middle > 0 or (middle == 0 and low % 2 == 1),
        "rna": beyond or middle >= 0,
        "rz": False,
        "rm": sign == 1,
        "rp": sign == 0,
    }[mode]
    if not up:
        return sign, magnitude(low, kind)
    if last:
        return sign, magnitude(low, kind) if finite else "inf"
    return sign, above


def fit(number, kind, mode, finite=False):
    """Round a number to a format."""
    sign, size = number
    if size == "nan":
        return number
    if size == "inf":
        infinite = SHAPES[kind][3]
        return (sign, magnitude(top_pattern(kind), kind)) if finite or not infinite else number

    def compare(x):
        return (size > x) - (size < x)

    return rounded(sign, below_or_equal(size, kind), compare, kind, mode, finite)


def least_normal(kind):
    """Return the least normal number."""
    return magnitude(1 << SHAPES[kind][1], kind)


def flushed(number, kind):
    """Replace a subnormal number by zero."""
    sign, size = number
    small = not isinstance(size, str) and size < least_normal(kind)
    return (sign, Fraction(0)) if small else number


NAN = (0, "nan")


def signed(number):
    """Return a finite number as a fraction with its sign."""
    return -number[1] if number[0] else number[1]


def is_nan(*numbers):
    return any(n[1] == "nan" for n in numbers)


def product(a, b):
    """Return the exact product."""
    sign = a[0] ^ b[0]
    if is_nan(a, b) or {a[1], b[1]} == {"inf", 0}:
        return NAN
    return sign, "inf" if "inf" in (a[1], b[1]) else a[1] * b[1]


def total(a, b, mode):
    """Return the exact sum."""
    if is_nan(a, b):
        return NAN
    if "inf" in (a[1], b[1]):
        if a[1] == b[1] and a[0] != b[0]:
            return NAN
        return a if a[1] == "inf" else b
    exact = signed(a) + signed(b)
    if exact == 0:
        alike = a[0] == b[0]
        return (a[0] if alike else int(mode == "rm")), Fraction(0)
    return int(exact < 0), abs(exact)


def quotient(a, b):
    """Return the exact quotient."""
    sign = a[0] ^ b[0]
    if is_nan(a, b) or (a[1] == b[1] and a[1] in ("inf", 0)):
        return NAN
    if a[1] == "inf" or b[1] == 0:
        return sign, "inf"
    return sign, Fraction(0) if b[1] == "inf" or a[1] == 0 else a[1] / b[1]


def square_root(a, kind, mode):
    """Return the root, rounded."""
    if is_nan(a) or a[1] == 0 or (a[1] == "inf" and not a[0]):
        return a
    if a[0]:
        return NAN

    def compare(x):
        return (a[1] > x * x) - (a[1] < x * x)

    low, high = 0, top_pattern(kind)
    while low < high:
        middle = (low + high + 1) // 2
        if compare(magnitude(middle, kind)) >= 0:
            low = middle
        else:
            high = middle - 1
    return rounded(0, low, compare, kind, mode)


def clamped(number, mods):
    """Apply `.sat` and `.relu`."""
    if mods.get("sat"):
        if is_nan(number) or number[0] or number[1] == 0:
            return 0, Fraction(0)
        return (0, Fraction(1)) if number[1] == "inf" or number[1] > 1 else number
    if mods.get("relu") and not is_nan(number) and number[0]:
        return 0, Fraction(0)
    return number


def arithmetic(name, mods, kind, operands):
    """Return the bits of add, sub, mul, fma, mad, div, rcp, sqrt of one element."""
    mode = mods.get("rnd") or mods.get("mode") or "rn"
    numbers = [read(o, kind) for o in operands]
    if mods.get("ftz"):
        numbers = [flushed(n, kind) for n in numbers]
    if name == "sqrt":
        found = square_root(numbers[0], kind, mode)
    else:
        if name == "rcp":
            exact = quotient((0, Fraction(1)), *numbers)
        elif name == "div":
            exact = quotient(*numbers)
        elif name == "mul":
            exact = product(*numbers)
        elif name in ("fma", "mad"):
            exact = total(product(*numbers[:2]), numbers[2], mode)
        else:
            a, b = numbers
            exact = total(a, (b[0] ^ (name == "sub"), b[1]), mode)
        found = fit(exact, kind, mode)
    if mods.get("ftz"):
        found = flushed(found, kind)
    return write(clamped(found, mods), kind)


def extreme(name, mods, kind, a, b):
    """Return the bits of min or max of one element."""
    x, y = read(a, kind), read(b, kind)
    if mods.get("ftz"):
        x, y = flushed(x, kind), flushed(y, kind)
    sign = x[0] ^ y[0]
    if mods.get("abs"):
        x, y = (0, x[1]), (0, y[1])
    if (is_nan(x) and is_nan(y)) or (mods.get("nan") and is_nan(x, y)):
        return write(NAN, kind)
    if is_nan(x) or is_nan(y):
        found = y if is_nan(x) else x
    else:
        found = x if above(x, y) == (name == "max") else y
    return write((sign, found[1]) if mods.get("xorsign") else found, kind)


def key(number):
    """Return what orders numbers, -0 below +0."""
    sign, size = number
    size = Fraction(2) ** 2000 if size == "inf" else size
    return (-size if sign else size), -sign


def above(x, y):
    return key(x) >= key(y)


COMPARISONS = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}
UNSIGNED = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}


def integer(bits, kind):
    """Return what the low bits mean as an integer type."""
    size = int(kind[1:])
    bits &= (1 << size) - 1
    return bits - (1 << size) if kind[0] == "s" and bits >> (size - 1) else bits


def holds(cmp, ftz, kind, a, b):
    """Tell whether a comparison of two elements holds."""
    cmp = UNSIGNED.get(cmp, cmp)
    if kind not in SHAPES:
        return COMPARISONS[cmp](integer(a, kind), integer(b, kind))
    x, y = read(a, kind), read(b, kind)
    if ftz:
        x, y = flushed(x, kind), flushed(y, kind)
    nan = is_nan(x, y)
    if cmp in ("num", "nan"):
        return nan == (cmp == "nan")
    if nan:
        return cmp.endswith("u")
    return COMPARISONS[cmp[:2]](key(x)[0], key(y)[0])


def whole(number, mode):
    """Round a finite number to an integer; `rni` to even."""
    exact = signed(number)
    floor = exact.numerator // exact.denominator
    if mode == "rmi":
        return floor
    if mode == "rpi":
        return floor + (exact != floor)
    if mode == "rzi":
        return floor + (exact < 0 and exact != floor)
    over = exact - floor
    return floor + (over > Fraction(1, 2) or (over == Fraction(1, 2) and floor % 2 == 1))


@functools.cache
def limits(kind):
    size = int(kind[1:])
    return (-(1 << size - 1), (1 << size - 1) - 1) if kind[0] == "s" else (0, (1 << size) - 1)


def convert(mods, a):
    """Return the bits of `cvt` of one value, in the width of its type."""
    out, kind, mode = mods["dtype"], mods["atype"], mods["rnd"]
    if kind in SHAPES:
        number = read(a, kind)
        if mods.get("ftz") and kind == "f32":
            number = flushed(number, kind)
    else:
        value = integer(a, kind)
        number = (int(value < 0), Fraction(abs(value)))
    if out not in SHAPES:
        low, high = limits(out)
        size = int(out[1:])
        if kind in SHAPES:
            if is_nan(number):
                return 1 << (size - 1) if kind == "f64" or size == 64 else 0
            if number[1] == "inf":
                return (low if number[0] else high) % (1 << size)
            value = min(max(whole(number, mode), low), high)
        elif mods.get("sat"):
            value = min(max(value, low), high)
        return value % (1 << size)
    if mode in ("rni", "rzi", "rmi", "rpi") and not isinstance(number[1], str):
        number = number[0], Fraction(abs(whole(number, mode)))
    elif mode:
        number = fit(number, out, mode, bool(mods.get("satfinite")))
    if mods.get("ftz") and out == "f32":
        number = flushed(number, out)
    return write(clamped(number, mods), out)


def narrow(mods, out, kind, a):
    """Return the bits of one element of a conversion to a smaller format."""
    number = fit(read(a, kind), out, mods["rnd"], bool(mods.get("satfinite")))
    return write(clamped(number, mods), out)
