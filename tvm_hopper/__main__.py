"""The shell commands: `python -m tvm_hopper doctor` and `... verify kernel.py:make_module`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

USAGE = """\
usage: python -m tvm_hopper COMMAND ...

  doctor [--json]                          what this machine has and lacks, and what mends it
  verify kernel.py:make_module [--json]    simulate a kernel and judge it; exit code by verdict
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code (2 for a mistake in the command line)."""
    words = list(sys.argv[1:] if argv is None else argv)
    command, rest = (words[0] if words else ""), words[1:]
    if command == "doctor":
        from tvm_hopper.doctor import doctor_command

        return doctor_command(rest)
    if command == "verify":
        from tvm_hopper.simulation import verify_command

        return verify_command(rest)
    asked = command in ("-h", "--help", "help")
    print(USAGE, end="", file=sys.stdout if asked else sys.stderr)
    return 0 if asked else 2


if __name__ == "__main__":
    sys.exit(main())
