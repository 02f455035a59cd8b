"""Results of builds on disk, by their content: machine code and lowered modules.

An entry is a file: MAGIC, the SHA-256 of its data, the data. Its name is the hash of all that the
data depends on. Processes share a folder without locks: a file is renamed to its name once it is
whole, and one that is damaged counts as absent. If the disk fails, builds go on without the
cache; `python -m tvm_hopper doctor` says where the folder is and whether it can be written.

    TVM_HOPPER_CACHE=0            no cache
    TVM_HOPPER_CACHE_DIR=FOLDER   instead of ~/.cache/tvm_hopper
    TVM_HOPPER_CACHE_BYTES=N      limit of all entries, 1 GiB by default; the oldest go first

Entries are code: a folder belongs to one user, or to users who trust each other.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import itertools
import os
import tempfile
import time
from pathlib import Path

SWITCH, FOLDER, LIMIT = "TVM_HOPPER_CACHE", "TVM_HOPPER_CACHE_DIR", "TVM_HOPPER_CACHE_BYTES"
MAGIC = b"TVMHOPC\n"
HEAD = len(MAGIC) + hashlib.sha256().digest_size
DEFAULT_LIMIT = 1 << 30
KEPT_SHARE = 0.9  # of the limit, after entries were removed
WRITES_BETWEEN_SWEEPS = 64
STALE_SECONDS = 3600  # after which an unfinished file has no writer any more

_writes = itertools.count()


def folder() -> Path | None:
    """Return the folder of the entries, None where the cache is off."""
    if os.environ.get(SWITCH, "1") == "0":
        return None
    if os.environ.get(FOLDER):
        return Path(os.environ[FOLDER])
    try:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:  # no home
        return None
    return Path(base, "tvm_hopper")


@functools.cache
def versions() -> str:
    """Return what stands for the code that computes: this package's files, and TVM's libraries."""
    root = Path(__file__).resolve().parent
    links = [root / name for name in ("transforms", "codegen_patches")]  # in a checkout
    folders = [root, *(path.resolve() for path in links if path.is_symlink())]
    files = [file for folder in folders for file in sorted(folder.rglob("*.py"))]
    for name in ("tvm", "tvm_ffi"):
        spec = importlib.util.find_spec(name)
        folders = [
            Path(x, "lib") for x in (spec.submodule_search_locations if spec else None) or ()
        ]
        files += [file for folder in folders for file in sorted(folder.glob("lib*"))]
    states = [(file.name, file.stat()) for file in files]
    lines = [f"{name} {state.st_size} {state.st_mtime_ns}" for name, state in states]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def key_of(kind: str, *parts: str) -> str:
    """Return the name of an entry: its kind, and the hash of all that it depends on."""
    digest = hashlib.sha256(versions().encode())
    for part in parts:
        data = part.encode(errors="surrogateescape")
        digest.update(len(data).to_bytes(8, "little") + data)
    return f"{kind}-{digest.hexdigest()}"


def get(key: str) -> bytes | None:
    """Return an entry's data; None where it is absent, damaged, or the cache is off."""
    where = folder()
    if where is None:
        return None
    path = where / key
    try:
        found = path.read_bytes()
    except OSError:
        return None
    is_whole = found[:HEAD] == MAGIC + hashlib.sha256(found[HEAD:]).digest()
    with contextlib.suppress(OSError):  # of a folder that is read only
        if is_whole:
            os.utime(path)  # what is used stays
        else:
            path.unlink(missing_ok=True)
    return found[HEAD:] if is_whole else None


def put(key: str, data: bytes) -> None:
    """Keep an entry's data, if it has any and there is a place for it."""
    where, bound = folder(), limit()
    if where is None or not 0 < len(data) <= bound // 4:
        return
    try:
        where.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(where / key, MAGIC + hashlib.sha256(data).digest() + data)
        if next(_writes) % WRITES_BETWEEN_SWEEPS == 0:
            _sweep(where, bound)
    except OSError:  # a full disk, a folder of somebody else's
        return


def limit() -> int:
    """Return how many bytes all entries may have."""
    text = os.environ.get(LIMIT, "")
    return int(text) if text.isdigit() else DEFAULT_LIMIT


def replace_file(path: Path, data: bytes, durable: bool = False) -> None:
    """Write a file such that readers see the old one or all of the new one.

    - `durable`: wait until the disk has it.
    - raises OSError: it cannot be written; nothing is left behind.
    """
    number, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:100]}.")
    try:
        with open(number, "wb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def entries(where: Path) -> list[tuple[float, int, Path]]:
    """Return age mark, bytes and path of each entry, the oldest first; none without a folder."""
    found = []
    try:
        listed = list(os.scandir(where))
    except OSError:
        return []
    for item in listed:
        try:
            state = item.stat()
        except OSError:  # another process has removed it
            continue
        found.append((state.st_mtime, state.st_size, Path(item.path)))
    return sorted(found)


def _sweep(where: Path, bound: int) -> None:
    """Remove what writers that were killed have left, and the oldest entries above the limit."""
    found = entries(where)
    unfinished = [x for x in found if x[2].name.startswith(".")]
    for made, _, path in unfinished:
        if made < time.time() - STALE_SECONDS:
            path.unlink(missing_ok=True)
    whole = [x for x in found if not x[2].name.startswith(".")]
    total = sum(size for _, size, _ in whole)
    wanted = total if total <= bound else int(KEPT_SHARE * bound)
    for _, size, path in whole:
        if total <= wanted:
            return
        path.unlink(missing_ok=True)
        total -= size


def state() -> tuple[str, bool]:
    """Say where the cache is and what it holds, and whether it can be used."""
    where = folder()
    if where is None:
        return f"off ({SWITCH}=0, or no home)", True
    found = entries(where)
    base = next(x for x in (where, *where.parents) if x.exists())
    good = base.is_dir() and os.access(base, os.W_OK | os.X_OK)
    size = sum(size for _, size, _ in found) / 2**20
    return f"{where}: {len(found)} entries, {size:.1f} of {limit() / 2**20:.0f} MiB", good
