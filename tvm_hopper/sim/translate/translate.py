"""A device PrimFunc to one Python generator function, compiled once and run by every warp.

    for k in range(8):                         for k_3 in range(8):
        mbarrier_wait(&full[k % 4], k // 4 % 2)    w.it = (k_3,)
        acc[0] = acc[0] + sA[k]          ->        yield from w.op_mbarrier_wait(7, m0, ...)
                                                   stl(acc_1, 0, (acc_1[:, 0] + w.load(8, ...)), m0)

The generator yields the object that the warp waits for.  Nothing here knows what an instruction
does: an instruction becomes a call of the handler `Warp.op_<name>`, and an instruction without a
handler is noted by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partialmethod
from typing import Any

import numpy as np
from tvm import ir, tirx

from tvm_hopper.errors import HopperError
from tvm_hopper.sim.machine import lanes
from tvm_hopper.sim.machine.registers import RegRef, all_held, held_by_warp, held_lanes
from tvm_hopper.sim.tir import (
    PTX,
    numpy_dtype,
    op_name,
    param_names,
    short_name,
    split_lanes,
    statement_text,
)
from tvm_hopper.sim.translate.address_sources import AddressSources
from tvm_hopper.sim.translate.buffers import BufferEmitter
from tvm_hopper.sim.translate.device_math import math
from tvm_hopper.sim.translate.emit_helpers import HelperStatements
from tvm_hopper.sim.translate.exprs import ExprEmitter, is_scattered, view_of
from tvm_hopper.sim.translate.held_values import HeldValueEmitter, Needs, escaped_registers
from tvm_hopper.sim.translate.questions import loads_only, reads_registers
from tvm_hopper.sim.translate.scope import BufferInfo, KernelCode, Scope
from tvm_hopper.sim.translate.steering import SteeringEmitter, steering_of

_HOLDS = ("cuda.wgmma_noop_barrier", "tvm_hopper_")  # no use: they leave registers as they are


class StmtEmitter(BufferEmitter, HelperStatements, HeldValueEmitter, ExprEmitter, SteeringEmitter):
    """Walks statements once and writes the generator's lines."""

    def __init__(self, func: tirx.PrimFunc, handlers: Mapping[str, bool]) -> None:
        super().__init__()
        self.func, self.handlers = func, handlers
        self.scope = Scope()
        self.lines: list[str] = []
        self.depth = 1
        self.site = 0
        self.loops: list[str] = []
        self.program = KernelCode(None, "", [None], [], [], [])
        self.tracked: set[str] = set()
        self.roots_of_wgmma = self.wgmma_registers()
        self.escaped = escaped_registers(func)
        self.steering = steering_of(func) | self.escaped
        self.address_sources = AddressSources(func)
        self.pointers: dict[Any, set[str]] = {}
        self.touched: list[str] = []
        self.waits: list[list[int]] = [[]]
        self.while_depth = 0
        self.loop_masks: list[str] = []
        self.marked = 0  # unsupported operations that the generated code reports to the machine

    # -- helpers ----------------------------------------------------------------------------------

    def emit(self, line: str) -> None:
        """Append one line at the current depth."""
        self.lines.append(" " * self.depth + line)
        self.program.line_sites.append(self.site)

    def unsupported(self, operation: str) -> None:
        """Note an operation that nothing models."""
        if (operation, self.site) not in self.program.unsupported:
            self.program.unsupported.append((operation, self.site))

    def constant(self, stem: str, value: Any) -> str:
        """Put an object into the generated module's globals; return its name."""
        name = self.scope.name(f"K_{stem}")
        self.scope.constants[name] = value
        return name

    def new_site(self, stmt: Any) -> int:
        """Give a statement a number, so that a finding can print it."""
        self.program.statements.append(stmt)
        self.site = len(self.program.statements) - 1
        return self.site

    def mark_unknown(self) -> None:
        """Tell the machine, where an unsupported operation is, that it passed there."""
        if len(self.program.unsupported) > self.marked:
            self.marked = len(self.program.unsupported)
            self.emit("w.unknown()")

    def flush(self) -> None:
        """Write the register checks that the expressions of this statement requested."""
        self.mark_unknown()
        for line in dict.fromkeys(self.touched):
            self.emit(line)
        self.touched = []

    def touch(self, info: BufferInfo, index: str, count: int, varies: bool) -> None:
        """Check registers that a wgmma reads or writes."""
        if info.root not in self.tracked:
            return
        size = numpy_dtype(info.dtype).itemsize
        if varies:
            self.touched.append(f"w.touch({self.site}, R_{info.root}, 0, -1)")
        else:
            self.touched.append(
                f"w.touch({self.site}, R_{info.root}, ({index}) * {size}, {count * size})"
            )

    # -- statements -------------------------------------------------------------------------------

    def stmt(self, node: Any) -> None:
        """Emit one statement."""
        method = getattr(self, f"_stmt_{type(node).__name__.lower()}", None)
        if method is None:
            self.new_site(node)
            self.unsupported(f"statement {type(node).__name__}")
            self.mark_unknown()
            return
        depth, count, mask, marked = self.depth, len(self.lines), self.scope.mask, self.marked
        try:
            method(node)
        except HopperError:
            raise
        except Exception as error:  # the report names the statement
            del self.lines[count:], self.program.line_sites[count:]
            self.depth, self.scope.mask, self.touched = depth, mask, []
            self.marked = marked
            self.unsupported(f"{statement_text(node)} ({type(error).__name__}: {error})")
        self.mark_unknown()

    def block(self, node: Any, mask: str) -> None:
        """Emit statements one level deeper under a mask."""
        before = self.scope.mask
        self.scope.mask = mask
        self.depth += 1
        start = len(self.lines)
        self.stmt(node)
        if len(self.lines) == start:
            self.emit("pass")
        self.depth -= 1
        self.scope.mask = before

    def _stmt_seqstmt(self, node: Any) -> None:
        for inner in node.seq:
            self.stmt(inner)

    def _stmt_attrstmt(self, node: Any) -> None:
        if node.attr_key in ("thread_extent", "virtual_thread"):
            var, tag = node.node.var, str(node.node.thread_tag)
            name = self.scope.name(tag)
            self.emit(f"{name} = w.threads[{tag!r}]")
            self.scope.values[var] = (name, tag.startswith("threadIdx"))
            if tag.startswith("threadIdx") and self.depth == 1:
                self.threads.add(var)
                self.hoist_at = len(self.lines)
        self.stmt(node.body)

    def _stmt_bind(self, node: Any) -> None:
        self.new_site(node)
        value, varies = self.expr(node.value)
        self.flush()
        if varies and reads_registers(node.value):
            value = f"kept({value})"
        name = self.scope.name(node.var.name)
        self.scope.values[node.var] = (name, varies)
        self.pointers[node.var] = self.params_of(node.value)
        self.bind_needs(node.var, node.value)
        self.emit(f"{name} = {self.bound(node, value) if varies else value}")

    _stmt_letstmt = _stmt_bind

    def _stmt_bufferstore(self, node: Any) -> None:
        self.new_site(node)
        info = self.buffer(node.buffer)
        if info is None:
            return
        value, _ = self.expr(node.value)
        ramp, index, varies = self.index(info, node.indices)
        count = int(ramp.lanes) if ramp is not None else 1
        mask = self.scope.mask
        if info.kind == "local":
            self.touch(info, index, count, varies)
            self.flush()
            self.use(*node.indices)
            self.note_write(info, index, count, self.needs_of(node.value))
            if ramp is not None:
                place = (
                    f"ramp({index}, 1, {count})" if varies else f"slice({index}, {index} + {count})"
                )
            else:
                place = index
            self.emit(self.stored(node, f"stl({info.name}, {place}, {value}, {mask})"))
            return
        self.flush()
        self.use(*node.indices, node.value)
        dtype, vector = split_lanes(info.dtype)
        if info.kind == "global":
            self.program.stored_params.add(info.root)
        if info.kind in ("shared", "global"):
            self.program.min_itemsize = min(self.program.min_itemsize, numpy_dtype(dtype).itemsize)
        scattered = is_scattered(ramp, node.indices)
        place, stored = ("i", "x") if scattered else (index, value)
        text = (
            f"w.store({self.site}, {mask}, {info.name}, {place}, {stored}, "
            f"({self.dtype_const(dtype)}, {count * vector}, {vector}), {view_of(info)})"
        )
        self.emit(f"scatter(lambda i, x: {text}, {index}, {value})" if scattered else text)

    def _stmt_ifthenelse(self, node: Any) -> None:
        self.new_site(node)
        cond, varies = self.expr(node.condition)
        self.flush()
        self.use(node.condition)
        before = self.scope.mask
        self.waits.append([])
        if varies and self.sides_exchange(node):
            self._both_sides(node, cond, before)
        elif not varies:
            self.emit(f"if {cond}:")
            self.block(node.then_case, before)
            if node.else_case is not None:
                self.waits[-1] = []
                self.emit("else:")
                self.block(node.else_case, before)
        else:
            test, inner = self.scope.name("c"), self.scope.name("m")
            self.emit(f"{test} = as_lanes({cond})")
            self.emit(f"{inner} = mand({before}, {test})")
            self.emit(f"if {inner} is not False:")
            self.block(node.then_case, inner)
            if node.else_case is not None:
                self.waits[-1] = []
                other = self.scope.name("m")
                self.emit(f"{other} = mand({before}, ~{test})")
                self.emit(f"if {other} is not False:")
                self.block(node.else_case, other)
        self.waits.pop()

    def _both_sides(self, node: Any, cond: str, before: str) -> None:
        """Emit both sides of a branch so that lanes of one warp may alternate between them."""
        test = self.scope.name("c")
        self.emit(f"{test} = as_lanes({cond})")
        masks, sides = [], []
        for body, sign in ((node.then_case, ""), (node.else_case, "~")):
            inner, side = self.scope.name("m"), self.scope.name("side")
            self.emit(f"{inner} = mand({before}, {sign}{test})")
            self.emit(f"def {side}():")
            self.emit(" if False: yield None")
            self.waits[-1] = []
            self.block(body, inner)
            masks.append(inner)
            sides.append(side)
        calls = ", ".join(
            f"{side}() if {inner} is not False else None"
            for side, inner in zip(sides, masks, strict=True)
        )
        self.emit(f"yield from w.both({calls})")

    def _stmt_for(self, node: Any) -> None:
        site = self.new_site(node)
        low, low_varies = self.expr(node.min)
        extent, extent_varies = self.expr(node.extent)
        self.flush()
        self.use(node.min, node.extent)
        name = self.scope.name(node.loop_var.name)
        self.scope.values[node.loop_var] = (name, low_varies)
        self.waits.append([])
        mask = self.scope.mask
        self.loop_masks.append(mask)
        if extent_varies or low_varies:
            step, inner = self.scope.name("step"), self.scope.name("m")
            self.emit(f"for {step} in w.iterations(0, int(np.max(as_lanes({extent}))), 0):")
            self.emit(f" {inner} = mand({mask}, {step} < as_lanes({extent}))")
            self.emit(f" if {inner} is False: break")
            self.emit(f" {name} = {low} + {step}")
            self.loops.append(step)
            self.emit(f" w.it = ({', '.join(self.loops)},)")
            self.block(node.body, inner)
        else:
            self.loops.append(name)
            self.emit(f"for {name} in w.iterations({low}, {extent}, {site}):")
            self.emit(f" w.it = ({', '.join(self.loops)},)")
            self.block(node.body, mask)
        self.loops.pop()
        self.loop_masks.pop()
        self.waits.pop()
        self.emit(f"w.it = ({', '.join(self.loops)}{',' if self.loops else ''})")

    def _stmt_while(self, node: Any) -> None:
        site = self.new_site(node)
        mask = self.scope.mask
        cond, varies = self.expr(node.condition)
        self.while_depth += 1
        self.waits.append([])
        self.loop_masks.append(mask)
        self.flush()
        if varies:
            inner = self.scope.name("m")
            self.emit(f"{inner} = {mask}")
            self.emit("while True:")
            self.depth += 1
            self.use(node.condition, mask=inner)
            self.depth -= 1
            self.emit(f" {inner} = mand({inner}, as_lanes({cond}))")
            self.emit(f" if {inner} is False: break")
            self.block(node.body, inner)
        else:
            self.emit(f"while {cond}:")
            self.block(node.body, mask)
        looks = loads_only(node)
        self.emit(f" yield w.spin({site}, {looks})")
        if looks:
            self.emit("w.looked = None")
        self.loop_masks.pop()
        self.waits.pop()
        self.while_depth -= 1

    def _leave(self, word: str, node: Any) -> None:
        self.new_site(node)
        if not self.loop_masks or self.scope.mask != self.loop_masks[-1]:
            self.unsupported(f"{word} in divergent code")
            return
        self.emit(word)

    _stmt_break, _stmt_continue = partialmethod(_leave, "break"), partialmethod(_leave, "continue")

    def _stmt_assertstmt(self, node: Any) -> None:
        return

    def _stmt_return(self, node: Any) -> None:
        self.new_site(node)
        if self.scope.mask != "m0":
            self.unsupported("return in divergent code")
            return
        self.emit("return")

    def _stmt_evaluate(self, node: Any) -> None:
        call = node.value
        if not isinstance(call, ir.Call):
            return
        site = self.new_site(node)
        name = op_name(call)
        if name.startswith(PTX) and name != PTX + "addr":
            self._ptx(call, site)
            return
        short = short_name(call)
        if short == "ret":
            self._stmt_return(node)
            return
        if short in ("break_loop", "continue_loop"):
            self._leave(short.removesuffix("_loop"), node)
            return
        if self.helper_statement(short, call):
            return
        handler = "op_" + short.replace(".", "_")
        if handler in self.handlers:
            args = self._plain_args(short, call)
            if not short.startswith(_HOLDS):
                self.use(*call.args)
            self._call(handler, site, args)
            return
        text, _ = self.expr(call)
        self.flush()
        self.use(call)
        self.emit(text)

    def _plain_args(self, short: str, call: ir.Call) -> list[str]:
        args = []
        for position, arg in enumerate(call.args):
            if short == "cuda.wgmma_encode_matrix_descriptor" and position == 0:
                continue
            self._touch_pointed(arg)
            args.append(self.code(arg))
        if short == "mma_store_legacy":
            self.program.stored_params |= self.params_of(call.args[2])
        if short in ("cuda.mbarrier_wait", "cuda.mbarrier_wait_acquire_cluster"):
            self.waits[-1].append(self.site)
        return args

    def _touch_pointed(self, arg: Any) -> None:
        """Check registers that an instruction is handed a pointer to."""
        if isinstance(arg, ir.Call) and short_name(arg) == "buffer_data":
            info = self.buffer(arg.args[0])
            if info is not None and info.kind == "local":
                self.touch(info, "0", 1, True)

    def _call(self, handler: str, site: int, args: list[str], result: str = "") -> None:
        self.flush()
        blocking = "yield from " if self.handlers[handler] else ""
        text = f"{blocking}w.{handler}({', '.join([str(site), self.scope.mask, *args])})"
        call = self.program.statements[site].value
        if handler == "op_cuda_wgmma_encode_matrix_descriptor":
            self._assign(call.args[0].args[0], text)
            return
        self.emit(f"{result} = {text}" if result else text)
        self.emit("if w.preempt: yield None")

    def _assign(self, target: Any, text: str, needs: Needs = ()) -> None:
        """Write a value into a register element (or memory element) named by a load."""
        info = self.buffer(target.source)
        if info is None:
            return
        _, index, varies = self.index(info, target.indices)
        if info.kind == "local":
            self.touch(info, index, 1, varies)
            self.flush()
            self.note_write(info, index, 1, needs)
            self.emit(f"stl({info.name}, {index}, {text}, {self.scope.mask})")
            return
        self.use_needs(needs)
        self.emit(
            f"w.store({self.site}, {self.scope.mask}, {info.name}, {index}, {text}, "
            f"({self.dtype_const(info.dtype)}, 1, 1))"
        )


