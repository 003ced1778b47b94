"""Cards of policies and methods: the section about one of them on the page of its family."""

from __future__ import annotations

import re
from pathlib import Path

from orderdp.errors import ConfigError

__all__ = ["one_sentence", "read_card"]


_PACKAGE = Path(__file__).parent


def read_card(subpackage: str, name: str) -> str:
    """Return the card called `name` of a subpackage, "policies" or "coresets".

    A family page holds a table with one row per name and a section ``## name`` for each. The card is the row, as a
    summary and a list, and the section.
    """
    # In an installed package the pages are beside the code; in a checkout, in the documentation.
    for folder in (_PACKAGE / subpackage / "cards", _PACKAGE.parents[1] / "docs" / subpackage):
        for page in sorted(folder.glob("*.md")):
            text = page.read_text(encoding="utf-8")
            row = re.search(rf"^\| \[{name}\]\(#{name}\) \|.*$", text, re.MULTILINE)
            section = re.search(rf"^## {name}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
            if row and section:
                titles = _cells(next(line for line in text.splitlines() if line.startswith("| ")))
                _, selects, *facts = _cells(row.group())
                listed = [f"- {title}: {fact}" for title, fact in zip(titles[2:], facts, strict=True) if fact]
                return "\n".join([f"# {name}", "", selects, "", *listed, "", section.group(1).strip(), ""])
    raise ConfigError(f"the card of {name!r} is missing from this installation. Install orderdp again.")


def one_sentence(card: str) -> str:
    """Return the one-sentence summary of a card."""
    return card.split("\n\n")[1]


def _cells(row: str) -> list[str]:
    return [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", row)[1:-1]]
