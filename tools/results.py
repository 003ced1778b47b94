"""The pages of published results: runs the commands they show, and fills in their tables from the records.

    python -m tools.results run fashion-mnist     # what the page's commands say; goes on where it was
    python -m tools.results fill                  # the tables of all pages, from docs/results/records
    python -m tools.results picture               # the picture in the README, from the records of the demo

The records of a study are one file, docs/results/records/STUDY.jsonl. `run` unpacks it to build/records/STUDY, runs the
commands there and packs what is finished.

A table stands between two comments, the first of which says where its records are and, if it is not about all of them,
at which prune ratio:

    <!-- records: fashion-mnist ratio=0.5 -->
    <!-- end -->

One about further test sets, which are separated by commas, says "tests: fashion-mnist on digits?corrupt=blur:3", and
"of unlearned" behind that if it is not about OrderDP.

The tables of one of the paper's suites, at the scale for two cores, stand between

    <!-- suite: table-cosine in dynamics seeds=0,1,2 -->
    <!-- end -->

and the suite's figure is written to docs/results/figures. All studies at a glance, a data set each, stand between

    <!-- glance: fashion-mnist+fashion-fresh cifar10 -->
    <!-- end -->

where studies that are joined by a plus are read as one. "regimes: STUDY ..." in their place is the table of what the
recommended rule loses, "summary: STUDY ..." its short form in the README, "leads: STUDY ..." its mean lead over each of
the others, "ceilings: STUDY ..." the lead over fewer epochs that it could have at most, and "ranking: STUDY ..." the
leads of all methods over fewer epochs.
"""

from __future__ import annotations

import argparse
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from orderdp.experiments.records import Run, pack_runs, read_run, read_runs, seen_by, unpack_runs
from orderdp.experiments.statistics import Row, compare
from orderdp.report.charts import charts, save
from orderdp_paper import SUITES
from orderdp_paper.charts import draw
from orderdp_paper.suite import PartResults, prepare, read_part
from tools.result_tables import (
    ceilings,
    comparison,
    further_tests,
    glance,
    leads,
    ranking,
    regimes,
    suite_lines,
    summary,
)

__all__ = [
    "FIGURES",
    "PAGES",
    "PICTURES",
    "README",
    "RECORDS",
    "commands",
    "draw_figures",
    "draw_picture",
    "filled",
    "main",
    "records_of",
    "run",
]

ROOT = Path(__file__).parent.parent
PAGES = ROOT / "docs" / "results"
RECORDS = PAGES / "records"
FIGURES = PAGES / "figures"
README = ROOT / "README.md"
PICTURES = ROOT / "docs" / "pictures"
BUILD = ROOT / "build" / "records"
SCALE = "cpu"

# Ink and lines on GitHub's white and on its black.
_THEMES = {"light": ("#1f2328", "#d1d9e0"), "dark": ("#f0f6fc", "#3d444d")}

