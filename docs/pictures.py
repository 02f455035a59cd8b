"""The pictures of the documents, from runs in the simulator: `python -m docs.pictures [FOLDER]`.

* timeline_product.png: a product as `hs.matmul` schedules it, no fault;
* timeline_race.png: the same with one group of WGMMA pending where its slot is released;
* timeline_deadlock.png: one of two consumers never releases a slot.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from tvm import s_tir

from tests.seeded.golden import g1_warp_specialized
from tests.seeded.running import run
from tests.sim_kernels.mutate import change, with_argument
from tvm_hopper import schedule as hs
from tvm_hopper.simulation import load, simulate
from tvm_hopper.testing import workloads

FOLDER = Path(__file__).resolve().parent / "images"
DPI = 100


def product() -> tuple[Any, dict[str, np.ndarray]]:
    """Return a product of 256 x 128 x 1024 with four stages, lowered, and its operands."""
    sch = s_tir.Schedule(workloads.matmul(256, 128, 1024, "NT", "float16", "float16"))
    hs.matmul(sch, "C", hs.MatmulConfig(tile=(128, 128, 64), stages=4, consumers=2))
    rng = np.random.default_rng(0)
    shapes = {"A": (256, 1024), "B": (128, 1024)}
    return load(sch.mod), {n: rng.standard_normal(s).astype("float16") for n, s in shapes.items()}


def main(folder: Path) -> None:
    """Draw all of them."""
    folder.mkdir(parents=True, exist_ok=True)
    program, operands = product()
    early = change(program, "wgmma_wait_group", 0, with_argument(0, lambda pending: pending + 1))
    runs = {
        "product": (simulate(program, operands, blocks=[(0, 0, 0)]), {}),
        "race": (
            simulate(early, operands, policy="random", seed=1, blocks=[(0, 0, 0)]),
            {"first": 6},
        ),
        "deadlock": (run(g1_warp_specialized.build("M12"), policy="on_wait"), {}),
    }
    for name, (result, zoom) in runs.items():
        figure = result.timeline().figure(**zoom)
        path = folder / f"timeline_{name}.png"
        figure.savefig(path, dpi=DPI, metadata={"Software": None})
        print(f"{path}: {result.verdict}, {path.stat().st_size // 1000} kB")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
