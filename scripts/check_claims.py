"""Compare the claims of runs/reproduction/claims.yaml with the texts of their papers.

python scripts/check_claims.py FOLDER

FOLDER holds a text file (*.txt) of each paper. For each claim the sections that its source names must exist, the tables
and figures must be named in one of them, and so must the words that the claim quotes stand there.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from kfx.papers.claims import Claim, read
from kfx.papers.numbers import FOLDER

TITLES = {
    "Owhadi & Yoo 2019": "into the abyss",
    "Darcy 2020": "Kernel Flows Demystified",
    "Khalid 2022": "Neural Network Induced Gaussian Process Kernels",
    "Milsom et al. 2023": "Convolutional Deep Kernel Machines",
}
"""Words of each paper's title."""
_HEADING = r"((?:\d+|[A-F])(?:\.\d+)*)\.? +[A-Z].*$"
_SECTION = re.compile(r"§((?:\d+|[A-F])(?:\.\d+)*)")
_NUMBERED = re.compile(r"(Table|Fig)(?:ure)?s?\.? ((?:[\d.]*\d[a-z]?(?:, | and | to )?)+)")
_LETTERS = {"rho": "ρ", "sigma": "σ", "lambda": "λ", "alpha": "α", "beta": "β", "leq": "≤"}


def papers(folder: Path) -> dict[str, str]:
    """The text of each paper that the folder holds, by its citation."""
    texts = [path.read_text() for path in sorted(folder.glob("*.txt"))]
    found = {name: next((text for text in texts if title in text[:2000]), None) for name, title in TITLES.items()}
    return {name: text for name, text in found.items() if text is not None}


def plain(text: str) -> str:
    """The text in one line, with letters for the commands of TeX and without its signs."""
    for command, letter in _LETTERS.items():
        text = re.sub(rf"\\{command}(?![a-z])", letter, text)
    text = re.sub(r"\|", " ", re.sub(r"</?b>|\\mathcal|[${}\\]", "", text))
    return " ".join(text.split()).replace(" ,", ",")


def section(text: str, number: str) -> str:
    """A section with those within it; empty if there is none."""
    marked = "#+ +" if re.search(r"^#+ +\d", text, re.MULTILINE) else ""  # else lists are numbered as headings are
    headings = [(match.start(), match.group(1)) for match in re.finditer(f"^{marked}{_HEADING}", text, re.MULTILINE)]
    first = next((i for i, (_, found) in enumerate(headings) if found == number or _is_within(found, number)), None)
    if first is None:
        return ""
    after = [at for at, found in headings[first:] if not _is_within(found, number) and _order(found) > _order(number)]
    return text[headings[first][0] : after[0] if after else len(text)]


def _is_within(number: str, outer: str) -> bool:
    return number == outer or number.startswith(f"{outer}.")


def _order(number: str) -> list[tuple[bool, str]]:
    return [(not part.isdigit(), part.rjust(3)) for part in number.split(".")]


def problems(claim: Claim, text: str) -> Iterator[str]:
    """What in a claim's source and quotation is not in the paper."""
    numbers = _SECTION.findall(claim.source)
    if not numbers:
        yield "its source names no section"
    sections = {number: section(text, number) for number in numbers}
    yield from (f"there is no section {number}" for number, found in sections.items() if not found)
    cited = plain("\n".join(sections.values()))
    if not claim.quote or plain(claim.quote) not in cited:
        yield f"“{claim.quote}” is not in §{', '.join(numbers)}"
    for kind, listed in _NUMBERED.findall(claim.source):
        for number in re.findall(r"\d+(?:\.\d+)*", listed):
            if not re.search(rf"{kind}\w*s?\.? (?:[\d., (]*(?:and |to )?)?{re.escape(number)}(?!\d)", cited, re.I):
                yield f"{kind} {number} is not in §{', '.join(numbers)}"


def main(folder: Path) -> int:
    texts, wrong = papers(folder), 0
    for claim in read(FOLDER):
        paper = claim.source.partition(",")[0]
        for problem in problems(claim, texts[paper]) if paper in texts else [f"{folder} has no text of {paper}"]:
            print(f"{claim.claim}\n    {claim.source}: {problem}")
            wrong += 1
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
