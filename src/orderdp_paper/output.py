"""The list of suites and their requirements; results of a suite as text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from orderdp._files import write_text
from orderdp.errors import ConfigError
from orderdp.report.charts import save
from orderdp.report.tables import show
from orderdp_paper import theory
from orderdp_paper.charts import draw
from orderdp_paper.suite import BROUGHT, PartResults, Scale, Suite, Table, Trial
from orderdp_paper.suites import SUITES

__all__ = ["describe", "list_suites", "markdown", "needs", "show_suite", "show_trials", "table_lines"]


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