_TABLE = re.compile(r"(<!-- records: (\S+)(?: ratio=(\S+))? -->\n)(.*?)(<!-- end -->)", re.DOTALL)
_TESTS = re.compile(r"(<!-- tests: (\S+) on (\S+)(?: of (\S+))? -->\n)(.*?)(<!-- end -->)", re.DOTALL)
_SUITE = re.compile(r"(<!-- suite: (\S+) in (\S+)(?: seeds=(\S+))? -->\n)(.*?)(<!-- end -->)", re.DOTALL)
_OF_STUDIES = {table.__name__: table for table in (glance, summary, regimes, leads, ranking, ceilings)}
_STUDIES = re.compile(rf"(<!-- ({'|'.join(_OF_STUDIES)}): ([^\n]+?) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
_COMMAND = re.compile(r"^\$ (orderdp (?:[^\n]*\\\n)*[^\n]*)$", re.MULTILINE)


def records_of(study: str | Path) -> Path:
    """The file of a study's records, by its name or by the folder that a command writes to.

    >>> records_of("docs/results/records/dynamics/diagnosed").name
    'dynamics-diagnosed.jsonl'
    """
    parts = [part for part in Path(study).parts if part not in (*PAGES.relative_to(ROOT).parts, RECORDS.name)]
    return RECORDS / f"{'-'.join(parts)}.jsonl"


def run(command: list[str]) -> None:
    """Runs a command of a page, with the records that are there, and packs those that are finished."""
    place = command.index("--out") + 1
    folder = BUILD / Path(command[place]).name
    parts = [(folder / part, records_of(Path(command[place]) / part)) for part in ("", "diagnosed", "diagnosed-steps")]
    for directory, file in parts:
        if file.exists():
            unpack_runs(file, directory)
    done = subprocess.run(
        [sys.executable, "-m", "orderdp", *command[:place], str(folder), *command[place + 1 :]], cwd=ROOT
    )
    for directory, file in parts:
        for unfinished in [run for run in directory.glob("runs/*") if read_run(run).summary is None]:
            shutil.rmtree(unfinished)
        if any(directory.glob("runs/*")):
            pack_runs(directory, file)
    done.check_returncode()


def commands(page: str) -> list[list[str]]:
    """What a page says to type, without the name of the program."""
    return [shlex.split(found.replace("\\\n", " "))[1:] for found in _COMMAND.findall(page)]


def filled(page: str) -> str:
    """The page with the tables that its records give; without times, which are those of a machine with other work."""

    def table(match: re.Match[str]) -> str:
        head, study, ratio, _, end = match.groups()
        return f"{head}\n{comparison(_at(ratio, compare(_runs(study))))}\n\n{end}"

    def tests(match: re.Match[str]) -> str:
        head, study, names, policy, _, end = match.groups()
        runs = _runs(study)
        seen = [[seen_by(name, run) for run in runs if name in run.tests] for name in names.split(",")]
        return f"{head}\n{further_tests([compare(views) for views in seen], policy or 'orderdp')}\n\n{end}"

    def tables(match: re.Match[str]) -> str:
        head, name, study, seeds, _, end = match.groups()
        lines = suite_lines(SUITES[name].tables(SUITES[name], _measured(name, study, seeds)))
        return f"{head}\n{chr(10).join(lines)}\n{end}"

    def of_studies(match: re.Match[str]) -> str:
        head, name, studies, _, end = match.groups()
        return f"{head}\n{_OF_STUDIES[name]([_runs(study) for study in studies.split()])}\n\n{end}"

    fills = ((_TABLE, table), (_TESTS, tests), (_SUITE, tables), (_STUDIES, of_studies))
    for pattern, fill in fills:
        page = pattern.sub(fill, page)
    return page


def draw_figures(page: str) -> None:
    """Writes the figures of the suites on a page."""
    for _, name, study, seeds, _, _ in _SUITE.findall(page):
        FIGURES.mkdir(exist_ok=True)
        save(draw(SUITES[name], _measured(name, study, seeds)), FIGURES / f"{name}.svg")


def draw_picture() -> None:
    """Writes the README's picture, the differences to full data in the demo, for light and for dark pages."""
    PICTURES.mkdir(exist_ok=True)
    drawn = next(chart for chart in charts(compare(_runs("demo")), width=720) if chart.name == "differences").chart
    for theme, (ink, line) in _THEMES.items():
        axis = {"labelColor": ink, "titleColor": ink, "gridColor": line, "domainColor": line, "tickColor": line}
        sizes = {"labelFontSize": 13, "titleFontSize": 13, "titleFontWeight": "normal", "tickCount": 8}
        themed = drawn.configure_axis(**axis, **sizes).configure_view(stroke=None)
        clear = themed.configure(
            **{**themed.config.to_dict(), "background": "transparent", "font": "Arial, sans-serif"}
        )
        # Browsers may have wider letters than those that are measured here.
        save(clear.properties(padding={"left": 24, "top": 5, "right": 5, "bottom": 5}), PICTURES / f"demo-{theme}.svg")


def _runs(study: str) -> list[Run]:
    return [run for part in study.split("+") for run in read_runs(records_of(part))]


def _measured(name: str, study: str, seeds: str | None) -> list[PartResults]:
    chosen = [int(seed) for seed in seeds.split(",")] if seeds else None
    return [read_part(part, records_of(study)) for part in prepare(SUITES[name], SCALE, seeds=chosen)]


def _at(ratio: str | None, rows: list[Row]) -> list[Row]:
    """Those at a ratio, and those that have none; the variance is that of all, whatever is shown."""
    return rows if ratio is None else [row for row in rows if row.prune_ratio in (None, float(ratio))]


def main(arguments: list[str] | None = None) -> None:
    """Runs or fills in."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "fill", "picture"))
    parser.add_argument("page", nargs="*", help="names of pages (default: all)")
    options = parser.parse_args(arguments)
    if options.what == "picture":
        draw_picture()
        return
    paths = [PAGES / f"{name}.md" for name in options.page] or sorted(PAGES.glob("*.md"))
    if options.what == "fill" and not options.page:
        paths.append(README)
    for path in paths:
        text = path.read_text(encoding="utf-8")
        if options.what == "fill":
            path.write_text(filled(text), encoding="utf-8")
            draw_figures(text)
            continue
        for command in commands(text):
            run(command)


if __name__ == "__main__":
    main()
