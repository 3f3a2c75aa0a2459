"""Sphinx: pages, an executed gallery, and the API from docstrings. `make docs` builds them, offline."""

from __future__ import annotations

import os
import re
import tempfile
from typing import Any

from docutils.nodes import SkipNode
from docutils.utils.math.latex2mathml import tex2mathml

import kfx

project, author = "kfx", "the kfx developers"
copyright = "the kfx developers, Apache-2.0"
version = release = kfx.__version__
extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "myst_parser",
    "sphinx_gallery.gen_gallery",
]
html_theme, html_title = "furo", f"kfx {release}"
html_static_path, html_css_files = ["_static"], ["kfx.css"]
html_math_renderer = "mathml"  # made here when the pages are built; browsers draw it without scripts or network
exclude_patterns = ["_build", "examples/*"]
myst_heading_anchors = 3
myst_enable_extensions, myst_fence_as_directive = ["dollarmath"], {"math"}
nitpicky = False
autodoc_typehints, autodoc_member_order = "signature", "bysource"
autoclass_content = "class"
napoleon_google_docstring = False
suppress_warnings = ["config.cache"]  # of functions in this file, which cannot be pickled

os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # as the command does; read when torch is first imported
os.environ["KFX_RUNS"] = tempfile.mkdtemp(prefix="kfx-docs-")  # where the examples leave their runs
sphinx_gallery_conf = {
    "examples_dirs": "examples",
    "gallery_dirs": "gallery",
    "filename_pattern": r".*\.py",
    "within_subsection_order": "FileNameSortKey",
    "matplotlib_animations": False,
    "show_memory": False,
    "download_all_examples": False,
    "abort_on_example_error": True,
    "remove_config_comments": True,
    "copyfile_regex": r".*\.rst",
}

_LINKS = {
    "(../REPRODUCTION.md)": "(reproduction.md)",
    "(REPRODUCTION.md)": "(docs/reproduction.md)",  # from README, as the links to pages beside it
    "(CONTRIBUTING.md)": "(docs/contributing.md)",
}


def _mend_links(app: Any, *of_source: Any) -> None:
    """Links between files of the repository as links between pages: of a page, and of a file that it includes."""
    source = of_source[-1]
    for link, page in _LINKS.items():
        source[0] = source[0].replace(link, page)


def _as_mathml(visitor: Any, node: Any) -> None:
    """A formula, in its line or on a line of its own."""
    is_block = node.tagname == "math_block"
    made = str(tex2mathml(node.astext(), as_block=is_block))
    visitor.body.append(f'<div class="math">{made}</div>' if is_block else made)
    raise SkipNode


_ENTRY = re.compile(r"^([\w*, ]+): ")


def _as_restructured(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Docstrings are plain text: names in single backticks, `name: meaning` a line, indented formulas."""
    if any(set(line.strip()) == {"-"} for line in lines if line.strip()) or any(line.startswith(":") for line in lines):
        lines[:] = [re.sub(r"(?<![`:])`([^`]+)`(?!`)", r"``\1``", line) for line in lines]
        return  # sections in NumPy's form
    blocks = re.split(r"\n\s*\n", "\n".join(lines).strip("\n"))
    shown: list[str] = []
    for block in blocks:
        content = block.split("\n")
        if all(line.startswith("    ") for line in content):
            shown += ["::", "", *content, ""]
            continue
        entries: list[str] = []
        for line in content:
            if entries and not (_ENTRY.match(line) and not line.startswith(" ")):
                entries[-1] += " " + line.strip()
            else:
                entries.append(line.strip())
        for entry in entries:
            shown += [_inline(entry), ""]
    lines[:] = shown


def _inline(text: str) -> str:
    pieces = text.split("`")
    escaped = [re.sub(r"([*|_\\])", r"\\\1", piece) for piece in pieces[::2]]
    quoted = [rf"\ ``{piece}``\ " for piece in pieces[1::2]]  # also within a word, as in form=`batch`
    return "".join(part for pair in zip(escaped, [*quoted, ""], strict=False) for part in pair)


def setup(app: Any) -> None:
    app.connect("source-read", _mend_links)
    app.connect("include-read", _mend_links)
    app.add_html_math_renderer("mathml", (_as_mathml, None), (_as_mathml, None))
    app.connect("autodoc-process-docstring", _as_restructured)
