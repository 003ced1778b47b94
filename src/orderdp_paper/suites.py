"""The suites, read from the files ``suites.toml`` and ``printed.toml`` of this package."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

from orderdp._files import write_text
from orderdp.errors import ConfigError
from orderdp.experiments.config import preset_values, read_toml
from orderdp.report import show
from orderdp.report.charts import save
from orderdp_paper import theory
from orderdp_paper.charts import draw
from orderdp_paper.suite import BROUGHT, Method, Part, PartResults, Printed, Scale, Suite, Table, Trial, read_grid
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

__all__ = [
    "METHODS",
    "PRINTED",
    "SUITES",
    "describe",
    "list_suites",
    "markdown",
    "needs",
    "recipe_settings",
    "show_suite",
    "show_trials",
    "table_lines",
]


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


# -- the list of suites and what they need; the results of one, as text ------------------------------------------------


_DIAGNOSTICS = {
    False: "It needs no costly diagnostics.",
    "steps": "It looks at the gradient of every step.",
    True: "It switches the costly diagnostics on: up to 10 passes over all data per run.",
}


_SMOKE = "under 15 s"  # on two CPU cores; the tests run all suites at this scale


def list_suites(say: Callable[[str], None]) -> None:
    """Print all suites."""
    rows = [
        (suite.id, suite.shows, _briefly(suite.scales["cpu"]), _briefly(suite.scales["paper"]))
        for suite in SUITES.values()
    ]
    header = ("id", "what it shows", "--scale cpu", "--scale paper")
    show("orderdp reproduce ID --scale S", header, rows, names=True)
    figures = [(name, text) for name, (text, _) in theory.FIGURES.items()]
    show("without runs, in seconds", ("id", "what it shows"), [*figures, ("table-toy", theory.TOY)], names=True)
    say(f"smoke: {_SMOKE} each, on digits. cpu: on two cores. paper: on one L40 GPU.")
    say("Times are estimates, from that of a run with all data. `orderdp reproduce ID --list` says more about one.")


def describe(suite: Suite, say: Callable[[str], None]) -> None:
    """Print the runs of one suite at each scale."""
    say(f"{suite.id}: {suite.shows}")
    say(f"  in the paper: {suite.printed.source}; {suite.printed.setting}.")
    say(f"  its claim: {suite.printed.claim}.")
    for name, scale in suite.scales.items():
        runs = sum(1 for part in scale.parts for _ in part.runs())
        say(f"  --scale {name}: {runs} runs, {needs(scale, smoke=name == 'smoke')}. {scale.differs}")
        for part in scale.parts:
            model = f"{part.base['model']}{_of_width(part.base.get('width'))}"
            ratios = sorted({planned.ratio for planned in part.runs() if planned.ratio is not None})
            shares = ", ".join(f"{100 * ratio:g}" for ratio in ratios)
            names = ", ".join(dict.fromkeys(method.name for method in part.methods))
            say(
                f"    {part.base['data']}, {model}, {part.base['epochs']} epochs, "
                f"{len(part.seeds)} seed{'' if len(part.seeds) == 1 else 's'}, {shares} % left out: {names}"
            )
    say(f"  {_DIAGNOSTICS[suite.diagnose]}")


def needs(scale: Scale, *, smoke: bool = False) -> str:
    """Return time, memory and data of a scale in a few words."""
    time = _SMOKE if smoke else f"{_rough(scale.seconds)} on {scale.machine}"
    return f"{time}, {scale.memory}, {' and '.join(scale.data)}"


def _briefly(scale: Scale) -> str:
    return f"{_rough(scale.seconds)}, {scale.memory}, {', '.join(scale.data)}"


def _rough(seconds: float) -> str:
    if seconds < 3600:
        return f"{max(1, round(seconds / 60)):d} min"
    hours = seconds / 3600
    return f"{hours:.1f} h" if hours < 10 else f"{hours:.0f} h"


def _of_width(width: int | None) -> str:
    return "" if width is None else f" of width {width}"


def show_suite(
    suite: Suite, scale: str, results: Sequence[PartResults], out: Path, ending: str, say: Callable[[str], None]
) -> None:
    """Print the tables, and write the tables and the figure.

    Args:
        suite: The suite.
        scale: Scale at which it was run.
        results: Results of its parts.
        out: Folder for the files.
        ending: Format of the figure: png, svg or html.
        say: Called with lines of output.
    """
    tables = suite.tables(suite, results)
    for table in tables:
        show(table.title, table.header, table.rows, numbers=True)
        for note in table.notes:
            say(f"  {note}")
    differs = _differs(suite, scale, results)
    say(f"  At this scale: {differs}")
    page = out / f"{suite.id}-{scale}.md"
    write_text(page, markdown(suite, scale, tables, differs))
    say(f"The table is in {page}.")
    try:
        path = out / f"{suite.id}-{scale}.{ending}"
        save(draw(suite, results), path)
        say(f"The figure is {path}.")
    except ConfigError as error:  # figures need optional packages; the table does not
        say(f"No figure was drawn: {error}")


def markdown(suite: Suite, scale: str, tables: Sequence[Table], differs: str) -> str:
    """Return the tables as Markdown, below a sentence on the differences from the paper's setup."""
    lines = [f"# {suite.id}, scale {scale}", "", f"{_sentence(suite.shows)} {differs}", ""]
    return "\n".join(lines + table_lines(tables))


def _differs(suite: Suite, scale: str, results: Sequence[PartResults]) -> str:
    """Return the differences from the paper's setup; data sets replaced by --data come first."""
    planned, used = suite.scales[scale], [str(part.part.base["data"]) for part in results]
    replaced = [name for name in planned.data if name not in used and name not in BROUGHT]
    own = dict.fromkeys(name for name in used if name not in planned.data)
    if not replaced:
        return planned.differs
    return f"On {' and '.join(own)}, in place of {' and '.join(replaced)}. As planned: {planned.differs}"


def table_lines(tables: Iterable[Table]) -> list[str]:
    """Return tables with their titles and notes, as lines of Markdown."""
    lines = []
    for table in tables:
        lines += [f"**{table.title}**", "", _line(table.header), _line(["---"] * len(table.header))]
        lines += [_line(row) for row in table.rows]
        lines += ["", *[f"- {note}" for note in table.notes], ""]
    return lines


def show_trials(suite: Suite, trials: Iterable[Trial], say: Callable[[str], None]) -> None:
    """Print the time of the first steps, each trial as soon as it ends."""
    n = failed = 0
    for part, planned, steps, seconds, reason in trials:
        n, failed = n + 1, failed + (reason is not None)
        base = part.base
        say(
            f"  {base['data']}, {base['model']}, {base.get('optimizer', 'sgd')}, {planned.method.name}: "
            f"{steps} step{'' if steps == 1 else 's'}, "
            + (f"{seconds:.3g} s per step" if reason is None else f"then it failed: {reason}")
        )
    went = f"went well, those of {failed} failed" if failed else "went well"
    say(f"{suite.id}: the first steps of {n - failed} kinds of runs {went}. Nothing was kept.")


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.strip() or " " for cell in cells) + " |"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "."
