"""Options of a compilation: PassContext keys and function attributes, checked.

An annotation wins over a function attribute, that over the config of the PassContext, that over the
default. Tuning workers see annotations and attributes alone: a PassContext does not travel to them.

    with PassContext(config={"tvm_hopper.strict": True}): ...

TVM refuses a config key that its C++ code did not register.  So ours travel as rows of a stock key
that TVM registers, types as `Array[Array[Object]]`, and never reads:

    {"tvm_hopper.strict": True}  <->  {"tirx.add_lower_pass": [["tvm_hopper.strict", T.bool(True)]]}

`gate.accept_options` makes PassContext translate on the way in, where keys and values are checked,
and on the way out. Rows of other people stay where they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tvm_hopper.errors import cannot_configure
from tvm_hopper.requests import keys, spelling

if TYPE_CHECKING:
    from tvm import tirx

CARRIER = "tirx.add_lower_pass"

DEFAULTS: dict[str, object] = {
    keys.ASYNC_COPY: "",  # async pipelines without our annotations stay with TVM
    keys.STRICT: False,
    keys.CHECKS: "all",
    keys.COMPILER: "nvrtc",
    keys.FAST_MATH: False,
    keys.DETERMINISTIC: False,
    keys.FUNCTIONS: "short",
    keys.LINE_INFO: "",
}


# -- values


def value_need(key: keys.Key) -> str:
    """Say in words which values a key takes."""
    if key.legal:
        return "one of " + ", ".join(map(repr, key.legal))
    kind = f"type {key.kind.__name__}"
    if key.kind is int:
        kind += f" from {key.bounds[0]} to {key.bounds[1]}"
        kind += "".join(f", or {value}" for value in key.beyond)
    return f"a list of {key.length} values of {kind}" if key.length else f"a value of {kind}"


def value_fits(key: keys.Key, value: object) -> bool:
    """Tell whether a plain Python value is legal for a key (a bool may be written 0 or 1)."""
    values = value if key.length else [value]
    if not isinstance(values, list) or (key.length and len(values) != key.length):
        return False
    return all(_scalar_fits(key, v) for v in values)


def _scalar_fits(key: keys.Key, value: object) -> bool:
    if key.kind is bool:
        return type(value) in (bool, int) and value in (0, 1)
    if type(value) is not key.kind:
        return False
    if key.legal:
        return value in key.legal
    if not isinstance(value, int) or value in key.beyond:
        return True
    return key.bounds[0] <= value <= key.bounds[1]


def plain(value: object) -> object:
    """Turn an annotation's value into plain Python, leaving what has no plain form as it is."""
    import numpy as np
    import tvm_ffi
    from tvm import tirx
    from tvm.ir import StringImm

    if isinstance(value, tirx.IntImm):
        return bool(int(value)) if str(value.ty.dtype) == "bool" else int(value)
    if isinstance(value, tirx.FloatImm):
        return float(value.value)
    if isinstance(value, StringImm):
        return str(value.value)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, tvm_ffi.Array | list | tuple):
        return [plain(v) for v in value]
    return value


def read(
    name: str,
    func: tirx.PrimFunc | None = None,
    annotations: Mapping[str, object] | None = None,
    default: object = None,
) -> object:
    """Return the value of an option: annotation, function attribute, PassContext or default."""
    from tvm.ir.transform import PassContext

    config = from_carrier(PassContext.current().config)
    for source in (annotations, func.attrs if func is not None else None, config):
        if source is not None and name in source:
            value = plain(source[name])
            return bool(value) if keys.KEYS[name].kind is bool else value
    return DEFAULTS.get(name, default) if default is None else default


def fast_math() -> bool:
    """Tell whether approximate arithmetic is allowed, by TVM's own option."""
    from tvm.ir.transform import PassContext

    return bool(PassContext.current().config.get(keys.FAST_MATH, DEFAULTS[keys.FAST_MATH]))


# -- the config of a PassContext


def to_carrier(config: Any) -> Any:
    """Move our keys into the stock key that carries them; a config without any stays as it is.

    - raises OptionError: a key looks like one of ours and is none, or has a value of the wrong
      type.
    """
    if not isinstance(config, Mapping):
        return config
    given = {
        k: v for k, v in config.items() if isinstance(k, str) and spelling.claims_to_be_ours(k)
    }
    carried, others = _split(config.get(CARRIER, ()))
    ours = {**carried, **given}
    if not ours:
        return config
    rows = [[name, _boxed(check_option(name, value))] for name, value in ours.items()]
    rest = {name: value for name, value in config.items() if name not in given}
    if others is not None:  # else TVM says what is wrong with the carrier's own value
        rest[CARRIER] = [*others, *rows]
    return rest


def from_carrier(config: Any) -> Any:
    """Show a config as its user wrote it: our keys by their names, the carrier without them."""
    import tvm_ffi

    ours, others = _split(config.get(CARRIER, ()))
    if not ours:
        return config
    rest = {name: value for name, value in config.items() if name != CARRIER}
    if others:
        rest[CARRIER] = others
    return tvm_ffi.convert({**rest, **ours})


def check_option(name: str, value: object) -> object:
    """Return an option's value as plain Python; refuse a key or a value that is none."""
    value = plain(value)
    key = keys.KEYS.get(name)
    if key is None or not key.option:
        options = [k.name for k in keys.KEYS.values() if k.option]
        near = spelling.closest(name, [*options, keys.FAST_MATH])
        fix = f"did you mean {near}?" if near else ""
        found = f"unknown key {name}" if key is None else f"{name}, a key of a {key.places[0]}"
        raise cannot_configure("PassContext", found, f"one of {', '.join(options)}", fix)
    if not value_fits(key, value):
        raise cannot_configure("PassContext", f"{name} = {value!r}", value_need(key))
    return bool(value) if key.kind is bool else value


def _split(rows: Any) -> tuple[dict[str, object], list[Any] | None]:
    """Part the carrier's rows into ours and other people's; None if it holds no rows at all."""
    import tvm_ffi

    sequences = (tvm_ffi.Array, list, tuple)
    if not isinstance(rows, sequences):
        return {}, None
    ours: dict[str, object] = {}
    others = []
    for row in rows:
        pair = isinstance(row, sequences) and len(row) == 2 and isinstance(row[0], str)
        if pair and spelling.claims_to_be_ours(row[0]):
            ours[str(row[0])] = plain(row[1])
        else:
            others.append(row)
    return ours, others


def _boxed(value: object) -> Any:
    """Turn a plain value into a TVM object: the carrier takes nothing else."""
    from tvm import tirx
    from tvm.ir import StringImm

    if isinstance(value, str):
        return StringImm(value)
    assert isinstance(value, int)  # no option has another type
    return tirx.IntImm("bool" if isinstance(value, bool) else "int64", int(value))
