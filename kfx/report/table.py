"""A table of texts, written for the screen, in LaTeX or in Markdown; templates write it in HTML."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rich.table import Table as ScreenTable


@dataclass(frozen=True)
class Table:
    """heads, and rows of as many texts; a head that ends in `#` marks a column of numbers.

    marks: for each row what follows its text in the column `marked`: `*`, which is bold where a format has that, or
    another sign. note: explains `*`; remarks: further sentences.
    """

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    marks: Sequence[str] = ()
    marked: int = 0
    note: str = ""
    remarks: Sequence[str] = ()

    @property
    def of_numbers(self) -> list[bool]:
        return [head.endswith("#") for head in self.heads]

    @property
    def names(self) -> list[str]:
        return [_line(head.removesuffix("#")) for head in self.heads]

    @property
    def cells(self) -> list[list[str]]:
        """The rows as plain text, with `*` and other signs after what they mark."""
        return self.written(str, str, "{} *")

    def written(self, text: Callable[[str], str], number: Callable[[str], str], bold: str) -> list[list[str]]:
        """The rows as a format writes them. text, number: a cell in it. bold: a bold cell, as `**{}**`."""
        rows, writers = [], [number if is_number else text for is_number in self.of_numbers]
        for row, mark in zip(self.rows, self.marks or [""] * len(self.rows), strict=True):
            cells = [write(cell) for write, cell in zip(writers, row, strict=True)]
            if mark:
                cell = cells[self.marked]
                cells[self.marked] = bold.replace("{}", cell) if mark == "*" else f"{cell} {text(mark)}"
            rows.append(cells)
        return rows


def screen(table: Table, width: int) -> ScreenTable:
    """The table for a console without markup. width: in characters."""
    from rich.table import Table as ScreenTable

    caption = "\n".join(filter(None, [table.note and f"* {table.note}", *table.remarks]))
    shown = ScreenTable(title=table.title, caption=caption or None)
    rows = table.cells
    for cells, mark in zip(rows, table.marks or [""] * len(rows), strict=True):
        if any(table.marks) and not mark:
            cells[table.marked] += "  "  # as wide as with a mark
    widths = _widths([[table.names[i], *(row[i] for row in rows)] for i in range(len(table.heads))], table, width)
    for name, is_number, own in zip(table.names, table.of_numbers, widths, strict=True):
        where: Literal["left", "right"] = "right" if is_number else "left"
        shown.add_column(name, justify=where, overflow="fold", min_width=own, max_width=own)
    for cells in rows:
        shown.add_row(*cells)
    return shown


_WORD = 12
"""Width to which a column of texts may shrink, where it breaks a longer word; a number is never broken."""


def _widths(columns: Sequence[Sequence[str]], table: Table, width: int) -> list[int]:
    """The widths of the columns, the head of each first, in a table of this width: heads break first, between their
    words, then texts, then numbers."""
    left = width - 3 * len(columns) - 1  # without the frame
    found = [max(map(_longest, column)) for column in columns]
    words = [max(map(_longest_word, column)) for column in columns]
    heads = [max(_longest_word(head), *map(_longest, cells), 0) for head, *cells in columns]
    numbers = table.of_numbers
    least = [word if is_number else min(word, _WORD) for word, is_number in zip(words, numbers, strict=True)]
    texts = [most if is_number else low for most, low, is_number in zip(heads, least, numbers, strict=True)]
    for lower in (heads, texts, least):
        cap, whole = max(found, default=0), found
        while sum(found) > left and cap > 0:  # the widest first
            cap -= 1
            found = [max(min(most, cap), low) for most, low in zip(whole, lower, strict=True)]
    return found


def _longest(text: str) -> int:
    from rich.cells import cell_len

    return max(map(cell_len, text.splitlines()), default=0)


def _longest_word(text: str) -> int:
    from rich.cells import cell_len

    return max(map(cell_len, text.split()), default=0)


def latex(table: Table) -> str:
    """The table in LaTeX, with booktabs; `*` is bold."""
    notes = [table.title, *([f"bold: {table.note}"] if table.note else []), *table.remarks]
    lines = [
        *(f"% {_line(note)}" for note in notes),
        rf"\begin{{tabular}}{{{''.join('r' if is_number else 'l' for is_number in table.of_numbers)}}}",
        r"\toprule",
        " & ".join(map(in_latex, table.names)) + r" \\",
        r"\midrule",
        *(" & ".join(cells) + r" \\" for cells in table.written(in_latex, _number_in_latex, r"\textbf{{}}")),
    ]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def markdown(table: Table) -> str:
    """The table in Markdown; `*` is bold."""
    notes = [table.title, *([f"Bold: {table.note}."] if table.note else []), *table.remarks]
    rows = [list(map(in_markdown, table.names)), ["---:" if each else "---" for each in table.of_numbers]]
    rows += table.written(in_markdown, in_markdown, "**{}**")
    lines = [line for note in notes for line in (in_markdown(note), "")]
    return "\n".join([*lines, *(f"| {' | '.join(cells)} |" for cells in rows), ""])


_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "`": r"\textasciigrave{}",
    "'": r"\textquotesingle{}",
    "±": r"$\pm$",
    "−": "$-$",
    "·": r"$\cdot$",
    "λ": r"$\lambda$",
    "ρ": r"$\rho$",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    **{sign: f"{{{sign}}}" for sign in "[*-"},  # else an argument of the row's end before it, or part of a dash
}


def in_latex(text: str) -> str:
    """A text as LaTeX prints it."""
    return "".join(_LATEX.get(sign, sign) for sign in _line(text))


def _number_in_latex(text: str) -> str:
    """A number, with its deviation: exponents are powers of ten, and signs are those of formulas."""

    def power(found: re.Match[str]) -> str:
        return rf"$\times 10^{{{'-' if found[1] else ''}{found[2]}}}$"

    return re.sub(r"(?<=\d)e(?:\+|(\{-\}))0*(\d+)", power, in_latex(text)).replace("{-}", "$-$")


def in_markdown(text: str) -> str:
    """A text as Markdown prints it within a table."""
    return re.sub(r"([\\`*_\[\]<>|~$&])", r"\\\1", _line(text))


def _line(text: str) -> str:
    """A text in one line: a line break would end a row or a comment."""
    return " ".join(text.split())
