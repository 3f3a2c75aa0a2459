"""The checker of the built site finds what it looks for: `make docs` runs it on the site itself."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest

PATH = Path(__file__).resolve().parent.parent / "docs/check_site.py"
SPEC = importlib.util.spec_from_file_location("check_site", PATH)
check_site = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(check_site)


def draw(path, panels, filled):
    """So many panels, of which the first ones have a curve."""
    figure, axes = plt.subplots(1, panels, figsize=(3 * panels, 2.4), layout="constrained", squeeze=False)
    for panel in axes[0][:filled]:
        panel.plot([0, 1, 2], [3, 5, 4])
    figure.savefig(path)
    plt.close(figure)


@pytest.fixture
def site(tmp_path):
    (tmp_path / "_images").mkdir()
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/b.html").write_text('<h1 id="λ">b</h1><a href="../a.html">a</a><a href="#λ">here</a>')
    draw(tmp_path / "_images/sphx_glr_a_001.png", 2, 2)
    return tmp_path


def found(site, body):
    (site / "a.html").write_text(f"<html><body>{body}</body></html>")
    return list(check_site.faults(site))


def test_a_sound_site_has_no_faults(site):
    body = """<a href="sub/b.html#%CE%BB">b</a> <a href="https://example.org/x#y">elsewhere</a> <code>`x`</code>
        <img src="_images/sphx_glr_a_001.png"> <a href="mailto:a@example.org">write</a> <pre>a `b`</pre>"""
    assert found(site, body) == []


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ('<a href="sub/c.html">', "a.html: dead link: sub/c.html"),
        ('<a href="../a.html">', "a.html: dead link: ../a.html"),
        ('<img src="_images/none.png">', "a.html: dead link: _images/none.png"),
        ('<a href="sub/b.html#mu">', "a.html: dead anchor: sub/b.html#mu"),
        ('<a href="#mu">', "a.html: dead anchor: #mu"),
        ('<a href="https:///x">', "a.html: no address: https:///x"),
        ("<p>see `kfx run`</p>", "a.html: backtick in text: see `kfx run`"),
        (
            "<pre>&lt;matplotlib.legend.Legend object at 0x7&gt;</pre>",
            "a.html: prints an object of matplotlib: <matplotlib.legend.Legend object at 0x7>",
        ),
    ],
)
def test_a_fault_is_named_with_its_page(site, body, fault):
    assert found(site, body) == [fault]


OPEN = {"axes.spines.top": False, "axes.spines.right": False}
OF_KFX = OPEN | {"axes.grid": True, "grid.color": "#e6e8ec"}
LOOKS = {"framed": {}, "grid": {"axes.grid": True}, "open": OPEN, "of kfx": OF_KFX}


@pytest.mark.parametrize("look", LOOKS.values(), ids=list(LOOKS))
@pytest.mark.parametrize(("panels", "filled"), [(1, 0), (2, 1), (3, 1)])
def test_empty_axes_are_seen_in_the_pixels(site, panels, filled, look):
    with plt.rc_context(look):
        draw(site / "_images/sphx_glr_c_001.png", panels, filled)
    assert found(site, "") == [f"_images/sphx_glr_c_001.png: {panels - filled} empty axes"]


def test_a_picture_on_white_without_a_frame_is_not_empty_axes():
    assert check_site.empty_axes(np.full((100, 100), 255, np.uint8)) == 0
