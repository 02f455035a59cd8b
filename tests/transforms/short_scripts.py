"""The short form of TVMScript in which the tests of the passes state kernels.

It is Python, too, and says on a block's or loop's own line what TVMScript says in further lines:

    with T.sblock("load", reads=[A[0:8]], writes=[tile[0:8]], async_op="tma_load", channel=0):
    for k in range(8, stage=[0, 1], order=[0, 1], async_stages=[0], consumers=2):

stand for

    with T.sblock("load"):
        T.reads(A[0:8])
        T.writes(tile[0:8])
        T.sblock_attr({"tvm_hopper.async_op": "tma_load", "tvm_hopper.channel": 0})
    for k in T.serial(8, annotations={"software_pipeline_stage": [0, 1], ...}):

Annotations that TVM has no word for have our prefix. TVM finds the regions that a block leaves out.
"""

from __future__ import annotations

import ast
import textwrap

from tvm_hopper.requests.keys import PREFIX

WORDS_OF_TVM = ("software_pipeline_", "pragma_", "disable_unroll")
PIPELINE = ("stage", "order", "async_stages")  # without TVM's "software_pipeline_"
DECORATOR = ast.parse("T.prim_func(private=True, s_tir=True)", mode="eval").body
STATEMENTS = ("where", "reads", "writes")  # of a block, in TVM's order
TVM_KEYWORDS = ("thread", "annotations", "unroll", "step")
LOOPS = ("range", "T.serial", "T.unroll", "T.vectorized", "T.thread_binding")


def expand(text: str) -> str:
    """Return the TVMScript of a short one; TVMScript stays what it is."""
    return ast.unparse(_Expand().visit(ast.parse(textwrap.dedent(text))))


def _annotations(keywords: list[ast.keyword]) -> ast.Dict:
    """Return the keywords as a dict of annotations, ours with their prefix."""
    names = ["software_pipeline_" * (x.arg in PIPELINE) + x.arg for x in keywords]
    full = [x if x.startswith(WORDS_OF_TVM) else PREFIX + x for x in names]
    return ast.Dict([ast.Constant(x) for x in full], [x.value for x in keywords])


def _call(name: str, *args: ast.expr) -> ast.Expr:
    return ast.Expr(ast.Call(ast.parse(f"T.{name}", mode="eval").body, list(args), []))


class _Expand(ast.NodeTransformer):
    """Rewrites functions, blocks and loops."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        if not node.decorator_list:
            node.decorator_list = [DECORATOR]
        return self.generic_visit(node)

    def visit_With(self, node: ast.With) -> ast.AST:
        block = node.items[0].context_expr
        if isinstance(block, ast.Call) and ast.unparse(block.func) == "T.sblock":
            given = {x.arg: x.value for x in block.keywords if x.arg in STATEMENTS}
            notes = [x for x in block.keywords if x.arg not in STATEMENTS]
            regions = [
                _call(name, *(given[name].elts if name != "where" else [given[name]]))
                for name in STATEMENTS
                if name in given
            ]
            attrs = [_call("sblock_attr", _annotations(notes))] if notes else []
            block.keywords, node.body = [], [*regions, *attrs, *node.body]
        return self.generic_visit(node)

    def visit_For(self, node: ast.For) -> ast.AST:
        loop, name = node.iter, ast.unparse(node.iter).partition("(")[0]
        notes = [x for x in getattr(loop, "keywords", []) if x.arg not in TVM_KEYWORDS]
        if name in LOOPS and notes:
            loop.keywords = [x for x in loop.keywords if x not in notes]
            loop.keywords.append(ast.keyword("annotations", _annotations(notes)))
            if name == "range":
                loop.func = _call("serial").value.func
        return self.generic_visit(node)
