"""A product of one row as what it is to memory: a reduction of the rows of its weight.

    def linear(x: (rows, K), w: (N, K), y: (rows, N)): a kernel for each size class
  ->
    if rows <= 1:
        if rows >= 1:
            y[0, j] = sum(x[0, k] * w[j, k])       each row of w read once, by all of its threads
    else:
        a kernel for each size class

Tensor cores want 8 rows at least; with one, memory's rate is all that counts, and a kernel of row
reductions reaches it.  Its sums run in another order, so that bits are those of other rows no more.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import s_tir, tirx

from tvm_hopper import ir
from tvm_hopper import schedule as hs
from tvm_hopper.errors import HopperError
from tvm_hopper.facts.dtypes import dtype_bytes
from tvm_hopper.requests import keys
from tvm_hopper.schedule.products.recognize import Matmul
from tvm_hopper.schedule.reasons import TVM_ERRORS

NAME = "one_row"
READ_RATE = 4.28e6  # bytes of the weight in a microsecond, on an H200
LAUNCH = 1.5  # microseconds of the smallest kernel
LEAST_DEPTH = 512  # elements of a row of the weight: below, threads wait for one another


def one_row_kernel(func: tirx.PrimFunc, problem: Matmul) -> tirx.PrimFunc | None:
    """Return a product of one row, scheduled; None where it is better computed otherwise.

    Parameters
    ----------
    func : PrimFunc
        Plain loops around one product.
    problem : Matmul
        The product: its rows are one, or a symbol, which is taken for one.
    """
    rows, columns, depth = (x.extent for x in (problem.m, problem.n, problem.k))
    is_known = isinstance(columns, int) and isinstance(depth, int)
    if not is_known or depth < LEAST_DEPTH or problem.rhs.major != "k":
        return None
    one = _with_one(func, rows) if isinstance(rows, tirx.Var) else func
    try:
        sch = s_tir.Schedule(hs.widen_sums(one).with_attr("global_symbol", "main"))
        hs.row_reduction(sch)
        new = sch.mod["main"]
        (kernel,) = ir.kernels(new)
    except (HopperError, ValueError, *TVM_ERRORS):
        return None
    time = columns * depth * dtype_bytes(problem.rhs.dtype) / READ_RATE + LAUNCH
    noted = {**kernel.annotations, keys.CHOSEN_FOR: [1, round(10 * time)]}
    marked = ir.with_body(kernel, kernel.body, annotations=noted)
    return new.with_body(ir.replace_nodes(new.body, ir.For, {kernel: marked}))


def with_one_row(func: tirx.PrimFunc, one: tirx.PrimFunc, rows: Any) -> tirx.PrimFunc:
    """Let a function of size classes compute a single row by another kernel.

    Parameters
    ----------
    func : PrimFunc
        Scheduled, for any number of rows.
    one : PrimFunc
        What `one_row_kernel` returned for the same function.
    rows : Var
        The symbol that counts the rows.
    """
    own = dict(zip(one.params, func.params, strict=True))
    inner = tvm_ffi.structural_map(one.body.block, [(tirx.Var, lambda x: own.get(x, x))])
    outer = func.body.block
    single = tirx.IntImm(ir.dtype_of(rows), 1)
    inputs = [x for x in func.params if x not in [r.source for r in inner.writes]]
    block = ir.opaque_block(
        NAME,
        inner.body,
        alloc_buffers=list(inner.alloc_buffers),
        reads=[ir.full_region(x) for x in inputs],
        writes=[ir.full_region(func.params[-1])],
    )
    body = ir.IfThenElse(rows <= single, ir.IfThenElse(rows >= single, block, None), outer.body)
    root = ir.with_block(outer, body=body)
    return func.with_body(ir.SBlockRealize(func.body.iter_values, func.body.predicate, root))


def _with_one(func: tirx.PrimFunc, rows: Any) -> tirx.PrimFunc:
    number = tirx.IntImm(ir.dtype_of(rows), 1)
    bound = tvm_ffi.structural_map(func, [(tirx.Var, lambda x: number if x.same_as(rows) else x)])
    result: tirx.PrimFunc = bound
    return result
