"""Rule for products: `hs.matmul`, with a kernel for each size class if rows are symbolic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from tvm import s_tir
from tvm.tirx import IterVar

from tvm_hopper import ir, schedule as hs
from tvm_hopper.analysis.contraction import may_be_product
from tvm_hopper.errors import ScheduleError, cannot_schedule
from tvm_hopper.facts.dtypes import HALF_DTYPES
from tvm_hopper.schedule.arguments import as_choice, check_type
from tvm_hopper.schedule.products.branches import check_rows, look_at
from tvm_hopper.schedule.products.classes import as_asked
from tvm_hopper.schedule.products.config import ACCUMULATE

from .decisions import Decision
from .rule import HopperRule


class MatmulRule(HopperRule):
    """One product a function on tensor cores, or several that share an operand, with what follows.

    - `accumulate`: "float32": accumulate 16-bit sums in float32, rounded once at the end. None:
      refuse functions that sum in 16 bits.
    - `classes`: size classes of symbolic rows, see `hs.matmul`; None: by the model. A product whose
      columns are symbolic, or whose rows are not, is one kernel.
    - `config`: fixed fields of all configurations.
    - `batch_invariant`: true: the bits of a row do not depend on the number of rows, see
      `hs.MatmulConfig`.
    - `decisions`: list that records each decision.
    - raises ScheduleError: an argument is illegal for `hs.matmul`.
    """

    name: ClassVar[str] = "Matmul"
    is_lowered: ClassVar[bool] = True

    def __init__(
        self,
        accumulate: str | None = "float32",
        *,
        classes: Sequence[int] | Mapping[int, hs.MatmulConfig | int] | None = None,
        config: hs.MatmulConfig | None = None,
        batch_invariant: bool = False,
        decisions: list[Decision] | None = None,
    ) -> None:
        super().__init__(decisions)
        check_type(self.name, "config", config, hs.MatmulConfig, "an hs.MatmulConfig")
        check_type(self.name, "batch_invariant", batch_invariant, bool, "True, False")
        as_asked(None, classes, None)  # a mistake would be a refusal of each function, and unseen
        self.accumulate = as_choice(self.name, "accumulate", accumulate, ACCUMULATE)
        self.classes, self.config, self.batch_invariant = classes, config, batch_invariant

    def schedule(self, sch: s_tir.Schedule) -> str:
        """Schedule the product of a function."""
        blocks = products(sch)
        if not blocks:
            raise cannot_schedule("function", "no product", "one sum over two tensors")
        block, *others = blocks
        dtype = _sum_dtype(sch, block)
        wide = self.accumulate if dtype in HALF_DTYPES else None
        config, classes = self.config or hs.MatmulConfig(), self.classes
        fixed: dict[str, Any] = {} if wide is None else {"accumulate": wide}
        if self.batch_invariant:
            fixed["batch_invariant"] = True
        config = replace(config, **fixed)
        if others:
            hs.matmul(sch, blocks, config)
        elif classes is None or not _has_classes(sch, block):
            hs.matmul(sch, block, config)
        elif isinstance(classes, Mapping) and _has_configs(classes):
            own = {
                bound: replace(x, **fixed) if isinstance(x, hs.MatmulConfig) else x
                for bound, x in classes.items()
            }
            hs.matmul(sch, block, classes=own)
        else:
            hs.matmul(sch, block, config, classes=classes)
        return f"sums in {wide} instead of {dtype}" if wide else ""


def _has_configs(classes: Mapping[int, Any]) -> bool:
    return any(isinstance(x, hs.MatmulConfig) for x in classes.values())


def products(sch: s_tir.Schedule) -> list[str]:
    """Return the names of the blocks that reduce over pairs of elements, mostly of two tensors."""
    found: list[str] = []
    root = sch.mod["main"].body
    if not isinstance(root, ir.SBlockRealize):
        return found
    for block in sch.get_child_blocks(sch.get_sblock(str(root.block.name_hint))):
        node = sch.get(block)
        summed = [x.var for x in node.iter_vars if x.iter_type == IterVar.CommReduce]
        if node.init is None or not summed:
            continue
        # what says which matrix is read is no factor
        reads = [r for r in node.reads if not _is_table(node, r.source)]
        both = all(any(ir.depends_on(x.min, summed) for x in r.region) for r in reads)
        # squares, also of the rest of a row's mean, are no products
        if (len(reads) == 2 and both) or (len(reads) == 1 and may_be_product(node)):
            found.append(str(node.name_hint))
    return found


def _is_table(node: Any, tensor: Any) -> bool:
    """Tell a tensor of which the block reads indices of another one."""
    loads = ir.find_all(node.body, ir.TensorLoad)
    return any(
        ir.find_all(list(x.indices), ir.TensorLoad, lambda y: y.source.same_as(tensor))
        for x in loads
    )


def _sum_dtype(sch: s_tir.Schedule, block: str) -> str:
    return ir.dtype_of(sch.get(sch.get_sblock(block)).writes[0].source)


def _has_classes(sch: s_tir.Schedule, block: str) -> bool:
    """Tell a product of symbolic rows and nothing else symbolic."""
    try:
        check_rows(look_at(sch, block))
    except ScheduleError:
        return False  # what is refused as one kernel, too, is refused in its words
    return True
