"""What each warp does: its operations in program order, with operands and values.

Control flow of these kernels does not depend on data, so a warp's sequence is the same in every
schedule; one eager run shows it.
"""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from tvm_hopper.facts.devices import DEFAULT_NUM_SMS
from tvm_hopper.sim import RunOptions, run as simulator
from tvm_hopper.sim.launch.arguments import complete
from tvm_hopper.sim.launch.tma import BoundTensorMap
from tvm_hopper.sim.layouts.matrix_descriptor import MatrixDescriptor
from tvm_hopper.sim.machine.memory import shared_offset
from tvm_hopper.sim.machine.registers import RegRef
from tvm_hopper.simulation import Program
from tvm_hopper.verification.launches import bound_launches, run_launches

MEMORY = ("load", "store", "atomic")
WAIT = "op_cuda_mbarrier_wait"
# They compute an operand of a later operation and touch nothing: that one has it.
PURE = {"op_cuda_wgmma_encode_matrix_descriptor", "op_mapa_u32", "op_mapa_u64"}


@dataclasses.dataclass(frozen=True)
class Operation:
    """One operation of a warp.

    Attributes
    ----------
    name : str
        The instruction, or "load", "store", "atomic".
    lanes : tuple of int
        Those that execute it.
    operands : tuple
        By name, as bytes or numbers. Registers are names: what is in them is seen where it is
        stored.
    """

    name: str
    lanes: tuple[int, ...]
    operands: tuple[tuple[str, Any], ...]

    def operand(self, name: str) -> Any:
        """Return one operand; None if there is none of that name."""
        return dict(self.operands).get(name)

    def __contains__(self, name: str) -> bool:
        """Tell whether it has an operand of that name."""
        return any(name == one for one, _ in self.operands)

    @property
    def elected(self) -> bool:
        """Whether one lane alone executes it."""
        return len(self.lanes) == 1


Trace = dict[tuple[Any, ...], list[Operation]]


class _Recorder:
    """Stands between the kernel and a warp, and writes down what passes."""

    def __init__(self, warp: Any, log: list[Operation]) -> None:
        object.__setattr__(self, "_warp", warp)
        object.__setattr__(self, "_log", log)
        object.__setattr__(self, "_registers", [])

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._warp, name, value)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._warp, name)
        if name == "local":
            return self._new_registers
        if name in PURE or not (name.startswith("op_") or name in MEMORY):
            return found

        def record(site: int, mask: Any, *args: Any, **named: Any) -> Any:
            self._log.append(_operation(name, mask, args, named, self._registers))
            done = found(site, mask, *args, **named)
            return self._waited(done, len(self._log) - 1) if name == WAIT else done

        return record

    def _waited(self, wait: Any, place: int) -> Any:
        """Wait, and write down for which phase, where the lanes that wait name one barrier."""
        x = self._log[place]
        result = yield from wait
        address = x.operand("0")
        if isinstance(address, int):
            barrier = self._warp.cta.mbarriers.get(shared_offset(address))
            seen = self._warp.observed.get(id(barrier))
            if seen is not None:
                operands = (*x.operands, ("phase", seen.phase))
                self._log[place] = Operation(x.name, x.lanes, operands)
        return result

    def _new_registers(self, *args: Any) -> Any:
        array = self._warp.local(*args)
        self._registers.append(array)
        return array


def _operation(
    name: str, mask: Any, args: Any, named: dict[str, Any], registers: list[Any]
) -> Operation:
    if name == "op_mbarrier_arrive" and "tx_count" in named:  # one entry of TVM's table for both
        name += "_expect_tx"
    active = np.arange(32) if mask is None else np.nonzero(mask)[0]
    if name in MEMORY:  # type, number and width of the elements of a lane, each an operand
        args = [x for arg in args for x in (arg if _is_elements(arg) else (arg,))]
    operands = {f"{i}": value for i, value in enumerate(args)} | named
    tmap = next((v for v in operands.values() if isinstance(v, BoundTensorMap)), None)
    if tmap is not None:
        operands["box"] = _boxes(tmap, operands.pop("coords"), active)
    if name.startswith("op_wgmma") and "b_desc" in operands:
        _read_descriptors(operands, active)
    plain = {key: _plain(value, active, registers) for key, value in operands.items()}
    return Operation(name.removeprefix("op_"), tuple(map(int, active)), tuple(plain.items()))


