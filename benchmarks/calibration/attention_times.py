"""Time attention in several configurations: what its choice is fitted to.

    python -m benchmarks.calibration.attention_times OUTPUT.json --marks

Problems are those of `benchmarks.attention`. Of each the configurations are timed that the estimate
puts at `PLACES`. All kernels are built first, in parallel, and checked against float64.
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Any

from ..attention import Tensors, build_library, check, opponents
from ..attention_population import AttentionProblem, marks, problems
from .form_times import arguments_of, time_plan

PLACES = (0, 1, 2, 4, 8)  # in the order of the estimate


def configurations(problem: AttentionProblem) -> list[dict[str, Any]]:
    """Return the configurations that the estimate puts at `PLACES`, the chosen one first."""
    from tvm_hopper.schedule import AttentionConfig
    from tvm_hopper.schedule.attention.choose import AttentionShape, rank_attention

    p = problem
    begin = 1 - p.window if p.window else None
    lengths = p.rows, p.keys, p.depth, p.columns, p.dtype
    band = begin, p.keys - p.rows + 1 if p.causal else None
    masked = p.causal and not p.window
    shape = AttentionShape(*lengths, masked, p.batch * p.heads, may_split=True, band=band)
    ranked = [x.config for x in rank_attention(shape, AttentionConfig())]
    fields = "tile", "stages", "consumers", "persistent", "splits"
    return [{x: getattr(ranked[i], x) for x in fields} for i in PLACES if i < len(ranked)]


def build(problem: AttentionProblem, fields: dict[str, Any], path: str) -> str:
    """Build one configuration into a shared library; returns an error's text, or none."""
    try:
        build_library(problem, path, fields)
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[-1][:300]}"
    return ""


def main(arguments: list[str]) -> int:
    """Build all, then time one problem after the other. 0: all were right."""
    parser = arguments_of(__doc__.splitlines()[0])
    parser.add_argument("--marks", action="store_true", help="the grid in place of drawn problems")
    options = parser.parse_args(arguments)
    drawn = list(marks()) if options.marks else problems(options.seed, options.count)
    plan = [(x, configurations(x)) for x in drawn]
    return time_plan(plan, build, (Tensors, check, opponents), asdict, options)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
