"""Allocations and views of memory: where generated code finds each buffer."""

from __future__ import annotations

from math import prod
from typing import Any

from tvm import tirx

from tvm_hopper.sim.tir import numpy_dtype, split_lanes
from tvm_hopper.sim.translate.emit_ptx import PtxEmitter
from tvm_hopper.sim.translate.questions import Questions, viewed
from tvm_hopper.sim.translate.scope import BufferInfo


class BufferEmitter(PtxEmitter, Questions):
    """Emits buffers; a part of `StmtEmitter`."""

    def _stmt_allocbuffer(self, node: Any) -> None:
        var, scope = node.buffer, node.buffer.scope()
        dtype = str(var.ty.dtype.dtype)
        shape = tuple(var.ty.shape)
        if not all(isinstance(extent, tirx.IntImm) for extent in shape):
            self.new_site(node)
            self.unsupported(f"allocation {var.name} of a size known only at run time")
            return
        count = prod(map(int, shape))
        name = self.scope.name(var.name)
        scalar, vector = split_lanes(dtype)
        if scope.startswith("local") or scope == "":
            root = name
            tracked = var in self.roots_of_wgmma
            self.emit(f"{name} = w.local({count * vector}, {self.dtype_const(scalar)})")
            size = count * vector * numpy_dtype(scalar).itemsize
            watched = self.watch_registers(var, root, size)
            if tracked:
                self.tracked.add(root)
                self.emit(f"R_{root} = w.registers({var.name!r}, {size})")
                self.emit(f"R_{root}.held = {watched}")
            self.scope.buffers[var] = BufferInfo("local", name, dtype, shape, root)
        elif scope in ("shared", "shared.dyn"):
            size = count * vector * numpy_dtype(scalar).itemsize
            key = f"{var.name}#{len(self.program.shared)}"
            align = max(int(var.ty.data_alignment), 16)
            self.program.shared.append((key, scope, size, align))
            self.emit(f"{name} = w.shared[{key!r}]")
            self.scope.buffers[var] = BufferInfo("shared", name, dtype, shape)
        else:
            self.new_site(node)
            self.unsupported(f"allocation of {var.name} in scope {scope!r}")

    def _stmt_declbuffer(self, node: Any) -> None:
        self.new_site(node)
        var, data = node.buffer, node.data
        dtype = str(var.ty.dtype.dtype)
        name = self.scope.name(var.name)
        shape = tuple(var.ty.shape)
        source = viewed(data)
        info = self.scope.buffers.get(source) if source is not None else None
        if info is not None and info.kind == "local":
            scalar, _ = split_lanes(dtype)
            self.emit(f"{name} = {info.name}.view({self.dtype_const(scalar)})")
            self.scope.buffers[var] = BufferInfo("local", name, dtype, shape, info.root)
            return
        self.emit(f"{name} = {self.code(data)}")
        scope = var.scope()
        kind = "shared" if scope.startswith("shared") else "global"
        root = "".join(sorted(self.params_of(data))[:1])
        self.scope.buffers[var] = BufferInfo(kind, name, dtype, shape, root)
        if kind == "shared" and all(isinstance(extent, tirx.IntImm) for extent in shape):
            size = numpy_dtype(dtype).itemsize * split_lanes(dtype)[1] * prod(map(int, shape))
            self.emit(f"w.name_bytes({var.name!r}, {name}, {size})")
