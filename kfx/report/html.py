"""HTML pages, each one self-contained file without network or scripts."""

from __future__ import annotations

from functools import cache

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined, select_autoescape


@cache
def templates(*further: str) -> Environment:
    """The templates of this package, after those of `further` packages; what HTML is filled with is escaped."""
    return Environment(
        loader=ChoiceLoader([PackageLoader(package) for package in (*further, "kfx.report")]),
        autoescape=select_autoescape(),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def render(template: str, **content: object) -> str:
    """Fill a template with content."""
    return templates().get_template(template).render(**content)
