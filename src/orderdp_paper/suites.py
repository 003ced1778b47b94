"""The suites, read from the files ``suites.toml`` and ``printed.toml`` of this package."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import resources
from typing import Any

from orderdp.experiments.config import preset_values, read_toml
from orderdp_paper.suite import Method, Part, PartResults, Printed, Scale, Suite, Table, read_grid
from orderdp_paper.tables import (
    ablation_tables,
    accuracy_tables,
    cost_tables,
    lossless_tables,
    motivation_tables,
    ratio_tables,
    stability_tables,
    stage_tables,
    static_tables,
    time_to_accuracy_tables,
    usage_tables,
)

__all__ = ["METHODS", "PRINTED", "SUITES", "recipe_settings"]


_TABLES: dict[str, Callable[[Suite, Sequence[PartResults]], list[Table]]] = {
    "ablation": ablation_tables,
    "accuracy": accuracy_tables,
    "cosine": stage_tables("cosine"),
    "cost": cost_tables,
    "jaccard": stage_tables("jaccard"),
    "lossless": lossless_tables,
    "motivation": motivation_tables,
    "ratios": ratio_tables,
    "stability": stability_tables,
    "static": static_tables,
    "time-to-accuracy": time_to_accuracy_tables,
    "usage": usage_tables,
}


def _read(name: str) -> dict[str, Any]:
    return read_toml(resources.files("orderdp_paper").joinpath(name).read_text(encoding="utf-8"))


def _printed(source: str, setting: str, claim: str, **grid: Any) -> Printed:
    values = read_grid(grid["groups"], grid["columns"], grid["values"]) if grid else {}
    return Printed(source, setting, values, claim)


def _method(
    *, parameters: Mapping[str, Any] | None = None, at_ratio: Mapping[str, Any] | None = None, **fields: Any
) -> Method:
    own = {name: None if value == "none" else value for name, value in (parameters or {}).items()}
    return Method(**fields, parameters=own, at_ratio={float(ratio): more for ratio, more in (at_ratio or {}).items()})


_DATA = _read("suites.toml")


#: The numbers that the paper prints, by the name of the table or figure.
PRINTED: dict[str, Printed] = {name: _printed(**found) for name, found in _read("printed.toml").items()}


#: Rows of the tables, by the name in ``suites.toml``.
METHODS: dict[str, Method] = {name: _method(**found) for name, found in _DATA["methods"].items()}


def recipe_settings(name: str, **changes: Any) -> dict[str, Any]:
    """Return the settings of a recipe, with changes."""
    found = dict(_DATA["recipes"][name])
    preset = found.pop("preset", None)
    return {**preset_values(preset), **found, **changes}


def _part(
    printed: Printed,
    *,
    beside: str,
    recipe: str,
    methods: Sequence[Any],
    seeds: int,
    full_run: float,
    changes: Mapping[str, Any] | None = None,
    ratios: Sequence[float] = (),
    printed_ratios: bool = False,
    looks: int = 0,
) -> Part:
    rows = [row for written in methods for row in _rows(written)]
    if printed_ratios:
        rows = [_at_printed_ratio(row, printed, beside) for row in rows]
    base = recipe_settings(recipe, **(changes or {}))
    return Part(beside, base, tuple(rows), tuple(ratios), tuple(range(seeds)), full_run, looks)


def _rows(written: Any) -> list[Method]:
    """Return the methods that an entry of a part stands for: one by name, or OrderDP with pools of several sizes."""
    if isinstance(written, str):
        return [METHODS[written]]
    if "method" in written:
        return [replace(METHODS[written["method"]], ratios=tuple(written["ratios"]))]
    ratio = written["ratio"]
    return [
        Method(f"{pool:g} x {(1 - ratio) / pool:.2f}", written["policy"], {"exploration": pool}, ratios=(ratio,))
        for pool in written["explorations"]
    ]


def _at_printed_ratio(method: Method, printed: Printed, group: str) -> Method:
    """Return the method at the ratio printed for it in a group; controls at that of OrderDP."""
    if method.policy == "full":
        return method
    number = printed.number(group, method.name, "saved") or printed.number(group, "OrderDP", "saved")
    assert number is not None
    return replace(method, ratios=(round(number.value / 100, 4),))


def _scale(printed: Printed, *, machine: str, differs: str, parts: list[dict[str, Any]]) -> Scale:
    return Scale(tuple(_part(printed, **part) for part in parts), **_DATA["machines"][machine], differs=differs)


def _suite(
    name: str, *, shows: str, printed: str, tables: str, figure: str, scales: dict[str, Any], diagnose: Any = False
) -> Suite:
    numbers = PRINTED[printed]
    own = {scale: _scale(numbers, **found) for scale, found in scales.items()}
    return Suite(name, shows, numbers, own, _TABLES[tables], figure, diagnose)


#: The tables and figures of the paper that need runs, by their name on the command line.
SUITES: dict[str, Suite] = {name: _suite(name, **found) for name, found in _DATA["suites"].items()}
