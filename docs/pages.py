"""Write the measured numbers of README.md and docs/*.md from their tables, and list those without a source.

python docs/pages.py [--check]

A comment behind a number, or behind words in italics, names its source, a function of docs/sources.py, and what to ask
it; a comment on the line above a table writes the table. Comments do not show on the page:

    the median error is 51.1<!-- forecasts: one step: rho --> %

A number is rounded to the digits that stand there. Every other measured number stands beside the command that measures
it: in the same paragraph, item or table, next to a block with its lines, or, in a table, next to a paragraph that names
it. --check changes nothing, and says what differs.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import sources

ROOT = sources.ROOT
_NUMBER = r"(?<![\w.])[-+−]?\d+(?:\.\d+)?(?:e[-+]?\d+)?"
_SOURCED = re.compile(rf"({_NUMBER}(?:\s+±\s+{_NUMBER})?|\*[^*\n]+\*)<!-- (\w+): (.+?) -->")
SOURCE_OF_TABLE = re.compile(r"<!-- (\w+): (.+?) -->")
_TABLE = re.compile(rf"^({SOURCE_OF_TABLE.pattern}\n)(?:\|.*\n)+", re.MULTILINE)
_BY_SCRIPT = re.compile(r"`python\s+scripts/[^`]*--page`\s+writes\s+this\s+page")

_UNIT = r"(?:%|×(?! ?\d)|(?:[nµm]?s|h|min|hours?|minutes?|seconds?|times|[kMGT]B|Gflop/s)\b)"
_MEASURED = re.compile(
    rf"{_NUMBER} ± |{_NUMBER}(?: (?:to|and|or) {_NUMBER})? {_UNIT}|(?<![\w.])[-+−]?\d+\.\d+(?!\w|\.\d)"
    rf"|factor of \d|{_NUMBER} of (?:the )?(?:\d+\b(?! 000)|ten\b|twelve\b)"
)
"""With an error, a unit or decimals; a factor; so many of a number."""
_NOT_MEASURED = {
    "code": r"`[^`]*`",
    "formula": r"\$[^$]*\$",
    "link": r"\]\([^)]*\)",
    "number of a paper": rf"published: {_NUMBER}(?: %)?",
    "part of a paper": r"(?:Tables?|Figs?\.|eqs?\.|sections?|§) ?[\d.]+(?:(?:, | and | to )[\d.]+)*",
    "version": r"\b(?:jax|Python|neural-tangents|Apache)[ -](?:< )?\d[\d.]*",
    "setting of a symbol": rf"(?:(?<=\b\w)|(?<=[$²])) = {_NUMBER}",
}
"""What looks like a measurement and is none: the kinds of numbers that are left out, by name."""
_WITHOUT = re.compile("|".join(_NOT_MEASURED.values()))
_SETTINGS = re.compile(r"^\|[^\n]*\b(?:setting|key|meaning|choose|architecture)\b[^\n]*\|$", re.MULTILINE)
"""The head of a table of settings."""

_FENCE = re.compile(r"^```[^\n]*\n(.*?)^```", re.DOTALL | re.MULTILINE)
_LINE = re.compile(r"^(?:\$ )?(?:kfx|python|bash) ", re.MULTILINE)
_LINES = "⌘"
"""Stands for a block with lines of commands."""
_COMMAND = re.compile(
    rf"{_LINES}|`[^`]*\b(?:kfx (?:run|study|reproduce|compare|gram)|(?:python|bash) scripts/\w|make bench)"
)
_EXPERIMENT = re.compile(r"`(?:[^`]*\+experiment=)?(\w+/\w+)[` ]")


def pages() -> list[Path]:
    """README.md and the pages of docs/."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def written(text: str) -> str:
    """Return the text of a page with its numbers and tables as the sources have them; ValueError for a comment that
    none of them answers."""
    text = _SOURCED.sub(lambda at: _said(at[2], at[3], at[1]) + at[0].removeprefix(at[1]), text)
    return _TABLE.sub(lambda at: f"{at[1]}{_said(at[2], at[3], '')}\n", text)


def _said(source: str, question: str, shown: str) -> str:
    """What a source says, with the digits and the sign of what is shown."""
    try:
        found = sources.SOURCES[source](question)
    except (LookupError, ValueError, OSError) as error:
        raise ValueError(f"<!-- {source}: {question} -->: {error}") from None
    if isinstance(found, str):
        return f"*{found}*" if shown.startswith("*") else found
    values = found if isinstance(found, tuple) else (found,)
    numbers = re.findall(_NUMBER, shown)
    if not 1 <= len(numbers) <= len(values):
        raise ValueError(f"<!-- {source}: {question} -->: {found} in place of {shown or 'a table'}")
    of = iter(values)
    return re.sub(_NUMBER, lambda at: _digits(at[0], next(of)), shown)


def _digits(shown: str, value: float) -> str:
    mantissa, _, exponent = shown.partition("e")
    decimals = len(mantissa.partition(".")[2])
    text = f"{value:{'+' * shown.startswith('+')}.{decimals}{'e' if exponent else 'f'}}"
    return text.replace("-", "−", 1) if text.startswith("-") else text


def without_source(text: str) -> Iterator[str]:
    """Yield the measured numbers that have neither a source nor their command beside them, and where they stand."""
    if _BY_SCRIPT.search(text):
        return
    text = _TABLE.sub("", _SOURCED.sub("", text))
    text = _FENCE.sub(lambda at: f"\n{_LINES * bool(_LINE.search(at[1]))}\n", text)
    parts = [part.strip() for part in re.split(r"\n\s*\n|\n(?=- |#)", text)]
    for before, part, after in zip(["", *parts[:-1]], parts, [*parts[1:], ""], strict=True):
        beside = [part, *(each for each in (before, after) if part.startswith("|") or each == _LINES)]
        if part.startswith("#") or _SETTINGS.search(part) or any(map(_names_a_command, beside)):
            continue
        words = " ".join(part.split())
        if found := [at[0].strip() for at in _MEASURED.finditer(_WITHOUT.sub(" ", words))]:
            yield f"{', '.join(found)}: in “{words[:80]}”"


def _names_a_command(text: str) -> bool:
    text = " ".join(text.split())
    named = _EXPERIMENT.findall(text)
    return bool(_COMMAND.search(text)) or any((ROOT / f"configs/experiment/{each}.yaml").is_file() for each in named)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing, and say what differs")
    parsed = parser.parse_args()
    wrong = 0
    for path in pages():
        name, text = path.relative_to(ROOT), path.read_text()
        try:
            new = written(text)
        except ValueError as error:
            sys.exit(f"{name}: {error}")
        if new != text:
            wrong += parsed.check
            print(f"{name}: {'not as the tables have it; run python docs/pages.py' if parsed.check else 'written'}")
            if not parsed.check:
                path.write_text(new)
        for each in without_source(new):
            wrong += 1
            print(f"{name}: neither a source nor a command: {each}", file=sys.stderr)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
