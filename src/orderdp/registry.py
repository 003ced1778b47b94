"""Registries: the classes of a family by name, and the plain values from which their instances are built.

Policies, coreset methods, schedules, pool rules and thresholds each have one, next to their classes. Names and plain
values are what config files, run records and the command line hold. A card says what a policy or method does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from inspect import signature
from pathlib import Path
from typing import Any, Generic, TypeVar

from orderdp._validation import checked_name, suggestion
from orderdp.errors import ConfigError

__all__ = ["Registry", "one_sentence", "plain", "read_card"]


T = TypeVar("T")


_REGISTRIES: list[Registry[Any]] = []


class Registry(Mapping[str, type[T]], Generic[T]):
    """The classes of one family by name, in the order of listings.

    >>> from orderdp.policies.schedules import SCHEDULES
    >>> SCHEDULES.build("tail", prune_ratio=0.5)
    Tail(prune_ratio=0.5, share=0.125)
    >>> SCHEDULES.config(SCHEDULES.build("tail", prune_ratio=0.5))
    {'name': 'tail', 'prune_ratio': 0.5, 'share': 0.125}
    >>> SCHEDULES.parameters("tail")
    ['prune_ratio', 'share']

    Args:
        base: The class of which all members are subclasses.
        kind: The word for a member in messages.
        classes: The classes by name; `register` adds others.
        options: Parameters that `build` of a subclass takes for every member.
        shorten: Returns a shorter form of a config, if there is one.
    """

    def __init__(
        self,
        base: type[Any],  # not type[T]: it may be abstract
        kind: str,
        classes: Mapping[str, type[T]],
        *,
        options: tuple[str, ...] = (),
        shorten: Callable[[dict[str, Any]], Any] = lambda config: config,
    ) -> None:
        self.base = base
        self.kind = kind
        self._classes = dict(classes)
        self._options = options
        self._shorten = shorten
        _REGISTRIES.append(self)

    def __getitem__(self, name: str) -> type[T]:
        return self._classes[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._classes)

    def __len__(self) -> int:
        return len(self._classes)

    def register(self, name: str) -> Callable[[type[T]], type[T]]:
        """Return a decorator that adds a class under `name`.

        Args:
            name: A name that is not taken.
        """
        if name in self._classes:
            raise ConfigError(f"there is a {self.kind} {name!r} already. Choose another name.")

        def add(member: type[T]) -> type[T]:
            self._classes[name] = member
            return member

        return add

    def find(self, name: str) -> type[T]:
        """Return the class called `name`; raise with the closest name if there is none.

        Args:
            name: The name.
        """
        return self._classes[checked_name(name, self, self.kind)]

    def parameters(self, name: str) -> list[str]:
        """Return the names of the constructor arguments of the class called `name`.

        Args:
            name: The name.
        """
        return list(signature(self.find(name)).parameters)

    def build(self, name: str, **parameters: Any) -> T:
        """Build an instance of the class called `name`.

        Args:
            name: The name.
            **parameters: Its constructor arguments.
        """
        member, known = self.find(name), self.parameters(name)
        for parameter in parameters:
            if parameter not in known:
                raise ConfigError(
                    f"{self.kind} {name!r} has no parameter {parameter!r}."
                    f"{suggestion(parameter, [*known, *self._options])}"
                )
        try:
            return member(**parameters)
        except TypeError as error:
            raise ConfigError(f"{self.kind} {name!r} cannot be created: {error}.") from None

    def from_config(self, config: str | Mapping[str, Any]) -> T:
        """Build an instance from its name, or from its name and parameters.

        Args:
            config: The name, or a mapping with it under "name".
        """
        if isinstance(config, str):
            return self.build(config)
        if not isinstance(config, Mapping) or not isinstance(config.get("name"), str):
            raise ConfigError(
                f"a {self.kind} must be a name, or a name and parameters, such as "
                f'{{"name": "{next(iter(self))}", ...}}, got {config!r}.'
            )
        return self.build(**config)

    def config(self, value: T) -> dict[str, Any]:
        """Return the name and the plain parameters from which `build` makes an equal instance.

        Args:
            value: An instance of a registered class.
        """
        for name, member in self.items():
            if type(value) is member:
                return {"name": name, **{key: plain(entry) for key, entry in self._parameters_of(value).items()}}
        raise ConfigError(f"{type(value).__name__} is not a registered {self.kind}; there are {', '.join(self)}.")

    def short_config(self, value: T) -> Any:
        """Return the shortest plain value from which an equal instance can be made.

        Args:
            value: An instance of a registered class.
        """
        return self._shorten(self.config(value))

    def _parameters_of(self, value: T) -> Mapping[str, Any]:
        # Not asdict, which would also convert nested values.
        return {field.name: getattr(value, field.name) for field in fields(value) if field.init}  # type: ignore[arg-type]


def plain(value: Any) -> Any:
    """Return a parameter as JSON can hold it: members of registries as their configs, tuples as lists.

    Args:
        value: The parameter.
    """
    for registry in _REGISTRIES:
        if isinstance(value, registry.base):
            return registry.short_config(value)
    return list(value) if isinstance(value, tuple) else value


# -- cards: the section about a policy or method on the page of its family ---------------------------------------------


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
