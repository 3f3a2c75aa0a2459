"""Look for faults in the built site: `python docs/check_site.py docs/_build/html`. No network is used.

Dead links and anchors between its pages, addresses elsewhere that are none, empty axes in the pictures of examples,
objects of matplotlib printed as text, and backticks that Markdown left over.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import numpy as np
from PIL import Image
from scipy import ndimage

_CODE = {"code", "pre", "script", "style", "textarea"}


class Page(HTMLParser):
    """Links, anchors and faults in the text of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.faults: list[str] = []
        self._in_code: list[str] = []
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        of = dict(attrs)
        self.links += [of[key] or "" for key in ("href", "src") if key in of]
        self.anchors |= {value for key in ("id", "name") if (value := of.get(key))}
        if tag in _CODE:
            self._in_code.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if self._in_code and self._in_code[-1] == tag:
            self._in_code.pop()

    def handle_data(self, data: str) -> None:
        if "<matplotlib." in data or "<Axes" in data:
            self.faults.append(f"prints an object of matplotlib: {data.strip()[:60]}")
        elif "`" in data and not self._in_code:
            self.faults.append(f"backtick in text: {data.strip()[:60]}")


def faults(site: Path) -> Iterator[str]:
    """A line for each fault: where, and what."""
    parsed = cache(Page)
    for path in sorted(site.rglob("*.html")):
        page, name = parsed(path), path.relative_to(site)
        yield from (f"{name}: {each}" for each in page.faults)
        for link in dict.fromkeys(page.links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                if parts.scheme not in ("data", "mailto") and not (parts.scheme in ("http", "https") and parts.netloc):
                    yield f"{name}: no address: {link}"
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.is_file():
                yield f"{name}: dead link: {link}"
            elif parts.fragment and target.suffix == ".html" and unquote(parts.fragment) not in parsed(target).anchors:
                yield f"{name}: dead anchor: {link}"
    for path in sorted(site.glob("_images/sphx_glr_*.png")):
        if count := empty_axes(np.asarray(Image.open(path).convert("L"))):
            yield f"{path.relative_to(site)}: {count} empty axes"


def empty_axes(image: np.ndarray) -> int:
    """Number of axes without content in a picture, (height, width) of grey values.

    Axes are a dark horizontal line and a dark vertical one, each at least a tenth of the picture long, that meet at the
    lower left; a light grid is no content.
    """
    dark, found = image < 128, set()
    for row, left, right in _lines(dark):
        for column, top, bottom in _lines(dark.T):
            within = image[top + 4 : row - 3, column + 4 : right - 4]
            meet = abs(column - left) < 10 and abs(bottom - row) < 10  # a tick may lengthen either
            if meet and within.size and within.min() > 150:
                found.add((row // 8, column // 8))  # a line is a few pixels wide
    return len(found)


def _lines(dark: np.ndarray) -> list[tuple[int, int, int]]:
    """(row, first column, last column) of the horizontal runs of dark pixels that span a tenth of the picture."""
    runs, _ = ndimage.label(dark, [[0, 0, 0], [1, 1, 1], [0, 0, 0]])
    spans = [(rows.start, columns.start, columns.stop) for rows, columns in ndimage.find_objects(runs)]
    return [(row, left, right) for row, left, right in spans if right - left >= dark.shape[1] / 10]


if __name__ == "__main__":
    found = list(faults(Path(sys.argv[1]).resolve()))
    for line in found:
        print(line, file=sys.stderr)
    sys.exit(bool(found))