def compile_kernel(func: tirx.PrimFunc, handlers: Mapping[str, bool]) -> KernelCode:
    """Compile a device function; `handlers` maps `op_*` names to whether they are generators."""
    emitter = StmtEmitter(func, handlers)
    for param, key in zip(func.params, param_names(func), strict=True):
        name = emitter.scope.name(param.name)
        emitter.program.params.append(key)
        emitter.emit(f"{name} = w.args[{key!r}]")
        if isinstance(param.ty, ir.PointerType):
            dtype = str(getattr(param.ty.element_type, "dtype", "uint8"))
            emitter.scope.buffers[param] = BufferInfo("global", name, dtype, (), key)
        emitter.pointers[param] = {key}
        emitter.scope.values[param] = (name, False)
    known = ("tirx.launch_bounds_min_blocks_per_sm", "tirx.max_registers")
    emitter.program.bounds_known = any(key in func.attrs for key in known)
    emitter.program.min_blocks = int(func.attrs.get(known[0], 1))
    emitter.stmt(func.body)
    emitter.place_hoisted()
    program = emitter.program
    program.name = str(func.attrs["global_symbol"]).replace("\0", "")
    head = ["def kernel(w, m0):", " if False: yield None", " computes = w.machine.values"]
    program.line_sites[:0] = [0] * len(head)
    source = "\n".join([*head, *emitter.lines]) + "\n"
    space: dict[str, Any] = {
        name: getattr(lanes, name) for name in dir(lanes) if not name.startswith("_")
    }
    space.update(emitter.scope.constants, np=np, math=math, RegRef=RegRef)
    space.update(all_held=all_held, held_lanes=held_lanes, held_by_warp=held_by_warp)
    try:
        exec(compile(source, program.filename, "exec"), space)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        # Python nests 20 loops and 100 indentations at most.
        emitter.unsupported(f"a function that Python cannot compile ({error})")
        space["kernel"] = _nothing
    program.run, program.source = space["kernel"], source
    return program


def _nothing(w: Any, m0: Any) -> Iterator[None]:
    """Run in place of a function that cannot be compiled."""
    w.unknown()
    yield from ()
