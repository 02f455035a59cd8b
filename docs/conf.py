"""How Sphinx makes the site: `make docs`. Sources lie at the root, so that links mean the same."""

import sys
from pathlib import Path

import tvm_hopper

sys.path.insert(0, str(Path(__file__).parent))
import notebook_pages

ROOT = Path(__file__).resolve().parents[1]

project = "tvm_hopper"
release = version = tvm_hopper.__version__
project_copyright = ""

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "docs/index"
include_patterns = ["*.md", "docs/**", "tutorials/*.md", "benchmarks/results/*.md"]
exclude_patterns = ["AGENTS.md", "CLAUDE.md", "docs/*.py", "docs/static"]

myst_heading_anchors = 4  # `page.md#heading`, as code hosts have it; a wrong one is a warning
suppress_warnings = [
    "myst.header",  # tables of results begin where they like
    "toc.not_included",  # tables of results are linked, and not in the sidebar
]

default_role = "code"  # of single backticks in docstrings
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
napoleon_google_docstring = False
napoleon_use_rtype = False

html_theme = "furo"
html_title = f"tvm_hopper {release}"
html_copy_source = False
html_show_copyright = False
html_static_path = ["static"]
html_css_files = ["site.css"]


def show_outputs(app, name, source) -> None:
    """Replace a tutorial's text by its notebook, which has the outputs."""
    if name.startswith("tutorials/"):
        source[0] = notebook_pages.page(ROOT / f"{name}.ipynb")


def add_start_page(app, exception) -> None:
    """Lead from the site's root to its first page, which lies in a folder."""
    if exception is None and app.builder.format == "html":
        line = '<!doctype html><meta http-equiv="refresh" content="0; url=docs/index.html">\n'
        (Path(app.outdir) / "index.html").write_text(line)


def setup(app) -> None:
    """Register what the configuration alone cannot say."""
    app.connect("source-read", show_outputs)
    app.connect("build-finished", add_start_page)
