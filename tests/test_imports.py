"""Imports run downhill between files too, where `make lint` looks at rooms alone."""

from __future__ import annotations

from graphlib import TopologicalSorter

import grimp


def test_no_circle_between_files():
    graph = grimp.build_graph("kfx", cache_dir=None)  # those for types alone included
    TopologicalSorter({each: graph.find_modules_directly_imported_by(each) for each in graph.modules}).prepare()
