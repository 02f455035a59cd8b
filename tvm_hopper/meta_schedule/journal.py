"""Append-only log of a work folder: one JSON object a line, whole or not at all.

    {"is": "header", "format": 2, "package": "0.1.0", ...}      what wrote the rest
    {"is": "workload", "key": "1f..", "form": "matmul ..", ...}  a function that is tuned
    {"is": "classes", "key": "9c..", "bounds": [[16, "1f.."]]}  size classes of symbolic rows
    {"is": "machine", "number": 0, "gpu": "NVIDIA H200", ...}   where trials ran
    {"is": "trial", "workload": "1f..", "configuration": "matmul {..}", "seconds": [..], ...}
    {"is": "end", "workload": "1f..", "trials": 48, "why": "..."}  why a search has no more
    {"is": "final", "workload": "1f..", "finalists": [".."], "winner": "..", "gain": 1.04, ...}
    {"is": "check", "workload": "1f..", "configuration": "..", "verdict": "equal", ...}

A line is on the disk before the next trial begins, so that a process may be killed at any moment:
of what it wrote all lines are whole but the last one, which is dropped with a note. Nothing in the
file is run: configurations are read as such, and everything else is numbers and names.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tvm_hopper.errors import cannot_tune, warn

from .versions import FORMAT, versions

FILE = "trials.jsonl"
LOCK = "lock"
HEADER = b'{"is":"header"'  # how a log begins
MOST_LINE = 16 << 20  # bytes: a workload's module is a few ten thousand
MOST_DIGITS = 20  # of a whole number: 64 bits

AMOUNTS = ("weight", "bytes", "multiply_adds", "bound_us")  # of a workload, where it has them

MODULE = re.compile(r'\["-?[0-9]+", ?"[A-Za-z0-9+/=]*"\]')  # its hash, and itself in base64


def _fields(*, text: str = "", number: str = "", **others: tuple[type, ...]) -> dict[str, Any]:
    return {
        **dict.fromkeys(text.split(), (str,)),
        **dict.fromkeys(number.split(), (int,)),
        **others,
    }


# The fields of a line next to "is", and their types. A line may have more fields.
FIELDS: dict[str, dict[str, tuple[type, ...]]] = {
    "header": _fields(text="package passes tvm", number="format"),
    "workload": _fields(text="key name form arch target module", number="num_sms", extents=(list,)),
    "classes": _fields(text="key name arch", number="num_sms", bounds=(list,)),
    "machine": _fields(number="number"),
    "trial": _fields(
        text="workload configuration kernel",
        number="machine",
        seconds=(list, type(None)),
        error=(str, type(None)),
        predicted=(int, float),
    ),
    "end": _fields(text="workload why", number="trials"),
    "final": _fields(text="workload winner", finalists=(list,)),
    "check": _fields(text="workload configuration verdict by", record=(str, type(None))),
}


def read_lines(folder: Path, mend: bool = False) -> list[dict[str, Any]]:
    """Read the log of a folder; an empty list where there is none.

    - `mend`: cut off a last line that is not whole, which else is only left out.
    - raises TuningError: a line is no JSON object of ours; the message names file and line.
    """
    path = folder / FILE
    if not path.exists():
        return []
    if not path.is_file() and not path.is_dir():  # a pipe would be waited for
        raise cannot_tune(str(path), "something else than a file", "a file of records")
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        why = f"a log that cannot be read ({error.strerror})"
        raise cannot_tune(str(path), why, "a file of records") from error
    torn = lines.pop()  # nothing, if the last line is whole
    rows = [_parse(line, f"{path}:{number}") for number, line in enumerate(lines, 1)]
    for number, row in enumerate(rows, 1):
        _check_header(row, number, path)
    if not lines and not HEADER.startswith(torn.replace(b" ", b"")[: len(HEADER)]):
        _parse(torn, f"{path}:1")
    if torn:  # and all before it is ours: of another file nothing is cut off
        warn(f"{path}:{len(lines) + 1}: dropped a line that is not whole", stacklevel=2)
        if mend:
            with writing(path), path.open("r+b") as file:
                file.truncate(path.stat().st_size - len(torn))
                os.fsync(file.fileno())
    return rows


def _parse(line: bytes, where: str) -> dict[str, Any]:
    fix = "remove the line, or begin with another work_dir"
    if len(line) > MOST_LINE:
        raise cannot_tune(where, f"{len(line)} bytes", f"a line of at most {MOST_LINE} bytes", fix)
    try:
        row = json.loads(line, parse_constant=_no_constant, parse_int=_whole)
        json.dumps(
            row, ensure_ascii=False, allow_nan=False
        ).encode()  # no half characters, no 1e999
    except (ValueError, RecursionError) as error:
        raise cannot_tune(where, f"{line[:60]!r}", "a JSON object", fix) from error
    known = FIELDS.get(row.get("is")) if _is_row(row) else None
    if known is None:
        raise cannot_tune(where, f"{line[:60]!r}", f'an object with "is": {", ".join(FIELDS)}', fix)
    for name, types in known.items():
        value = row.get(name)
        if name not in row or not isinstance(value, types) or isinstance(value, bool):
            need = f'"{name}" of type {" or ".join(t.__name__ for t in types)}'
            raise cannot_tune(where, f'"{name}": {str(value)[:60]!r}', need, fix)
    _check_values(row, where, fix)
    return dict(row)


def _is_row(row: Any) -> bool:
    return isinstance(row, dict) and isinstance(row.get("is"), str)


def _no_constant(text: str) -> float:
    raise ValueError(f"found {text}")


def _whole(text: str) -> int:
    if len(text) > MOST_DIGITS:  # which no float holds
        raise ValueError(f"found a number of {len(text)} digits")
    return int(text)


def _check_values(row: dict[str, Any], where: str, fix: str) -> None:
    """Refuse times that are none, extents that are no numbers, and bounds that are no pairs."""
    if row["is"] == "final":
        _check_final(row, where, fix)
    for name, is_right, need in VALUES.get(row["is"], ()):
        if not is_right(row.get(name, 0)):
            value = row[name]
            text = repr(value[:60]) if isinstance(value, str) else str(value)[:60]
            raise cannot_tune(where, f'"{name}": {text}', need, fix)


def _are_times(times: Any) -> bool:
    return times is None or (bool(times) and all(_is_number(x) and 0 < x < math.inf for x in times))


def _are_extents(extents: Any) -> bool:
    return all(isinstance(x, int) and x > 0 for x in extents)


def _are_bounds(bounds: Any) -> bool:
    return all(
        isinstance(x, list) and len(x) == 2 and isinstance(x[0], int) and isinstance(x[1], str)
        for x in bounds
    )


# For each kind of row: a field, a test of its value, and what is needed.
VALUES: dict[str, tuple[tuple[str, Callable[[Any], bool], str], ...]] = {
    "trial": (("seconds", _are_times, "times above 0, at least one"),),
    "check": (
        (
            *("record", lambda x: x is None or _is_record(x)),
            "a record of TVM's JSONDatabase, or null",
        ),
    ),
    "workload": (
        ("module", lambda x: bool(MODULE.fullmatch(x)), "a workload of TVM's JSONDatabase"),
        ("extents", _are_extents, "numbers above 0"),
        *((name, lambda x: _is_number(x) and x >= 0, "a number of at least 0") for name in AMOUNTS),
    ),
    "classes": (("bounds", _are_bounds, "pairs of rows and a workload's key"),),
}


def _check_final(row: dict[str, Any], where: str, fix: str) -> None:
    times = row.get("sustained_us")
    is_list = times is None or isinstance(times, list)
    if not is_list or not all(isinstance(x, str) for x in row["finalists"]):
        found = f'"finalists": {str(row["finalists"])[:60]}'
        raise cannot_tune(where, found, "configurations as texts, and a list of their times", fix)
    if row["winner"] not in row["finalists"]:
        found = f'"winner": {row["winner"][:60]!r}'
        raise cannot_tune(where, found, "one of its finalists", fix)
    for name in ("gain", "library_us"):
        value = row.get(name)
        if value is not None and not (_is_number(value) and 0 < value < math.inf):
            raise cannot_tune(where, f'"{name}": {str(value)[:60]}', "a number above 0", fix)


def _is_record(text: str) -> bool:
    """Tell one line with trace, times, target and arguments: what TVM reads is made of them."""
    try:
        parts = json.loads(text) if "\n" not in text else None
    except (ValueError, RecursionError):
        return False
    kinds = (list, list, dict, list)
    if not isinstance(parts, list) or len(parts) != len(kinds):
        return False
    return all(isinstance(x, y) for x, y in zip(parts, kinds, strict=True))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _check_header(row: dict[str, Any], number: int, path: Path) -> None:
    """Refuse a file that another form of this module wrote, and several in one."""
    if number > 1:
        if row["is"] == "header":
            fix = "add folders to one by tvm_hopper.meta_schedule.merge"
            raise cannot_tune(f"{path}:{number}", "a second header", "one log in a file", fix)
        return
    if row["is"] != "header" or row["format"] != FORMAT:
        found = f"format {row['format']}" if row["is"] == "header" else f"a {row['is']} first"
        need = f"a header of format {FORMAT}"
        raise cannot_tune(f"{path}:1", found, need, "begin with another work_dir")


class Journal:
    """The log of a work folder, open for one process that appends to it.

    - `folder`: the work folder; made if it is not there.
    - raises TuningError: another process writes there, what is there is no work folder of ours, or
      other versions than this process' wrote it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        need = "a folder, or a path to make one at"
        if folder.exists() and not folder.is_dir():
            raise cannot_tune(f"work_dir {folder}", "a file", need)
        with contextlib.ExitStack() as opened:  # closes them if anything is refused
            try:
                folder.mkdir(parents=True, exist_ok=True)
                lock = opened.enter_context(_opened_lock(folder / LOCK))
            except OSError as error:
                found = f"no place to write at ({error.strerror})"
                raise cannot_tune(f"work_dir {folder}", found, need) from error
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                found = "another process that tunes into it"
                raise cannot_tune(f"work_dir {folder}", found, "a separate folder") from error
            self.rows = read_lines(folder, mend=True)
            with writing(folder / FILE):
                self._file = opened.enter_context((folder / FILE).open("ab", buffering=0))
            if self.rows:
                check_versions(self.rows[0], folder)
            else:
                self.append({"is": "header", "format": FORMAT, **versions()})
            self._opened = opened.pop_all()

    def append(self, row: dict[str, Any]) -> None:
        """Write one line, and return once it is on the disk."""
        self.extend([row])

    def extend(self, rows: Sequence[dict[str, Any]]) -> None:
        """Write lines in their order, and return once all are on the disk."""
        texts = [json.dumps(row, separators=(",", ":"), allow_nan=False) for row in rows]
        rest = memoryview("".join(f"{text}\n" for text in texts).encode())
        whole = os.fstat(self._file.fileno()).st_size
        with writing(self.folder / FILE):
            try:
                while rest:  # a disk that is nearly full takes a part
                    rest = rest[self._file.write(rest) :]
                os.fsync(self._file.fileno())
            except OSError:
                with contextlib.suppress(OSError):
                    self._file.truncate(whole)
                raise
        self.rows += rows

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_error: object) -> None:
        self._opened.close()


