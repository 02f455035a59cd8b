"""The form of a saved file: a shared library, a header behind it, and a footer of fixed size.

    library    ELF: launch code, machine code for one chip, `tvm_hopper_check`
    header     JSON of `Header`
    footer     bytes of the header (8, little-endian), SHA-256 of all before, MAGIC

The loader of an operating system ignores what follows a library, so a C++ program opens the file
as it is. The digest finds damage. It does not find malice: a saved file is code, which runs with
the rights of the process that loads it.
"""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from tvm_hopper import disk_cache
from tvm_hopper.errors import HopperError

FORMAT = 1
MAGIC = b"TVMHOPR\n"
FOOTER = struct.Struct("<Q32s8s")


@dataclass(frozen=True)
class Header:
    """What a saved file says of itself.

    Attributes
    ----------
    kind
        "kernels": functions that are called; "model": a Relax model, run by TVM's virtual machine.
    arch, compute_capability
        The chip, as the compiler names it ("sm_90a") and as the driver does ("9.0").
    is_specific
        Whether the code runs on chips of this compute capability alone.
    functions, kernels
        Names of the functions to call; our kernels by name, with the registers of a thread.
    versions
        Of the packages that made it.
    report
        The text of `explain`, or the records of a model as JSON.
    """

    kind: str
    arch: str
    compute_capability: str
    is_specific: bool
    functions: list[str]
    kernels: dict[str, int]
    versions: dict[str, str]
    report: str
    format: int = FORMAT


def write(path: Path, library: bytes, header: Header) -> None:
    """Write a saved file; another one of the name is replaced at once, or stays."""
    text = json.dumps(asdict(header)).encode()
    body = library + text
    footer = FOOTER.pack(len(text), hashlib.sha256(body).digest(), MAGIC)
    disk_cache.replace_file(path, body + footer, durable=True)
    path.chmod(0o755)  # as linkers leave libraries


def read(path: Path) -> Header:
    """Return the header of a saved file.

    - raises HopperError: there is no such file, it is not whole, or of another format.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise HopperError(
            f"saved file {path}: found no file to read ({error.strerror}); need one that "
            "tvm_hopper.save wrote"
        ) from None
    body, footer = data[: -FOOTER.size], data[-FOOTER.size :]
    if len(footer) < FOOTER.size or not footer.endswith(MAGIC):
        raise _broken(path, "no footer of a saved file: it is cut off, or something else")
    size, digest, _ = FOOTER.unpack(footer)
    if size > len(body):
        raise _broken(path, f"a header of {size} bytes in {len(data)}")
    if hashlib.sha256(body).digest() != digest:
        raise _broken(path, "other bytes than its digest says")
    return _parsed(path, body[len(body) - size :])


def _parsed(path: Path, text: bytes) -> Header:
    try:
        plain = json.loads(text)
        version = plain["format"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _broken(path, f"a header that is none ({type(error).__name__})") from None
    if version != FORMAT:
        raise _broken(path, f"format {version!r}; this version reads {FORMAT}")
    kinds: dict[str, Any] = {"str": str, "bool": bool, "int": int}
    for field in fields(Header):
        kind = kinds.get(str(field.type), list if str(field.type).startswith("list") else dict)
        if type(plain.get(field.name)) is not kind:
            raise _broken(path, f"{field.name} = {str(plain.get(field.name))[:40]!r} in its header")
    return Header(**{field.name: plain[field.name] for field in fields(Header)})


def _broken(path: Path, found: str) -> HopperError:
    return HopperError(
        f"saved file {path}: found {found}; need one that tvm_hopper.save wrote; save it again"
    )
