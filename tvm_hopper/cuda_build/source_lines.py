"""Give CUDA text the lines of the TIR that it was printed from, for profilers and sanitizers.

    #line 31 "/tmp/lines/gemm_kernel.3f2a.py"
    for (int k_0 = 0; k_0 < 2; ++k_0) {               31:  for k_0 in T.serial(2, unroll=False):

TVM prints statements in order and says of none where it comes from. So the two texts are aligned by
the kinds of their statements; one without a partner belongs to the statement before it.
"""

from __future__ import annotations

import difflib
import hashlib
import re
from pathlib import Path

import tvm

from tvm_hopper.errors import cannot_configure
from tvm_hopper.requests.keys import LINE_INFO

_KERNEL = re.compile(r'^extern "C" __global__ void (?:__\w+__\([^)]*\) )*(\w+)\([^;]*\{$')
_FUNCTION = re.compile(r"^    def (\w+)\(")
_CUDA = (  # a statement's kind, by the first pattern that its line matches; None: no statement
    (re.compile(r"(for|while|if) \("), r"\1"),
    (re.compile(r"\} else"), "else"),
    (re.compile(r"[\w:]+ (\w+) = "), r"let \1"),
    (re.compile(r"\w+\("), "call"),
    (re.compile(r".*[^=!<>]=[^=].*;$"), "store"),
)
_TIR = (
    (re.compile(r"(for|while|if) "), r"\1"),
    (re.compile(r"else:"), "else"),
    (re.compile(r"(\w+): T\.let\["), r"let \1"),
    (re.compile(r"T\.(?:attr|func_attr|launch_thread|let)\(|\w+ = T\.|with "), ""),
    (re.compile(r"T\.[\w.]+\("), "call"),
    (re.compile(r"[\w.]+\[.*\] = "), "store"),
)


def with_lines(text: str, kernels: tvm.IRModule, folder: str) -> str:
    """Write the TIR of kernels to a file in a folder, and name its lines in their CUDA text.

    - raises OptionError: it cannot be written.
    """
    script = str(kernels.script())
    name = hashlib.sha256(script.encode()).hexdigest()[:12]
    path = Path(folder, f"kernels_{name}.py")
    if not path.is_absolute():  # profilers run elsewhere
        raise cannot_configure("PassContext", f"{LINE_INFO} = {folder!r}", "an absolute path")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(script)
    except OSError as error:
        found = f"{LINE_INFO} = {folder!r}, where nothing is written ({error.strerror})"
        raise cannot_configure("PassContext", found, "a folder") from error
    statements = _statements_of_tir(script)
    lines, result = text.splitlines(), []
    at = 0
    while at < len(lines):
        head = _KERNEL.match(lines[at])
        result.append(lines[at])
        at += 1
        if head is not None:
            end = next(i for i in range(at, len(lines)) if lines[i].startswith("}"))
            result += _marked(lines[at:end], statements.get(head[1], []), str(path))
            at = end
    return "\n".join([*result, ""])


def _statements_of_tir(script: str) -> dict[str, list[tuple[str, int]]]:
    """Return kind and line of each statement, by function; a line of several loops has several."""
    found: dict[str, list[tuple[str, int]]] = {}
    current: list[tuple[str, int]] = []
    for number, line in enumerate(script.splitlines(), 1):
        if head := _FUNCTION.match(line):
            current = found.setdefault(head[1], [])
        elif kind := _kind(line, _TIR):
            loops = line.partition(" in ")[0].count(",") if kind == "for" else 0
            current += [(kind, number)] * (1 + loops)
    return found


def _kind(line: str, patterns: tuple[tuple[re.Pattern[str], str], ...]) -> str:
    stripped = line.strip()
    for pattern, kind in patterns:
        if found := pattern.match(stripped):
            return found.expand(kind)
    return ""


def _marked(body: list[str], statements: list[tuple[str, int]], path: str) -> list[str]:
    """Return the lines of a kernel's body, each behind the TIR line of its statement."""
    kinds = [(kind, i) for i, line in enumerate(body) if (kind := _kind(line, _CUDA))]
    matcher = difflib.SequenceMatcher(
        None, [kind for kind, _ in kinds], [kind for kind, _ in statements], autojunk=False
    )
    line_of = {
        kinds[block.a + i][1]: statements[block.b + i][1]
        for block in matcher.get_matching_blocks()
        for i in range(block.size)
    }
    result, current = [], statements[0][1] if statements else 1
    for i, line in enumerate(body):
        current = line_of.get(i, current)
        result += [f'#line {current} "{path}"', line]
    return result
