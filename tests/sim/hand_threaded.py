"""A short form of kernels as the lowering leaves them: threads by hand, one dynamic allocation.

    @hand_threaded(64, smem=512)
    def main(X: F32[64], Y: F32[64], tx, tile: Shared[F32], bar: Shared[U64], v: Local[U32]):
        tile[tx] = X[tx]

is the prim_func `main` of X and Y. It launches one block of 64 threads (`tx`; `bx` is the block,
`rank` the block in its cluster), allocates 512 bytes of dynamic shared memory with a view over all
of it for each `Shared`, and the arrays of each block (`Static`) or thread (`Local`).

    @hand_threaded(64, then=lower)
    def swapped(X: F32[64], Y: F32[64], tx, tile: Shared[F32], *, synced, times=1):

is a function of `synced` and `times`, which the body may ask for; it makes each kernel once.
"""

import functools
import inspect
from dataclasses import dataclass

import numpy as np
import tvm.script
from tvm.script import tirx as T

AXES = {
    "bx": "blockIdx.x", "by": "blockIdx.y", "bz": "blockIdx.z", "rank": "clusterCtaIdx.x",
    "tx": "threadIdx.x", "ty": "threadIdx.y",
}  # fmt: skip


@dataclass(frozen=True)
class Elements:
    """Elements of one type; with a shape, a tensor that the kernel is given."""

    dtype: str
    shape: tuple = ()

    def __getitem__(self, shape):
        return Elements(self.dtype, shape if isinstance(shape, tuple) else (shape,))


@dataclass(frozen=True)
class Place:
    """An array of the kernel's own: `Local[F32]` has one element, `Local[F32, 4]` has four."""

    scope: str
    elements: Elements | None = None

    def __getitem__(self, item):
        elements, *shape = item if isinstance(item, tuple) else (item,)
        return Place(self.scope, elements[tuple(shape)] if shape else elements)

    def declaration(self, smem):
        """Write the call that declares it; views are over `smem` bytes."""
        dtype, shape = self.elements.dtype, self.elements.shape
        if self.scope == "shared.dyn":
            shape = shape or (smem // np.dtype(dtype).itemsize,)
            return f'T.decl_buffer({shape}, "{dtype}", data=smem.data, scope="shared.dyn")'
        return f'T.alloc_buffer({shape or (1,)}, "{dtype}", scope="{self.scope}")'


@dataclass(frozen=True)
class Map:
    """A tensor map of a parameter, written by the host; dense unless `strides` (bytes) says not."""

    tensor: str
    dims: tuple
    box: tuple
    swizzle: int = 0
    promotion: int = 2
    strides: tuple | None = None
    dtype: str | None = None  # of another name than that of the parameter

    def lines(self, name, dtype):
        """Write the statements that allocate and encode it."""
        dtype = self.dtype or dtype
        rank = len(self.dims)
        strides = self.strides or np.cumprod(self.dims[:-1], dtype=int) * np.dtype(dtype).itemsize
        words = [*self.dims, *strides, *self.box, *[1] * rank, 0, self.swizzle, self.promotion, 0]
        words = ", ".join(str(int(word)) for word in words)
        given = f'{name}, "{dtype}", {rank}, {self.tensor}.data, {words}'
        return [
            f'{name}: T.let[T.handle("tensormap")] = T.tvm_stack_alloca("tensormap", 1)',
            f'T.call_packed("runtime.cuTensorMapEncodeTiled", {given})',
        ]


F16, F32, F64, BF16 = map(Elements, ("float16", "float32", "float64", "bfloat16"))
I8, I32, I64 = map(Elements, ("int8", "int32", "int64"))
U8, U16, U32, U64 = map(Elements, ("uint8", "uint16", "uint32", "uint64"))
Shared, Static, Local = map(Place, ("shared.dyn", "shared", "local"))


def _frame(parameters, extents, smem, attributes):
    """Write the text of the prim_func; it calls `body` with all that is declared."""
    given = [
        f'{name}: T.Buffer({one.shape}, "{one.dtype}")'
        for name, one in parameters.items()
        if isinstance(one, Elements)
    ]
    launches = [
        f'{f"{name} = " * (name in parameters)}T.launch_thread("{AXES[name]}", {extent})'
        for name, extent in extents.items()
    ]
    places = {name: one for name, one in parameters.items() if isinstance(one, Place)}
    arrays = [f"{name} = {one.declaration(smem)}" for name, one in places.items()]
    scopes = [one.scope for one in places.values()]
    if "shared.dyn" in scopes:
        whole = f'smem = T.alloc_buffer(({smem},), "uint8", scope="shared.dyn", align=1024)'
        arrays.insert(scopes.index("shared.dyn"), whole)
    inside = [*arrays, f"body({', '.join(f'{name}={name}' for name in parameters)})"]
    if attributes:
        items = ", ".join(f'T.attr(T.int32(0), "{k}", {v})' for k, v in attributes.items())
        inside = [f"with {items}:", *("    " + line for line in inside)]
    maps = [
        line
        for name, one in parameters.items()
        if isinstance(one, Map)
        for line in one.lines(name, parameters[one.tensor].dtype)
    ]
    lines = ['T.func_attr({"global_symbol": "main"})', *maps, *launches, *inside]
    return f"@T.prim_func(s_tir=True)\ndef main({', '.join(given)}):\n    " + "\n    ".join(lines)


def hand_threaded(
    threads, grid=1, *, cluster=None, smem=1024, min_blocks=None, by_hand=True, then=None
):
    """Make a prim_func of a function: see above; `grid` is of one extent or of several.

    `min_blocks`: the blocks that one SM holds, for the compiler. `by_hand=False` leaves it to the
    lowering to order threads. `then` is called with the prim_func.
    """
    extents = {}
    for names, extent in (("bx by bz", grid), ("rank", cluster), ("tx ty", threads)):
        along = extent if isinstance(extent, tuple) else (extent,)
        extents |= zip(names.split(), along, strict=False)
    extents = {name: extent for name, extent in extents.items() if extent is not None}
    attributes = {"tirx.launch_bounds_min_blocks_per_sm": min_blocks, "hand_threaded": int(by_hand)}
    attributes = {key: value for key, value in attributes.items() if value}

    def build(function, given):
        names = function.__code__.co_varnames[: function.__code__.co_argcount]
        parameters = {name: function.__annotations__.get(name) for name in (*names, *given)}
        text = _frame(parameters, extents, smem, attributes)
        known = {"T": T, "body": T.inline(function), **given}
        func = tvm.script.from_source(text, extra_vars=known)
        return then(func) if then else func

    def make(function):
        parameters = inspect.signature(function).parameters.values()
        of_python = [x for x in parameters if x.kind is inspect.Parameter.KEYWORD_ONLY]
        if not of_python:
            return build(function, {})
        by_place = inspect.Parameter.POSITIONAL_OR_KEYWORD
        signature = inspect.Signature([x.replace(kind=by_place) for x in of_python])

        @functools.cache
        def made(*values):
            return build(function, dict(zip(signature.parameters, values, strict=True)))

        def kernel(*args, **kwargs):
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            return made(*bound.args)

        return kernel

    return make
