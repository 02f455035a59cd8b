"""Cases with a known outcome, for the tests of judge, shrinker and runner.

A planted fault is a statement that does what a broken schedule helper or pass would do.
"""

from dataclasses import replace

from .case import BUILD, Case, Program, Step
from .draw import Draw
from .epilogue import draw_epilogue
from .product import Product
from .script import Script

MATMUL = Step('hs.matmul(sch, "C", hs.MatmulConfig(tile=(64, 64, 64), stages=1, consumers=1))')


def product(m: int = 64, n: int = 64, k: int = 64) -> Program:
    """Return the plain product of half matrices, summed in float32."""
    script = Script()
    draw_epilogue(Draw([]), Product(script, m, n, k))
    return script.program()


def case(*steps: str | Step, build: str = BUILD) -> Case:
    """Return a case of the plain product, scheduled, with further statements."""
    made = (step if isinstance(step, Step) else Step(step) for step in steps)
    return Case(product(), (MATMUL, *made), build=build)


def wrong(m: int = 64, n: int = 64, k: int = 64) -> Case:
    """Return a case whose kernel computes C + 1: a helper exchanged the program."""
    script = Script()
    p = Product(script, m, n, k, name="P")
    for tensor, dtype in (("A", "float16"), ("B", "float16")):
        script.tensor(tensor, p.shape[tensor], dtype)
    script.tensor("P", [m, n], "float32", scope="inside")
    p.write()
    script.tensor("C", [m, n], "float32")
    script.block("C", ["i", "j"], [m, n], ["C[vi, vj] = P[vi, vj] + T.float32(1)"])
    plant = Step(f"sch = s_tir.Schedule(tvm.script.from_source({script.text()!r}))")
    matmul = Step(MATMUL.text.replace('"C"', '"P"'), MATMUL.asks)
    return Case(product(m, n, k), (plant, matmul))


def with_program(made: Case, **facts: object) -> Case:
    """Return a case with other facts about its program."""
    return replace(made, program=replace(made.program, **facts))  # type: ignore[arg-type]
