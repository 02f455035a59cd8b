"""`python -m tvm_hopper cuda FILE.py:make` and `sass FILE.py:make`: the code of its kernels."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable

import tvm

from tvm_hopper.cuda_build import records
from tvm_hopper.cuda_build.disassembler import disassemble
from tvm_hopper.requests.kernel_file import load_kernel


def cuda_command(arguments: argparse.Namespace) -> int:
    """Print the CUDA text of the kernels that a Python file makes."""
    return _show(arguments, lambda record: record.source)


def sass_command(arguments: argparse.Namespace) -> int:
    """Print the machine code of the kernels that a Python file makes, as nvdisasm shows it."""
    return _show(arguments, lambda record: disassemble(record.compile().cubin))


def _show(arguments: argparse.Namespace, text_of: Callable[[records.BuildRecord], str]) -> int:
    kernel = load_kernel(*arguments.kernel)
    if isinstance(kernel, (tvm.IRModule, tvm.tirx.PrimFunc)):
        kernel = tvm.compile(kernel, target=arguments.target)
    texts = {", ".join(x.kernels): text_of(x) for x in records.lookup_all(kernel)}
    print(json.dumps(texts, indent=1) if arguments.json else "\n".join(texts.values()))
    return 0
