"""Cards of policies and methods: one page each on the rule, parameters, cost and guarantees."""

from __future__ import annotations

from pathlib import Path

from orderdp.errors import ConfigError

__all__ = ["one_sentence", "read_card"]


_PACKAGE = Path(__file__).parent


def read_card(room: str, name: str) -> str:
    """Return the card called `name` of a subpackage, "policies" or "coresets"."""
    # In an installed package the cards are beside the code; in a checkout, in the documentation.
    for folder in (_PACKAGE / room / "cards", _PACKAGE.parents[1] / "docs" / room):
        if (folder / f"{name}.md").exists():
            return (folder / f"{name}.md").read_text(encoding="utf-8")
    raise ConfigError(f"the card of {name!r} is missing from this installation. Install orderdp again.")


def one_sentence(card: str) -> str:
    """Return the one-sentence summary of a card."""
    return card.split("**In one sentence:**")[1].split("\n\n")[0].replace("\n", " ").strip()
