"""Pointers and calls: which bytes of global memory an instruction reads, writes or updates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import ir

from tvm_hopper.sim.arithmetic.table import INSTRUCTIONS
from tvm_hopper.sim.coverage.accesses import (
    ATOMIC,
    LOAD,
    STORE,
    GlobalAccess,
    GlobalAddress,
    PathStep,
    Undecided,
)
from tvm_hopper.sim.coverage.expressions import Expressions
from tvm_hopper.sim.coverage.nodes import INNER, Node, Nodes, Variable
from tvm_hopper.sim.launch.tensor_map_object import (
    ALIGNMENT as MAP_ALIGNMENT,
    NUM_BYTES as MAP_BYTES,
)
from tvm_hopper.sim.launch.tma import START_ALIGNMENT
from tvm_hopper.sim.ops.atomics import order_of
from tvm_hopper.sim.ops.vector_access import DISCARDED_BYTES
from tvm_hopper.sim.tir import (
    DTYPE_OF,
    PTX,
    PtxCall,
    decode_ptx,
    dtype_of,
    numpy_dtype,
    op_name,
    short_name,
)
from tvm_hopper.sim.translate.cuda_helpers import COMPUTED
from tvm_hopper.sim.translate.device_math import MATH, plain_name

_SAME = ("reinterpret", "likely", "cuda.cvta_generic_to_shared", "cuda.smem_addr_from_uint64")
_PLUS = ("handle_add_byte_offset", "ptx.addr")
_NO_ACCESS = (
    *("cp_async_bulk_prefetch", "cp_async_bulk_tensor_prefetch", "prefetch", "applypriority"),
    *("mbarrier", "createpolicy", "fence", "cp_async_mbarrier", "wgmma", "mapa", "cvta"),
    *("isspacep", "cp_reduce_async_bulk_s2c", "griddepcontrol"),
)
_TO_CLUSTER = ("st_async", "st_async_vec", "red_async")
_WITHIN_CTA = (  # calls that order nothing between CTAs
    *("tvm_storage_sync", "tvm_warp", "tvm_hopper", "ptx_legacy", "mma_", "cuda.mbarrier"),
    *("cuda.cta_sync", "cuda.warp", "cuda.cluster", "cuda.wgmma", "cuda.elect", "cuda.thread_rank"),
    *("cuda.any_sync", "cuda.all_sync", "cuda.ballot", "cuda.__shfl", "cuda.__active"),
    *("bitwise", "shift", "if_then_else", "isnullptr", "cuda.syncthreads", "cuda.reduce_"),
    *("cuda.cta_reduce", "cuda.mov_sreg", "cuda.nano_sleep", "cuda.trap", "large_uint_imm"),
)
_WITHIN_CTA_PTX = (
    *("cp_async", "bar", "setmaxnreg", "ldmatrix", "stmatrix", "mma", "elect", "vote", "match"),
    *("redux", "shfl", "movmatrix", "activemask"),
)
_BULK_ALIGNMENT = 16  # PTX ISA, cp.async.bulk: addresses and size


class Pointers:
    """Follows pointers and calls; a part of `Walker`."""

    nodes: Nodes
    expressions: Expressions
    path: tuple[PathStep, ...]
    accesses: list[GlobalAccess]
    undecided: list[Undecided]
    addresses: dict[Any, GlobalAddress]
    statement: Any
    communicates: bool
    maps: frozenset[str]  # parameters that are tensor maps

    def visit(self, expr: Any) -> None:
        """Note the accesses inside an expression."""
        raise NotImplementedError

    def undecide(self, reason: str, param: str | None, stores: bool = True) -> None:
        """Note an unknown part of the statement, with the current path."""
        self.undecided.append(Undecided(self.statement, reason, param, stores, self.path))

    def element(self, buffer: Any, indices: Sequence[Any], kind: str) -> None:
        """Note an access of a buffer's element."""
        raise NotImplementedError

    # -- pointers ---------------------------------------------------------------------------------

    def viewed(self, data: Any) -> Any:
        """Return the buffer or variable that a plain pointer names."""
        return data.args[0] if isinstance(data, ir.Call) and data.args else data

    def points(self, expr: Any) -> bool:
        """Return whether an expression is a pointer to global memory, maybe as an integer."""
        return (
            isinstance(expr, ir.Call)
            and short_name(expr) in (*_SAME, *_PLUS, "address_of", "tvm_access_ptr")
            and self.address(expr).param != ""
        )

    def address(self, expr: Any) -> GlobalAddress:
        """Return where an expression points to."""
        nodes = self.nodes
        if isinstance(expr, ir.Var):
            return self.addresses.get(expr, GlobalAddress("", nodes.zero))
        kind = type(expr).__name__
        if kind == "Cast":
            return self.address(expr.value)
        if kind == "Add" and self.points(expr.a):
            return self._plus(self.address(expr.a), self.expressions.node(expr.b))
        if isinstance(expr, ir.TensorLoad):  # an address kept in registers, of shared memory
            return GlobalAddress("", nodes.zero)
        if not isinstance(expr, ir.Call):
            return GlobalAddress(None, nodes.zero)
        name, args = short_name(expr), expr.args
        if name in _SAME:
            return self.address(args[0])
        if name in _PLUS:
            return self._plus(self.address(args[0]), self.expressions.node(args[1]))
        if name == "buffer_data":
            return self.addresses.get(args[0], GlobalAddress("", nodes.zero))
        if name == "address_of":
            return self._element(args[0])
        if name == "tvm_access_ptr":
            size = numpy_dtype(dtype_of(args[0])).itemsize
            moved = nodes.times(self.expressions.node(args[2]), size)
            return self._plus(self.address(args[1]), moved)
        return GlobalAddress(None, nodes.zero)

    def _plus(self, place: GlobalAddress, offset: Node) -> GlobalAddress:
        return GlobalAddress(
            place.param, self.nodes.make("add", place.offset, offset), place.buffer
        )

    def _element(self, target: Any) -> GlobalAddress:
        nodes = self.nodes
        if isinstance(target, ir.Var):  # a tensor map
            return self.addresses.get(target, GlobalAddress("", nodes.zero))
        place = self.addresses.get(target.source)
        if place is None:
            return GlobalAddress("", nodes.zero)
        size = numpy_dtype(str(target.source.ty.dtype.dtype)).itemsize
        moved = nodes.times(self.number(target.source, target.indices), size)
        return GlobalAddress(place.param, self._plus(place, moved).offset, str(target.source.name))

    def number(self, buffer: Any, indices: Sequence[Any], element: Node | None = None) -> Node:
        """Return the number of an element of a buffer; of one element of a vector of indices."""
        index = self.nodes.zero
        for extent, part in zip(buffer.ty.shape, indices, strict=True):
            if len(indices) > 1:
                index = self.nodes.make("mul", index, self.expressions.node(extent))
            index = self.nodes.make("add", index, self.expressions.node(part, element))
        return index

    # -- the notes -------------------------------------------------------------------------------

    def note(
        self,
        kind: str,
        place: GlobalAddress,
        width: Node,
        align: int,
        size: int = 1,
        *under: PathStep,
        index_bits: int = 0,
        whole: bool = False,
    ) -> None:
        """Note an access of `width` bytes, in elements of `size`, under further conditions."""
        if place.param is None:
            self.undecide("where it points to is not known", None, kind != LOAD)
        elif place.param in self.maps:  # the 128 bytes of a parameter, which CTAs only read
            if kind != LOAD:
                self.undecide("stores to a parameter", None)
        elif place.param:
            self.accesses.append(
                GlobalAccess(
                    self.statement,
                    kind,
                    (*self.path, *under),
                    place.param,
                    (place.offset,),
                    width,
                    align,
                    place.buffer,
                    size,
                    index_bits=index_bits,
                    whole=whole,
                )
            )

    # -- calls ------------------------------------------------------------------------------------

    def call(self, call: ir.Call) -> None:
        """Note the accesses of a call and of its arguments."""
        name, short = op_name(call), short_name(call)
        if name.startswith(PTX) and name != PTX + "addr":
            self._ptx(call)
            return
        if short in ("address_of", "tvm_access_ptr", "buffer_data"):
            return
        method = getattr(self, "_call_" + short.replace(".", "_"), None)
        if method is not None:
            method(call)
            return
        for arg in call.args:
            self.visit(arg)
        if short in (*_SAME, *_PLUS, "tvm_storage_sync") or self._computes(call):
            return
        self.communicates |= not short.startswith(_WITHIN_CTA)
        for arg in call.args:  # it may access memory through any pointer
            if self._is_pointer(arg) and (place := self.address(arg)).param != "":
                self.undecide(f"call {short} of a pointer", place.param)

    def _is_pointer(self, arg: Any) -> bool:
        return self.points(arg) or (
            isinstance(arg, (ir.Call, ir.Var)) and dtype_of(arg) == "handle"
        )

    def _computes(self, call: ir.Call) -> bool:
        if short_name(call) in ("call_pure_extern", "call_extern"):
            return plain_name(str(call.args[0].value)) is not None
        name = short_name(call).removeprefix("cuda.")
        return name in MATH or name in COMPUTED

    def _call_cuda_atomic_add(self, call: ir.Call) -> None:
        self.visit(call.args[1])
        self._update(call.args[0], dtype_of(call.args[1]))

    def _call_cuda_atomic_cas(self, call: ir.Call) -> None:
        self.communicates = True
        self._update(call.args[0], dtype_of(call.args[2]))

    def _update(self, pointer: Any, dtype: str) -> None:
        """Note an atomic access of one element."""
        size = numpy_dtype(dtype).itemsize
        self.note(ATOMIC, self.address(pointer), self.nodes.const(size), size, size)

    def _call_cuda_ldg(self, call: ir.Call) -> None:
        """Note a load through the read-only path: one element, or as many as it has pointers to."""
        count = max(len(call.args) - 4, 1)
        position = 0 if len(call.args) == 2 else count
        single = numpy_dtype(str(call.args[position + 1].value)).itemsize
        size = single * count
        self.note(LOAD, self.address(call.args[position]), self.nodes.const(size), size, single)

    def _call_cuda_wait_until(self, call: ir.Call) -> None:
        self.communicates = True
        self._update(call.args[1], DTYPE_OF.get(str(call.args[5].value), "uint32"))

    def _call_cuda_thread_fence(self, _: ir.Call) -> None:
        self.communicates = True

    def _call_mma_store_legacy(self, call: ir.Call) -> None:
        """Note the 16 x 16 elements of TVM's older store of fragments, 8 of a thread."""
        nodes, place = self.nodes, self.address(call.args[2])
        if place.param == "":
            return
        fragment = self.viewed(call.args[3])  # elements are stored as the registers hold them
        size = numpy_dtype(str(fragment.ty.dtype.dtype)).itemsize
        lane, stride = self.tags["threadIdx.x"], self.expressions.node(call.args[5])
        part = nodes.var(Variable("element", 0, 7, INNER))

        def bits(node: Node, divisor: int, modulus: int) -> Node:
            quotient = nodes.make("fdiv", node, nodes.const(divisor))
            return nodes.make("fmod", quotient, nodes.const(modulus))

        row = nodes.total({bits(part, 2, 2): 8, nodes.make("fdiv", lane, nodes.const(4)): 1})
        column = nodes.total({bits(part, 4, 2): 8, bits(lane, 1, 4): 2, bits(part, 1, 2): 1})
        moved = nodes.times(nodes.make("add", nodes.make("mul", row, stride), column), size)
        self.note(STORE, self._plus(place, moved), nodes.const(size), size, size)

    tags: dict[str, Node]

    # -- PTX --------------------------------------------------------------------------------------

    def _ptx(self, call: ir.Call) -> None:
        ptx = decode_ptx(call)
        name = op_name(call)[len(PTX) :]
        if ptx is None:
            self._opaque(name, list(call.args))
            return
        for operand, values in ptx.operands.items():
            kind = STORE if operand in ptx.writes else LOAD
            for value in values:
                if value is None:
                    continue
                if not isinstance(value, ir.TensorLoad):
                    self.visit(value)
                elif value.source in self.addresses:  # an element of a tensor instead of a register
                    self.element(value.source, value.indices, kind)
        before = self.path
        if ptx.pred is not None:
            held = self.expressions.node(ptx.pred)
            zero = self.nodes.make("eq", held, self.nodes.zero)
            self.path = (*self.path, PathStep("if", self.nodes.make("not", zero)))
        self._instruction(ptx)
        self.path = before

    def _opaque(self, name: str, operands: list[Any]) -> None:
        """Name an instruction that is handed a pointer to global memory and is not known here."""
        self.communicates |= not name.startswith(_WITHIN_CTA_PTX)
        for value in operands:
            if isinstance(value, (ir.Call, ir.Var)) and self._is_pointer(value):
                place = self.address(value)
                if place.param != "":
                    self.undecide(f"instruction {name}", place.param)

    def _instruction(self, ptx: PtxCall) -> None:
        name = ptx.name
        if name in INSTRUCTIONS or name in _TO_CLUSTER:
            return
        if name.startswith(_NO_ACCESS):
            if name.startswith("fence") and ptx.mods.get("scope") in ("gpu", "sys"):
                self.communicates = True
            return
        if name == "discard":
            place = self.address(ptx.operands["addr"][0])
            self.note(STORE, place, self.nodes.const(DISCARDED_BYTES), DISCARDED_BYTES)
            return
        if name.startswith("tensormap"):
            place = self.address(ptx.operands["addr" if "addr" in ptx.operands else "dst_mem"][0])
            self.note(STORE, place, self.nodes.const(MAP_BYTES), MAP_ALIGNMENT)
            self.communicates |= ptx.mods.get("scope") in ("gpu", "sys")
            return
        plain = ("ld", "ld_vec", "ld_vec256", "ldu", "ldu_vec", "st", "st_vec", "st_vec256")
        words = name.startswith(("atom", "red")) and not name.startswith("redux")
        if name in plain or words:
            self._plain_access(ptx)
        elif "bulk_tensor" in name and "tmap" in ptx.operands:
            self._tensor(ptx)
        elif name.startswith(("cp_async_bulk", "cp_reduce_async_bulk")):
            self._bulk(ptx)
        elif name.startswith(("cp_async_ca", "cp_async_cg")):
            self._cp_async(ptx)
        else:
            self._opaque(name, _operands(ptx))

    def _plain_access(self, ptx: PtxCall) -> None:
        place = self.address(ptx.operands["addr"][0])
        if place.param == "" or str(ptx.mods.get("space", "")).startswith(("shared", "local")):
            return
        vector = str(ptx.mods.get("vec", ""))
        count = int(vector[1:]) if vector[1:].isdigit() else 1
        dtype = str(ptx.mods["type"])
        single = 4 if dtype.endswith("x2") else numpy_dtype(DTYPE_OF[dtype]).itemsize
        size = single * count
        kind = LOAD if ptx.name.startswith("ld") else STORE
        sem, _ = order_of(ptx.mods)
        if ptx.name.startswith(("atom", "red")):
            kind = ATOMIC
            sem = ptx.mods.get("sem") or "relaxed"
            reads = ptx.name.startswith("atom") and "bitbucket" not in ptx.name
            self.communicates |= reads or sem not in ("relaxed", "")
        elif sem != "weak":
            kind, self.communicates = ATOMIC, True
        self.note(kind, place, self.nodes.const(size), size, single)

    def _cp_async(self, ptx: PtxCall) -> None:
        size = self.expressions.node(ptx.operands["cp_size"][0])
        width = size
        under: tuple[PathStep, ...] = ()
        if "src_size" in ptx.operands:
            width = self.expressions.node(ptx.operands["src_size"][0])
            under = (PathStep("if", self.nodes.make("lt", self.nodes.zero, width)),)
        if "ignore_src" in ptx.operands:
            ignored = self.expressions.node(ptx.operands["ignore_src"][0])
            under = (PathStep("if", self.nodes.make("eq", ignored, self.nodes.zero)),)
        place = self.address(ptx.operands["src_mem"][0])
        for steps, bytes_read in self._cases(width, under):
            self.note(LOAD, place, bytes_read, size.constant or 1, 1, *steps)

    def _cases(self, width: Node, under: tuple[PathStep, ...]) -> list[tuple[Any, Node]]:
        """Return each size that one may be chosen from, and when: threads may choose differently.

        Nothing is read of size 0: the guard of a ragged edge.
        """
        if width.op != "select":
            return [] if width.constant == 0 else [(under, width)]
        condition, yes, no = width.args
        other = self.nodes.make("not", condition)
        return [
            case
            for holds, chosen in ((condition, yes), (other, no))
            for case in self._cases(chosen, (*under, PathStep("if", holds)))
        ]

    def _bulk(self, ptx: PtxCall) -> None:
        name = ptx.name.removesuffix("_f32_noftz")
        if name.endswith("s2g"):
            place = self.address(ptx.operands["dst_mem"][0])
            kind = ATOMIC if "reduce" in name else STORE
        elif "g2s" in name and "report" not in name:
            place, kind = self.address(ptx.operands["src_mem"][0]), LOAD
        else:  # of groups, within shared memory, or of an unknown form
            self._opaque(name, _operands(ptx))
            return
        if "byte_mask" in ptx.operands:
            self._opaque(name, _operands(ptx))
            return
        width = self.expressions.node(ptx.operands["size"][0])
        self.note(kind, place, width, _BULK_ALIGNMENT, whole=True)

    def _tensor(self, ptx: PtxCall) -> None:
        place = self.address(ptx.operands["tmap"][0])
        if place.param == "":
            return
        if place.param is not None and place.param not in self.maps:
            self.note(LOAD, place, self.nodes.const(MAP_BYTES), MAP_ALIGNMENT)
            text = f"instruction {ptx.name} with a tensor map that lies in memory"
            self.undecide(text, None, "g2s" not in ptx.name)
            return
        tiled = ptx.mods.get("load_mode") in ("", "tile", None)
        if not tiled or "override" in ptx.name or place.param is None:
            self.undecide(f"instruction {ptx.name}", place.param)
            return
        kind = LOAD if "g2s" in ptx.name else ATOMIC if "reduce" in ptx.name else STORE
        coords = tuple(self.expressions.node(c) for c in ptx.operands["coords"])
        self.accesses.append(
            GlobalAccess(
                self.statement,
                kind,
                self.path,
                place.param,
                coords,
                self.nodes.one,
                START_ALIGNMENT,
                place.buffer,
                is_map=True,
            )
        )


def _operands(ptx: PtxCall) -> list[Any]:
    return [v for values in ptx.operands.values() for v in values if v is not None]
