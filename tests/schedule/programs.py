"""Programs that tests schedule: functions of `te`, products, and products written by hand."""

import tvm
from tvm import te
from tvm.script import tirx as T


def module(*tensors):
    """Return the module of one function that has these tensors as arguments."""
    return tvm.IRModule({"main": te.create_prim_func(list(tensors))})


def tensor(*shape, dtype="float32", name="X"):
    return te.placeholder(shape, dtype, name=name)


def axis(extent, name="k"):
    return te.reduce_axis((0, extent), name=name)


def operands(m, n, k, dtype="float16"):
    """Return A and B of a product of so many rows, columns and terms."""
    return tensor(m, k, dtype=dtype, name="A"), tensor(n, k, dtype=dtype, name="B")


def multiply(x, y):
    return x.astype("float32") * y.astype("float32")


def by_rows(row, k):
    return row, k


def product(a, b, name="C", shape=None, left=by_rows, right=by_rows, value=multiply):
    """Return C[i, j] += a[i, k] * b[j, k] in float32; `left`, `right`: other places in a and b."""
    m, n, depth = shape or (a.shape[0], b.shape[0], a.shape[1])
    k = te.reduce_axis((0, depth), "k")
    return te.compute(
        (m, n), lambda i, j: te.sum(value(a[left(i, k)], b[right(j, k)]), k), name=name
    )


MULTIPLY_ADD = 'T.Cast("float32", A[vi, vk]) * T.Cast("float32", B[vj, vk])'
BLOCK = """
{loops}
{pad}with T.sblock("C"):
{pad}    {axes}
{pad}    with T.init():
{pad}        C[{at}] = T.float32(0)
{pad}    {update}
"""


def written(
    loops="for i, j, k in T.grid(64, 64, 64):",
    axes='vi, vj, vk = T.axis.remap("SSR", [i, j, k])',
    at="vi, vj",
    update="",
    shapes=((64, 64), (64, 64), (64, 64)),
    after="",
    more="",
):
    """Return a product of TVMScript in a module.

    Parameters
    ----------
    loops, axes : str
        Lines around the block, and of its variables.
    at, update : str
        The index of C, and what the block does; the update of a product if empty.
    shapes : tuple
        Of A, B and C; C is no argument if its shape is None.
    after, more : str
        Blocks after the product, and further arguments.
    """
    names = [
        f'{name}: T.Buffer({shape}, "{dtype}")'
        for name, shape, dtype in zip("ABC", shapes, ("float16",) * 2 + ("float32",), strict=True)
        if shape is not None
    ]
    body = "" if shapes[2] else '\nC = T.sblock_alloc_buffer((64, 64), "float32")'
    pad = "    " * len(loops.splitlines())
    update = update or f"C[{at}] = C[{at}] + {MULTIPLY_ADD}"
    body += BLOCK.format(loops=loops, pad=pad, axes=axes.replace("\n", f"\n{pad}    "), at=at,
                         update=update)  # fmt: skip
    lines = "\n".join(f"    {line}" for line in (body + after).splitlines())
    text = f"@T.prim_func(s_tir=True)\ndef main({', '.join(names)}{more}):\n{lines}\n"
    func = tvm.script.from_source(text, extra_vars={"T": T})
    return tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
