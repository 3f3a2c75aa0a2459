"""The numbers of the pages: written from their tables, or beside the command that measures them."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parent.parent / "docs"


@pytest.fixture(scope="module")
def pages():
    """The module docs/pages.py, beside its sources."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(DOCS))
        spec = importlib.util.spec_from_file_location("pages", DOCS / "pages.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield module
    for name in ("sources", "compare_pooled", "table_page", "table_sets", "table_methods", "where_rho_wins"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("name", ["README.md", *sorted(f"docs/{path.name}" for path in DOCS.glob("*.md"))])
def test_a_page_is_what_its_tables_give_and_names_the_others_commands(pages, name):
    text = (DOCS.parent / name).read_text()
    assert pages.written(text) == text, "python docs/pages.py writes it"
    assert list(pages.without_source(text)) == []
    for line in text.splitlines():
        assert not line.startswith("<!--") or pages.SOURCE_OF_TABLE.fullmatch(line), "Markdown would end the paragraph"


def test_a_number_keeps_its_digits_and_sign(pages, monkeypatch):
    said = {"one": 12.345, "two": (0.7182, 0.0459), "cell": "4.20", "small": 0.000123, "less": -2.71, "word": "differs"}
    monkeypatch.setitem(pages.sources.SOURCES, "said", said.__getitem__)
    text = (
        "1.0<!-- said: one --> 1<!-- said: one --> %, +1.00<!-- said: one -->, 1.00\n± 0.1<!-- said: two -->, "
        "0.2<!-- said: two -->, 7<!-- said: cell -->, 1.0e-02<!-- said: small -->, 3.1<!-- said: less -->, "
        "*a b*<!-- said: word -->"
    )
    shown = pages.re.sub(r"<!--.*?-->", "", pages.written(text))
    assert shown == "12.3 12 %, +12.35, 0.72\n± 0.0, 0.7, 4.20, 1.2e-04, −2.7, *differs*"


def test_a_table_is_written_behind_its_comment(pages, monkeypatch):
    monkeypatch.setitem(pages.sources.SOURCES, "said", {"table": "| a |\n|---|\n| 1 |"}.__getitem__)
    text = "Before:\n\n<!-- said: table -->\n| a |\n|---|\n| 2 |\n| 3 |\n\nAfter.\n"
    assert pages.written(text) == "Before:\n\n<!-- said: table -->\n| a |\n|---|\n| 1 |\n\nAfter.\n"


@pytest.mark.parametrize(
    "comment",
    [
        "forecasts: a method that nobody ran",
        "performance: work that nobody timed, kfx_ms",
        "reproduction: darcy/boston_flow, trained accuracy",
        "reproduction: darcy/boston_flow sampler.batch_size=7, trained mse",
        "published: nearly reproduced",
        "cell: docs/criteria.md, ρ, Newton",
        "cell: docs/criteria.md, ρ",
        "nothing: at all",
        "forecasts: one step: rho",
    ],
)
def test_a_comment_that_no_source_answers_is_named(pages, comment):
    with pytest.raises(ValueError, match=f"^<!-- {comment} -->: "):
        pages.written(f"1.0 ± 0.1<!-- {comment} -->")


@pytest.mark.parametrize(
    "text",
    [
        "The error is 3.4 % lower.",
        "It takes 5 ms.",
        "The mean is 4 ± 1.",
        "It is 3 times as fast.",
        "It falls by a factor of 100.",
        "The accuracy = 0.25.",
        "It is better on 5 of 6 tables.",
        "It is 4 to 8 MB.",
        "From λ = 1e-4 the error falls to 0.25.",
        "A paragraph with `kfx run`.\n\nThe error is 0.25.",
        "- The command is `kfx run`.\n- The error is 0.25.",
        "`kfx run`.\n\nWords.\n\n| a | error |\n|---|---|\n| b | 0.25 |",
        "```python\nkfx.run([])\n```\n\nThe error is 0.25.",
        "It is 0.25 (`darcy/no_experiment`).",
    ],
)
def test_a_measured_number_alone_is_found(pages, text):
    assert list(pages.without_source(text))


@pytest.mark.parametrize(
    "text",
    [
        "`kfx run` ends at 0.25.",
        "`python scripts/bench.py` takes 5 ms.",
        "It is 0.25 (`darcy/boston_flow`).",
        "It is 0.25<!-- forecasts: one step: rho -->.",
        "```sh\nkfx run\n```\n\nThe error is 0.25.",
        "Measured by `kfx study noise`:\n\n| a | error |\n|---|---|\n| b | 0.25 |",
        "<!-- performance: newest -->\n| a |\n|---|\n| 0.25 |\n",
        "| setting | default |\n|---|---|\n| λ | 0.25 |",
        "Images of 28 × 28 with λ = 0.25 and $x = 0.5$, by jax 0.6 (Table 5.1; published: 0.25), see `0.5`.",
        "### 2.5 times",
        "In 2019 they took 600 points.",
    ],
)
def test_a_number_with_a_source_or_no_measurement_is_not(pages, text):
    assert list(pages.without_source(text)) == []