def _opened_lock(path: Path) -> Any:
    """Open a file that is there to be locked: nothing in it is lost, nor in what a link names."""
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666), "rb+", 0)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Say in one sentence why a file cannot be written.

    - raises TuningError: it cannot: a full disk, a quota, a folder that became read-only.
    """
    try:
        yield
    except OSError as error:
        raise cannot_tune(
            str(path),
            f"no way to write on ({error.strerror})",
            "a file that can grow",
            "make room; what was measured is kept, and the same call goes on from there",
        ) from error


def as_folder(work_dir: Any, where: str) -> Path:
    """Return the path that is meant.

    - raises TuningError: it is none; `where` names who asked.
    """
    if not isinstance(work_dir, (str, os.PathLike)) or not os.fspath(work_dir):
        found = f"{work_dir!r}, of type {type(work_dir).__name__}"
        raise cannot_tune(where, found, "the work_dir of a tuning run")
    try:
        os.stat(work_dir)
    except (FileNotFoundError, NotADirectoryError):
        pass  # it is made, or the error says more
    except (OSError, ValueError) as error:  # too long, zero characters, a folder that is not ours
        found = f"{str(work_dir)[:60]!r} ({getattr(error, 'strerror', None) or error})"
        raise cannot_tune(where, found, "a path that can be opened") from error
    return Path(work_dir)


def visible(text: str) -> str:
    """Return a text of a log that a terminal prints and does not obey."""
    return "".join(x if x.isprintable() else "?" for x in text)


def check_versions(header: dict[str, Any], folder: Path) -> None:
    """Refuse times of kernels that this process would not make again."""
    if different := differing(header):
        raise cannot_tune(
            f"work_dir {folder}",
            "records of " + ", ".join(f"{name} {header.get(name)}" for name in different),
            "those of this process: " + ", ".join(f"{x} {versions()[x]}" for x in different),
            "begin with another work_dir",
        )


def differing(header: dict[str, Any]) -> list[str]:
    """Return which versions are not those of this process."""
    return [name for name, value in versions().items() if header.get(name) != value]
