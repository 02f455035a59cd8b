"""An imported model as `measure` wants it: built by a pipeline, called on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .cases import Case
from .imported import TARGET, OnGpu, import_case
from .rows import OURS


class ImportedSubject:
    """A model of PyTorch or ONNX."""

    sizes: dict[str, int] = {}  # noqa: RUF012 (all are static)

    def __init__(self, case: Case, tiny: bool) -> None:
        self.one, self.hoists = import_case(case, tiny), case.hoists
        self.notes = self.one.notes
        self.gpu: OnGpu

    def build(self, pipeline: str) -> Any:
        """Compile the model by a pipeline's name."""
        from tvm import relax

        from tvm_hopper.relax import hoist_weights

        mod = self.one.mod
        if self.hoists and pipeline == OURS:
            mod = hoist_weights(mod, TARGET)
        return relax.build(mod, target=TARGET, relax_pipeline=pipeline)

    def report(self, executable: Any) -> Any:
        """Return the report of what was built."""
        from tvm_hopper.relax import report

        return report(executable)

    def to_gpu(self) -> None:
        """Copy tensors to the GPU."""
        self.gpu = OnGpu(self.one)
        self.num_sets = self.gpu.num_sets

    def of_tvm(self, executable: Any) -> Callable[[int], Any]:
        """Return calls of what was built."""
        return self.gpu.of_tvm(executable)

    def of_torch(self, compile_: Any = None) -> Callable[[int], Any]:
        """Return calls of PyTorch's module."""
        return self.gpu.of_torch(compile_)

    def reference(self) -> Any:
        """Return the result in float64."""
        return self.gpu.reference()
