"""Register PassContext keys of our own, from Python alone, with types that TVM itself enforces.

TVM exports one C++ function for this,
`PassContext::RegisterConfigOption(const char*, ffi::String, std::function<Any(Any)>)`, and no
Python or C binding of it.  On x86-64 Linux its arguments are plain memory (Itanium C++ ABI,
libstdc++), so they are laid out here by hand:

    ffi::String         16 bytes: type index 11 (small string), length, up to 7 characters
    std::function       32 bytes: 16 of state, manager(dest, source, op), invoker(state, arg)
    invoker             the result by hidden pointer: f(Any* result, state*, Any* argument)

The invoker calls `_check`, in Python.  A Python callback cannot throw a C++ exception, so the
invoker is a few machine instructions: when `_check` hands back an exception object they restore
the stack and jump to `__cxa_throw`, as if TVM's own caller had called it.

Elsewhere nothing is registered: annotations and function attributes carry the same options, and
`python -m tvm_hopper doctor` says so.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import struct
import sys
from collections.abc import Callable
from typing import Any

SYMBOL = (
    "_ZN3tvm9transform11PassContext20RegisterConfigOption"
    "EPKcNS_3ffi6StringESt8functionIFNS4_3AnyES7_EE"
)
ERROR_TYPEINFO, ERROR_VTABLE = "_ZTIN3tvm3ffi5ErrorE", "_ZTVN3tvm3ffi5ErrorE"
ERROR_DESTRUCTOR = "_ZN3tvm3ffi5ErrorD1Ev"

INT, BOOL, FLOAT, SMALL_STR, STR = 1, 2, 3, 11, 65  # TVMFFITypeIndex, tvm/ffi/c_api.h
CLONE = 2  # std::_Manager_operation

TYPE_NAMES = {bool: "bool", int: "int", float: "float", str: "str"}


class _Any(ctypes.Structure):
    """TVMFFIAny: also the layout of a small ffi::String."""

    _fields_ = (
        ("index", ctypes.c_int32),
        ("length", ctypes.c_uint32),
        ("payload", ctypes.c_uint64),
    )


class _Bytes(ctypes.Structure):
    """TVMFFIByteArray."""

    _fields_ = (("data", ctypes.c_char_p), ("size", ctypes.c_size_t))


class _Function(ctypes.Structure):
    """std::function of libstdc++."""

    _fields_ = (
        ("state", ctypes.c_void_p * 2),
        ("manager", ctypes.c_void_p),
        ("invoker", ctypes.c_void_p),
    )


_Check = ctypes.CFUNCTYPE(
    ctypes.c_void_p, ctypes.POINTER(_Any), ctypes.c_void_p, ctypes.POINTER(_Any)
)
_Manage = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)

_alive: list[object] = []  # TVM keeps pointers to all of these until the process ends


def why_not() -> str:
    """Say why keys cannot be registered on this machine, or return an empty string."""
    if not (sys.platform == "linux" and platform.machine() == "x86_64"):
        return f"found {sys.platform} {platform.machine()}; need Linux on x86-64"
    from tvm.base import _LOADED_LIBS

    compiler = _LOADED_LIBS.get("tvm_compiler")
    if compiler is None:
        return "found TVM's runtime alone; need its compiler"
    for symbol in (SYMBOL, ERROR_TYPEINFO, ERROR_VTABLE, ERROR_DESTRUCTOR):
        if not hasattr(compiler, symbol):
            return f"found no {symbol} in TVM; need apache-tvm 0.27.0.post1"
    return ""


def register(name: str, kind: type, accepts: Callable[[object], bool], need: str) -> None:
    """Register one key; `accepts` judges a plain Python value, `need` says what it accepts.

    The caller has asked `why_not` first.
    """
    from tvm.base import _LOADED_LIBS

    compiler = _LOADED_LIBS["tvm_compiler"]
    check = _Check(_checker(name, kind, accepts, need))
    function = _Function(
        (ctypes.c_void_p * 2)(ctypes.cast(check, ctypes.c_void_p).value, None),
        ctypes.cast(_manage, ctypes.c_void_p).value,
        _invoker(),
    )
    text = TYPE_NAMES[kind].encode()
    type_name = _Any(SMALL_STR, len(text), int.from_bytes(text.ljust(8, b"\0"), "little"))
    key = ctypes.create_string_buffer(name.encode())
    _alive.extend((check, function, type_name, key))
    entry = getattr(compiler, SYMBOL)
    entry.restype = None
    # A C++ class with a destructor is passed by the address of the caller's copy.
    entry(key, ctypes.byref(type_name), ctypes.byref(function))


def _checker(
    name: str, kind: type, accepts: Callable[[object], bool], need: str
) -> Callable[..., int | None]:
    """Build the body of the invoker: move the argument to the result, or return an exception."""

    def check(result: Any, _state: int, argument: Any) -> int | None:
        value = _to_python(argument.contents)
        if accepts(value):
            result[0] = argument.contents
            if kind is bool:
                result.contents.index = BOOL
            argument[0] = _Any(0, 0, 0)  # moved from: the argument is an rvalue of the caller
            return None
        result[0] = _Any(0, 0, 0)
        found = repr(value) if value is not NotImplemented else "an object"
        return _exception("AttributeError", f"config {name}: found {found}; need {need}")

    return check


def _to_python(value: _Any) -> object:
    if value.index == BOOL:
        return bool(value.payload)
    if value.index == INT:
        return ctypes.c_int64(value.payload).value
    if value.index == FLOAT:
        return struct.unpack("<d", struct.pack("<Q", value.payload))[0]
    if value.index == SMALL_STR:
        return value.payload.to_bytes(8, "little")[: value.length].decode()
    if value.index == STR:  # TVMFFIObject is 24 bytes, then a TVMFFIByteArray
        data, size = struct.unpack("<QQ", ctypes.string_at(value.payload + 24, 16))
        return ctypes.string_at(data, size).decode()
    return None if value.index == 0 else NotImplemented


def _exception(kind: str, message: str) -> int:
    """Build a C++ `tvm::ffi::Error` ready for `__cxa_throw`: a vtable pointer and an object."""
    import tvm_ffi.libinfo  # noqa: F401  (its library is loaded: TVM is)
    from tvm.base import _LOADED_LIBS

    library = _LOADED_LIBS["tvm_compiler"]
    texts = [_Bytes(t.encode(), len(t.encode())) for t in (kind, message, "")]
    handle = ctypes.c_void_p()
    library.TVMFFIErrorCreate(*(ctypes.byref(t) for t in texts), ctypes.byref(handle))
    allocate = library.__getattr__("__cxa_allocate_exception")
    allocate.restype, allocate.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
    address = allocate(16)
    vtable = _address(library, ERROR_VTABLE) + 16  # past offset-to-top and typeinfo
    ctypes.memmove(address, struct.pack("<QQ", vtable, handle.value), 16)
    return address


@_Manage
def _manage(dest: int, source: int, op: int) -> bool:
    """Copy the state of a std::function; there is nothing to destroy."""
    if op == CLONE:
        ctypes.memmove(dest, source, 16)
    return False


def _address(library: ctypes.CDLL, symbol: str) -> int:
    return ctypes.addressof(ctypes.c_char.in_dll(library, symbol))


_page: mmap.mmap | None = None


def _invoker() -> int:
    """Return the address of the invoker, writing its instructions on first use."""
    global _page
    if _page is None:
        from tvm.base import _LOADED_LIBS

        library = _LOADED_LIBS["tvm_compiler"]
        throw = ctypes.cast(library.__getattr__("__cxa_throw"), ctypes.c_void_p).value
        code = b"".join(
            (
                b"\xf3\x0f\x1e\xfa",  # endbr64
                b"\x48\x83\xec\x18",  # sub rsp, 24        (aligns the stack to 16)
                b"\x48\x89\x7c\x24\x08",  # mov [rsp + 8], rdi (the result's address)
                b"\xff\x16",  # call [rsi]         (state[0]: the Python check)
                b"\x48\x89\xc7",  # mov rdi, rax       (an exception, or null)
                b"\x48\x8b\x44\x24\x08",  # mov rax, [rsp + 8] (the ABI returns it)
                b"\x48\x83\xc4\x18",  # add rsp, 24
                b"\x48\x85\xff",  # test rdi, rdi
                b"\x75\x01",  # jne throw
                b"\xc3",  # ret
                b"\x48\xbe"
                + struct.pack("<Q", _address(library, ERROR_TYPEINFO)),  # throw: mov rsi,
                b"\x48\xba" + struct.pack("<Q", _address(library, ERROR_DESTRUCTOR)),  # mov rdx,
                b"\x48\xb8" + struct.pack("<Q", throw),  # mov rax,
                b"\xff\xe0",  # jmp rax
            )
        )
        page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        page.write(code)
        _page = page
    return ctypes.addressof(ctypes.c_char.from_buffer(_page))
