"""The family pages: every policy and method has a row and a section, and the tables are those of the classes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tools import method_tables

from orderdp import coresets
from orderdp.errors import ConfigError
from orderdp.policies.registry import NAMES, RECORDED
from orderdp.registry import one_sentence, read_card


@pytest.mark.parametrize("page", method_tables.PAGES, ids=lambda page: f"{page.parent.name}/{page.stem}")
def test_the_tables_are_those_of_the_classes(page: Path) -> None:
    text = page.read_text()
    assert method_tables.filled(text) == text, "run make tables"


def test_a_table_that_is_not_current_is_noticed() -> None:
    page = next(page for page in method_tables.PAGES if page.stem == "bandits").read_text()
    assert method_tables.filled(page.replace("alpha=0.2)", "alpha=0.3)")) == page


@pytest.mark.parametrize(
    ("subpackage", "names"), [("policies", (*NAMES, *RECORDED)), ("coresets", tuple(coresets.NAMES))]
)
def test_every_name_has_one_row_and_one_section(subpackage: str, names: tuple[str, ...]) -> None:
    pages = [page.read_text() for page in method_tables.PAGES if page.parent.name == subpackage]
    rows = [name for page in pages for name in re.findall(r"^\| \[([\w-]+)\]\(#\1\) \|", page, re.MULTILINE)]
    sections = [name for page in pages for name in re.findall(r"^## ([\w-]+)$", page, re.MULTILINE) if name in names]
    assert sorted(rows) == sorted(sections) == sorted(names)
    assert set(method_tables.REFERENCES) >= set(names)


def test_a_card_is_the_row_and_the_section_of_its_name() -> None:
    card = read_card("policies", "ucb")
    assert card.startswith("# ucb\n\nKeeps the samples with the largest mean + c * variance")
    assert "- bytes per sample: 12\n" in card
    assert "- reference: Raju et al., 2021\n" in card
    assert "**Rule.** var" in card
    assert "epsilon-greedy" not in card
    assert one_sentence(card) == card.splitlines()[2]


def test_a_card_that_is_not_there_is_an_error() -> None:
    with pytest.raises(ConfigError, match="the card of 'nothing' is missing"):
        read_card("policies", "nothing")
