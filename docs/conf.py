"""Sphinx: pages, an executed gallery, and the API from docstrings. `make docs` builds them, offline."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path
from typing import Any

import kfx
from kfx.papers import claims, pages
from kfx.papers.numbers import FOLDER, gather, read_notes

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
html_extra_path: list[str] = []  # the pages of published numbers, once they are written
html_static_path, html_css_files = ["_static"], ["narrow.css"]
exclude_patterns = ["_build", "examples/*"]
myst_heading_anchors = 3
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
    "(../REPRODUCTION.md)": "(reproduction.html)",
    "(CONTRIBUTING.md)": "(extend.md)",
}


def _mend_links(app: Any, name: str, source: list[str]) -> None:
    """Links between files of the repository as links between pages."""
    for link, page in _LINKS.items():
        source[0] = source[0].replace(link, page)


def _write_published_numbers(app: Any, config: Any) -> None:
    """The page of published numbers, from the tables of the repository."""
    tables = Path(app.srcdir).parent / FOLDER
    entries = gather(tables)
    tested = claims.tested(claims.read(tables), claims.measurements(tables, entries))
    for name, page in pages.html(entries, tested, read_notes(tables)).items():
        (Path(app.srcdir) / name).write_text(page)
        config.html_extra_path.append(name)


def _mend_way_back(app: Any, error: Exception | None) -> None:
    """From the page of published numbers back to the site, not to the file beside it in the repository."""
    page = Path(app.outdir) / "reproduction.html"
    if page.is_file():
        page.write_text(page.read_text().replace('href="../README.md"', 'href="index.html"'))


_ENTRY = re.compile(r"^([\w*, ]+): ")


def _as_restructured(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Docstrings are plain text: names in single backticks, `name: meaning` a line, indented formulas."""
    if any(set(line.strip()) == {"-"} for line in lines if line.strip()) or any(line.startswith(":") for line in lines):
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
    quoted = [f"``{piece}``" for piece in pieces[1::2]]
    return "".join(part for pair in zip(escaped, [*quoted, ""], strict=False) for part in pair)


def setup(app: Any) -> None:
    app.connect("config-inited", _write_published_numbers)
    app.connect("source-read", _mend_links)
    app.connect("build-finished", _mend_way_back)
    app.connect("autodoc-process-docstring", _as_restructured)