def _is_elements(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 3 and isinstance(value[0], np.dtype)


def _read_descriptors(operands: dict[str, Any], active: np.ndarray) -> None:
    """Replace descriptors by the addresses that they stand for: some of their bits mean nothing."""
    shape = operands["2"]["shape"] if "2" in operands else operands["0"]["shape"]
    n, depth = (int(x) for x in shape.partition("n")[2].split("k"))
    for which, rows in (("a", 64), ("b", n)):
        value = operands.get(f"{which}_desc")
        if value is None:
            continue
        words = np.asarray(value).ravel()
        word = int(words[active[0]] if len(words) == 32 else words[0])
        major = "mn" if operands.get(f"trans_{which}") else "k"
        read = MatrixDescriptor.of(word).addresses(major, rows, depth, 32 // depth)
        operands[f"{which}_desc"] = read.tobytes()


def _plain(value: Any, active: np.ndarray, registers: list[Any]) -> Any:
    """Return an operand as something that compares: only of the lanes that take part."""
    if isinstance(value, RegRef):
        return (value.state.name, str(value.bytes))
    if isinstance(value, BoundTensorMap):
        return ""  # `box` says what it stands for
    if isinstance(value, (tuple, list)):
        return tuple(_plain(v, active, registers) for v in value)
    for number, array in enumerate(registers):
        if value is array:
            return f"registers {number}"
    if isinstance(value, np.ndarray) and value.ndim and len(value) == 32:
        value = value[active]
        if len(value) and all(np.array_equal(v, value[0]) for v in value[1:]):
            value = value[0]
    if isinstance(value, (np.ndarray, np.generic)):
        if not value.ndim and value.dtype.kind in "iub":
            return int(value)
        return (value.shape, str(value.dtype), value.tobytes())
    return int(value) if isinstance(value, (bool, int)) else str(value)


def _boxes(tmap: BoundTensorMap, coords: Any, active: np.ndarray) -> Any:
    """Return what the map makes of coordinates: elements, which of them exist, and their order."""
    coords = coords if isinstance(coords, tuple) else (coords,)
    found = []
    for lane in active:
        start = [int(c[lane]) if isinstance(c, np.ndarray) and c.ndim else int(c) for c in coords]
        places, inside = tmap.select(start)
        out = None if inside is None else (inside.tobytes(), str(tmap.fill()))
        places = places if inside is None else places[inside]
        found.append((tmap.region.name, places.tobytes(), out, tmap.itemsize, tmap.swizzle_bytes))
    return tuple(found)


@contextmanager
def _recording(trace: Trace) -> Iterator[None]:
    """Write down what warps do, until the end."""
    compiled = simulator.compiled

    def recorded(func: Any) -> Any:
        code = compiled(func)

        def run(warp: Any, mask: Any) -> Any:
            key = (code.name, warp.cta.block, warp.lane_name)
            return code.run(_Recorder(warp, trace.setdefault(key, [])), mask)

        return dataclasses.replace(code, run=run)

    simulator.compiled = recorded
    try:
        yield
    finally:
        simulator.compiled = compiled


def record(program: Program, inputs: dict[str, np.ndarray]) -> Trace:
    """Run a program that every judge let pass, and return what each of its warps did."""
    trace: Trace = {}
    values, missing = complete(program.arguments, inputs)
    launches = bound_launches(program, values, DEFAULT_NUM_SMS)
    with _recording(trace):
        every_cta = [None] * len(launches)
        run_launches(launches, values, missing, every_cta, RunOptions(detect_races=False))
    return trace
