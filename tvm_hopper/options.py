"""Options of a compilation: where a value may come from, and what it may be.

An annotation wins over a function attribute, that over `PassContext(config={"tvm_hopper.x": ...})`,
that over the default.  Tuning workers see annotations and attributes alone: a PassContext does not
travel to them.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tvm_hopper import keys

if TYPE_CHECKING:
    from tvm import tirx

DEFAULTS: dict[str, object] = {
    keys.ASYNC_COPY: "",  # async pipelines without our annotations stay with TVM
    keys.STRICT: False,
    keys.VERIFY: True,
    keys.COMPILER: "nvrtc",
    keys.FAST_MATH: False,
    keys.CHECK_ASSEMBLER_LOG: True,
}


def value_need(key: keys.Key) -> str:
    """Say in words which values a key takes."""
    if key.legal:
        return "one of " + ", ".join(map(repr, key.legal))
    if key.length:
        return f"a list of {key.length} values of type {key.kind.__name__}"
    return f"a value of type {key.kind.__name__}"


def value_fits(key: keys.Key, value: object) -> bool:
    """Tell whether a plain Python value is legal for a key (a bool may be written 0 or 1)."""
    values = value if key.length else [value]
    if not isinstance(values, list) or (key.length and len(values) != key.length):
        return False
    return all(_scalar_fits(key, v) for v in values)


def _scalar_fits(key: keys.Key, value: object) -> bool:
    if key.kind is bool:
        return value in (0, 1) and type(value) in (bool, int)
    return type(value) is key.kind and (not key.legal or value in key.legal)


def plain(value: object) -> object:
    """Turn an annotation's value into plain Python, leaving what has no plain form as it is."""
    import tvm_ffi
    from tvm import tirx
    from tvm.ir import StringImm

    if isinstance(value, tirx.IntImm):
        return bool(int(value)) if str(value.ty.dtype.dtype) == "bool" else int(value)
    if isinstance(value, tirx.FloatImm):
        return float(value.value)
    if isinstance(value, StringImm):
        return str(value.value)
    if isinstance(value, str):
        return str(value)
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

    sources = [annotations, func.attrs if func is not None else None, PassContext.current().config]
    for source in sources:
        if source is not None and name in source:
            value = plain(source[name])
            return bool(value) if keys.KEYS[name].kind is bool else value
    return DEFAULTS.get(name, default) if default is None else default


def register() -> str:
    """Make the options PassContext keys, once; return why that is impossible here, or nothing."""
    from tvm.ir.transform import PassContext

    from tvm_hopper import _config_keys

    reason = _config_keys.why_not()
    if reason:
        return reason
    known = PassContext.list_configs()
    for key in keys.KEYS.values():
        if key.option and key.name not in known:
            accepts = functools.partial(value_fits, key)
            _config_keys.register(key.name, key.kind, accepts, value_need(key))
    return ""
