"""The committed claims beside their papers: what the papers say, and the numbers that they print."""

import os
import sys
from pathlib import Path

import pytest

from kfx.config.published import read_published
from kfx.papers import claims
from kfx.papers.claims import Condition, Measured, Measurements, Outcome
from kfx.papers.numbers import FOLDER, of_command
from kfx.papers.tables import PLACE, Table

ROOT = Path(__file__).parent.parent
TEXTS = Path(os.environ.get("KFX_PAPERS_DIR", ROOT.parent / "shared" / "seeds"))
"""Where the papers' texts are, which are not part of kfx."""
sys.path.insert(0, str(ROOT / "scripts"))
import check_claims  # noqa: E402

STATED = claims.read(ROOT / FOLDER)
PAPER = """1. Alpha
We say $\\rho$ falls, and Table 2 has 0.5.
1.1. Beta
It is $\\sigma = 3.0$ , in Fig. 4.
2. Gamma
It rises.
"""


def claim(**said):
    return claims.Claim(**{"claim": "c", "source": "Paper 1999, §1.1, Fig. 4", "quote": "It is σ = 3.0, in", **said})


@pytest.mark.parametrize(
    ("said", "wrong"),
    [
        ({}, []),
        ({"quote": "ρ falls, and", "source": "Paper 1999, §1, Table 2"}, []),
        ({"quote": "ρ falls, and", "source": "Paper 1999, §1.1"}, ["“ρ falls, and” is not in §1.1"]),
        ({"quote": "It rises"}, ["“It rises” is not in §1.1"]),
        ({"source": "Paper 1999, §1.2"}, ["there is no section 1.2", "“It is σ = 3.0, in” is not in §1.2"]),
        ({"source": "Paper 1999, §1.1, Fig. 5"}, ["Fig 5 is not in §1.1"]),
        ({"source": "Paper 1999, §1.1, Table 4"}, ["Table 4 is not in §1.1"]),
        ({"quote": ""}, ["“” is not in §1.1"]),
        ({"source": "Paper 1999"}, ["its source names no section", "“It is σ = 3.0, in” is not in §"]),
    ],
)
def test_a_source_is_checked_against_its_paper(said, wrong):
    assert list(check_claims.problems(claim(**said), PAPER)) == wrong


@pytest.mark.parametrize("stated", STATED, ids=lambda each: each.claim[:50])
def test_every_claim_quotes_a_section_of_its_paper(stated):
    assert stated.quote
    texts = check_claims.papers(TEXTS)
    if not texts:
        pytest.skip(f"the papers are not in {TEXTS}")
    assert not list(check_claims.problems(stated, texts[stated.source.partition(",")[0]]))


def printed(sides: list[Measured]) -> Measurements:
    """The numbers that the papers print for the commands of conditions, as if they were measured."""
    tables = {}
    for side in sides:
        numbers = of_command(read_published(side.command.experiment), side.command)
        places = [dict(zip(PLACE, each.place, strict=True)) for each in numbers if each.value is not None]
        values = [each.value for each in numbers if each.value is not None]
        rows = [
            {
                "seed": "0",
                "measured": str(value),
                **{key: "" if part is None else str(part) for key, part in at.items()},
            }
            for at, value in zip(places, values, strict=True)
        ]
        tables[side.command] = Table(side.command, {}, tuple(rows))
    return Measurements(tables)


def as_printed(condition: Condition) -> Outcome:
    other = condition.other
    return claims._outcome(condition, printed([condition, *([other] if isinstance(other, Measured) else [])]))


@pytest.mark.parametrize("stated", STATED, ids=lambda each: each.claim[:50])
def test_no_claim_contradicts_the_numbers_of_its_paper(stated):
    for condition in stated.conditions:
        if not condition.study:
            outcome = as_printed(condition)
            assert all(outcome.holds), (str(condition), outcome.left, outcome.right)


def test_many_conditions_are_beside_printed_numbers():
    found = [each for stated in STATED for each in stated.conditions if not each.study and as_printed(each).holds]
    assert len(found) > 60
