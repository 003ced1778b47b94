"""The report: the same verdict as a page and as markdown, whatever the names in it are made of."""

from __future__ import annotations

import base64
import builtins
import hashlib
import importlib.util
import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from orderdp.errors import ConfigError, RecordError
from orderdp.experiments.records import Run, RunLog
from orderdp.experiments.statistics import compare
from orderdp.report import page as command
from orderdp.report import show
from orderdp.report.charts import charts, final_points, frontier, full_epoch, series, time_unit, usage_shares
from orderdp.report.page import export_charts, markdown_report, report_command, write_report
from orderdp.report.tables import flat_rows, gallery, headline, in_order, show_comparison
from tests.runs import EPOCH, full, random, reduced, run, start, write

EVIL = "</script><script>alert(1)</script><!-- <b>&\"'"


class Page(HTMLParser):
    """A page as a browser would take it apart."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.source = path.read_text(encoding="utf-8")
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.cells: list[str] = []
        self.text = ""
        self._inside: list[str] = []
        self.feed(self.source)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))
        self._inside.append(tag)
        if tag == "script":
            self.scripts.append("")
        if tag == "td":
            self.cells.append("")

    def handle_endtag(self, tag: str) -> None:
        while self._inside and self._inside.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if self._inside and self._inside[-1] == "script":
            self.scripts[-1] += data
        elif "style" not in self._inside:
            data = data.replace("\N{NO-BREAK SPACE}", " ")
            self.text += data
            if "td" in self._inside:
                self.cells[-1] += data

    @property
    def specs(self) -> dict[str, Any]:
        return dict(json.loads(self.scripts[0]))


def grid() -> list[Run]:
    """Full data, a method at two ratios and the controls, over three seeds."""
    runs = []
    for seed in range(3):
        runs += [full(90.0 + seed, seed, seconds=20.0), random(89.0 + seed, seed), reduced(88.0 + seed, seed)]
        runs += [run(90.2 + seed - 0.1 * (seed == 1), seed)]
        runs += [run(87.0 + seed, seed, saved=0.7, prune_ratio=0.7, label="OrderDP 70 %", seconds=6.0)]
    return runs


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("grid"), grid(), diagnostics={"kept_overlap": 0.5})


@pytest.fixture(scope="module")
def page(folder: Path) -> Page:
    return Page(write_report(folder))


def test_the_page_says_verdict_numbers_and_how_it_was_run(page: Page) -> None:
    sentence = (
        "OrderDP 40 %: 40 % fewer samples, 50 % less time: 91.17 % against 91.00 % on full data "
        "(+0.17; 95 % interval 0.07 to 0.26): within 0.5 points. The same saving by fewer epochs: -2.00."
    )
    assert sentence in page.text
    assert "Against dynamic random at the same cost: +1.17 (1.08 to 1.25), better." in page.text
    assert any(cell.startswith("91.17 ± 1.00") for cell in page.cells)
    assert "worse by more than 0.5" in page.cells
    assert any(cell.startswith("-3.00") and cell.endswith("-3.06 to -2.94") for cell in page.cells)
    assert "The margin is 0.5 points." in page.text
    for fact in ("one-cycle", "0.1.0", "Linux", "Every run"):
        assert fact in page.text


def test_no_line_of_the_page_can_begin_with_a_percent_sign(page: Page) -> None:
    body = page.source.split("<main>")[1].split("<h2>How it was run</h2>")[0]
    shown = re.sub(r"<[^>]*>", "", body)
    assert "\N{NO-BREAK SPACE}%" in shown
    assert " %" not in shown


def test_columns_in_which_no_row_has_a_number_are_left_out(tmp_path: Path, page: Page) -> None:
    folder = write(tmp_path, [each(90.0 + seed, seed) for seed in range(2) for each in (full, run)])
    titles = ["Method", "Accuracy %", "Samples saved", "Time saved", "Against full data", "Verdict"]
    few = Page(write_report(folder))
    assert len(few.cells) == 2 * len(titles)
    assert "Against fewer epochs" not in few.text
    assert f"| {' | '.join(titles)} |" in markdown_report(folder)
    assert "Against fewer epochs" in page.text


def test_the_page_is_one_file_for_any_screen_that_asks_nobody_for_anything(page: Page) -> None:
    names = {name for _, attributes in page.tags for name in attributes}
    assert "src" not in names  # records without pictures
    assert [attributes["href"] for _, attributes in page.tags if "href" in attributes] == ["data:,"]
    assert not names & {"onclick", "onload", "onerror"}
    metas = [attributes for tag, attributes in page.tags if tag == "meta"]
    assert {"name": "viewport", "content": "width=device-width, initial-scale=1"} in metas
    assert "@import" not in page.source
    assert "url(" not in page.source.split("<script")[0]
    assert len(page.source) < 1_200_000


def test_only_the_scripts_of_the_page_may_run(page: Page) -> None:
    policy = next(a["content"] or "" for _, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert "default-src 'none'" in policy
    assert "unsafe-eval" not in policy
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in page.scripts[2:]]
    assert policy.split("script-src ")[1].split() == [f"'sha256-{digest}'" for digest in digests]


def test_every_chart_has_its_place_and_takes_the_width_there_is(page: Page) -> None:
    places = [attributes["id"] for tag, attributes in page.tags if (attributes.get("class") or "") == "chart"]
    assert list(page.specs) == places
    kinds = [re.sub(r"^chart-\d+-\d+-", "", place or "") for place in places]
    expected = [
        "differences",
        "accuracy",
        "time-to-accuracy",
        "learning-curves",
        "cost",
        "usage",
        "diagnostic-1-kept-overlap",
    ]
    assert kinds == expected
    assert {spec["width"] for spec in page.specs.values()} == {"container"}


def test_a_policy_has_one_color_in_the_table_and_in_all_charts(page: Page) -> None:
    looks = {look.method: look.color for look in series(compare(grid())).values()}
    assert len(set(looks.values())) == len(looks) == 4
    swatches = {attributes["fill"] for tag, attributes in page.tags if tag == "path"}
    assert swatches == set(looks.values())
    scales = re.findall(r'"scale":\{"domain":(\["Full data".*?\]),"range":(\[.*?\])\}', page.scripts[0])
    assert len(scales) > 3
    for names, colors in scales:
        assert all(looks[name] == shown for name, shown in zip(json.loads(names), json.loads(colors), strict=True))


def test_methods_that_share_a_color_have_other_shapes() -> None:
    runs = [full(90.0), *(run(89.0, policy=f"p{place}", label=f"method {place} 40%") for place in range(30))]
    looks = list(series(compare(runs)).values())
    assert len({(look.color, look.shape) for look in looks}) == len(looks) == 31
    assert {look.shape for look in looks[:9]} == {"circle"}
    accuracy = next(chart.chart.to_dict() for chart in charts(compare(runs)) if chart.name == "accuracy")
    assert '"shape"' in json.dumps(accuracy)
    few = next(chart.chart.to_dict() for chart in charts(compare(grid())) if chart.name == "accuracy")
    assert '"shape"' not in json.dumps(few)


@pytest.mark.parametrize("epochs", [2, 3, 40])
def test_only_whole_epochs_have_a_mark_on_the_axis(tmp_path: Path, epochs: int) -> None:
    folder = write(tmp_path, [full(90.0), run(91.0)], epochs=epochs)
    drawn = export_charts(folder, tmp_path / "charts", format="svg")
    picture = next(path for path in drawn if path.stem == "learning-curves").read_text()
    before = picture.split(">epoch</text>")[0]
    marks = re.findall(r">([\d.]+)</text>", before)
    assert len(marks) >= min(3, epochs)
    assert all(mark.isdigit() for mark in marks)


def test_names_cannot_break_out_of_the_page(tmp_path: Path) -> None:
    runs = [full(90.0, seed, label=EVIL) for seed in (0, 1)]
    runs += [run(89.0, seed, label=f"x{EVIL}", data=EVIL, optimizer=EVIL) for seed in (0, 1)]
    for number, each in enumerate(runs):
        each.id = f"{number}<i>"
    failed = run(1.0, 2, label=EVIL)
    failed.id, failed.summary = "bad", {**(failed.summary or {}), "status": "failed", "reason": EVIL}
    page = Page(write_report(write(tmp_path, [*runs, failed], diagnostics={EVIL: 1.0})))
    assert len(page.scripts) == 4
    assert not {"b", "i"} & {tag for tag, _ in page.tags}
    assert "alert(1)" not in "".join(page.scripts[2:])  # the first two are data
    assert page.specs  # still JSON
    assert EVIL in "".join(page.cells)
    assert EVIL in json.dumps(page.specs, ensure_ascii=False).replace('\\"', '"')


def test_empty_sections_are_left_out_with_a_sentence(tmp_path: Path) -> None:
    runs = [full(90.0), run(91.0)]
    for each in runs:
        each.summary = {**(each.summary or {}), "usage": []}
    page = Page(write_report(write(tmp_path, runs, epochs=0)))
    kinds = [name.split("-", 3)[-1] for name in page.specs]
    assert kinds == ["differences", "accuracy", "cost"]
    assert page.text.count("Nothing was recorded for this chart.") == 3


def test_failed_and_unfinished_runs_are_said_plainly(tmp_path: Path) -> None:
    bad, late = run(1.0, 1), replace(run(1.0, 2), summary=None)
    bad.summary = {**(bad.summary or {}), "status": "failed", "reason": "the loss became NaN in epoch 3"}
    write(tmp_path, [full(90.0), run(91.0), bad, late])
    page = Page(write_report(tmp_path))
    assert "OrderDP 40 %, seed 1: the loss became NaN in epoch 3" in page.text
    assert "OrderDP 40 %, seed 2: 3 of 10 epochs" in page.text
    assert "(+1.00; one seed, no interval); 1 of its runs failed and is not counted" in page.text
    text = markdown_report(tmp_path)
    assert "- Failed: OrderDP 40 %, seed 1: the loss became NaN in epoch 3" in text
    assert "- Unfinished: OrderDP 40 %, seed 2: 3 of 10 epochs" in text


def test_an_unfinished_run_of_fewer_epochs_is_held_against_its_own_number_of_them(tmp_path: Path) -> None:
    late = replace(run(1.0, 1, policy="reduced", label="Fewer epochs", prune_ratio=0.6), summary=None)
    write(tmp_path, [full(90.0), late])  # 4 of full data's 10 epochs cost as much
    assert "- Unfinished: Fewer epochs, seed 1: 3 of 4 epochs" in markdown_report(tmp_path)


def test_runs_without_an_end_make_a_page_too(tmp_path: Path) -> None:
    write(tmp_path, [replace(run(1.0), summary=None)])
    (tmp_path / "runs" / "just-started").mkdir()
    (tmp_path / "runs" / "just-started" / "records.jsonl").write_text('{"schema": 1, "ki')
    page = Page(write_report(tmp_path))
    assert "No run has come to its end: 2 unfinished, 0 failed." in page.text
    assert [name.split("-", 3)[-1] for name in page.specs] == ["time-to-accuracy", "learning-curves"]
    assert "just-started" in page.text


def test_other_tasks_get_sections_and_names_of_their_own(tmp_path: Path) -> None:
    runs = [full(90.0), run(91.0), full(80.0, lr=0.5), run(70.0, lr=0.5)]
    for number, each in enumerate(runs):
        each.id = str(number)
    page = Page(write_report(write(tmp_path, runs)))
    assert "digits, mlp, lr 0.1" in page.text
    assert "digits, mlp, lr 0.5" in page.text
    assert "(+1.00; one seed, no interval)" in page.text
    assert "(-10.00; one seed, no interval)" in page.text
    assert len(page.specs) == 12
    assert markdown_report(tmp_path).count("### digits, mlp, lr") == 2
    assert len(export_charts(tmp_path, tmp_path / "charts", "svg")) == 12


def test_markdown_has_the_numbers_of_the_page(folder: Path, page: Page) -> None:
    text = markdown_report(folder)
    assert "**OrderDP 40 %: 40 % fewer samples" in text
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")]
    assert [len(row) for row in rows] == [8] * 7
    squeezed = re.sub(r"[\s()]", "", page.text)
    for row in rows[2:]:
        for cell in row:
            assert re.sub(r"[\s()\\]", "", cell) in squeezed


def test_markdown_shows_names_as_they_are(tmp_path: Path) -> None:
    write(tmp_path, [full(90.0, label="a|b <b> *x*\nnew_line"), run(91.0)])
    assert r"a\|b \<b\> \*x\* new\_line" in markdown_report(tmp_path)


@pytest.mark.parametrize(("form", "magic"), [("png", b"\x89PNG"), ("svg", b"<svg")])
def test_charts_are_written_as_files(folder: Path, tmp_path: Path, form: str, magic: bytes) -> None:
    paths = export_charts(folder, tmp_path / "new", form)
    assert sorted(tmp_path.glob("new/*")) == sorted(paths)
    assert len(paths) == 7
    assert all(path.read_bytes().startswith(magic) for path in paths)


def test_a_format_nobody_knows_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no format of charts 'pgn'\. Did you mean 'png'"):
        export_charts(folder, tmp_path / "new", "pgn")
    assert not (tmp_path / "new").exists()


def test_the_command_says_the_verdict_and_where_the_page_is(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    opened: list[str] = []
    monkeypatch.setattr(command.webbrowser, "open", lambda address: not opened.append(address))
    report_command(folder, say=said.append)
    assert said[0].startswith("OrderDP 40 %: 40 % fewer samples")
    assert said[1] == str(folder / "report.html")
    assert opened == []
    report_command(folder, say=said.append, open_page=True, charts=tmp_path / "c", chart_format="svg")
    assert opened == [(folder / "report.html").as_uri()]
    assert str(tmp_path / "c" / "accuracy.svg") in said
    assert not any("No browser" in line for line in said)
    monkeypatch.setattr(command.webbrowser, "open", lambda address: False)
    report_command(folder, say=said.append, open_page=True)
    assert "No browser was found" in said[-1]
    assert not list(folder.glob(".report*"))


def test_the_command_says_markdown_and_writes_nothing(tmp_path: Path) -> None:
    write(tmp_path, grid())
    said: list[str] = []
    report_command(tmp_path, say=said.append, markdown=True)
    assert said == [markdown_report(tmp_path)]
    assert not (tmp_path / "report.html").exists()


def test_a_report_goes_where_it_is_told(folder: Path, tmp_path: Path) -> None:
    path = write_report(folder, tmp_path / "deep" / "page.html")
    assert path == tmp_path / "deep" / "page.html"
    assert path.read_text().startswith("<!DOCTYPE html>")


@pytest.mark.parametrize("make", [write_report, markdown_report, lambda path: export_charts(path, path / "charts")])
def test_errors_say_what_to_do(tmp_path: Path, make: Callable[[Path], Any]) -> None:
    with pytest.raises(RecordError, match="there is no folder"):
        make(tmp_path / "nowhere")
    with pytest.raises(RecordError, match="`orderdp train` and `orderdp compare` write them"):
        make(tmp_path)
    log = RunLog(tmp_path / "runs" / "a")
    start(log)
    log.path.write_text(log.path.read_text() + "{damaged\n")
    log.epoch(epoch=1, **EPOCH)
    with pytest.raises(RecordError, match=r"a.records\.jsonl, line 2: the record is damaged"):
        make(tmp_path)


def test_the_page_names_what_to_install_and_markdown_needs_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def without_altair(name: str, *rest: Any) -> Any:
        if name in ("altair", "jinja2", "vl_convert"):
            raise ImportError(name=name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without_altair)
    with pytest.raises(ConfigError, match=re.escape("pip install '.[plot]'")):
        write_report(folder)
    assert markdown_report(folder)


def test_the_headline_prefers_what_is_sure_to_what_saves() -> None:
    """A method measured badly at a high ratio must not win over one measured well at a lower one."""
    runs = [full(90.0, seed) for seed in range(3)]
    runs += [run(90.0 + 0.1 * (-1) ** seed, seed) for seed in range(3)]
    runs += [run(90.0 + 5 * (-1) ** seed, seed, saved=0.9, prune_ratio=0.9, label="OrderDP 90 %") for seed in range(3)]
    assert headline(compare(runs))[0].startswith("OrderDP 40 %")


def test_the_headline_prefers_a_small_loss_that_is_known_to_one_that_may_be_large() -> None:
    runs = [full(90.0, seed) for seed in range(3)]
    runs += [run(89.85 + 0.005 * seed, seed) for seed in range(3)]
    runs += [run(90.0 + 0.5 * (-1) ** seed, seed, policy="infobatch", label="InfoBatch 40 %") for seed in range(3)]
    assert headline(compare(runs))[0].startswith("OrderDP 40 %")


def test_of_methods_within_the_margin_that_save_as_much_the_headline_names_the_one_that_loses_least_at_worst() -> None:
    runs = [full(90.0 + 0.01 * seed, seed) for seed in range(3)]
    runs += [run(89.7 + 0.01 * seed, seed, saved=0.4) for seed in range(3)]
    other = {"policy": "unlearned", "label": "Unlearned 40 %", "saved": 0.399}
    runs += [run(89.9 + 0.01 * seed, seed, **other) for seed in range(3)]
    rows = compare(runs)
    assert sum(row.holds for row in rows if row.policy != "full") == 2
    assert headline(rows)[0].startswith("Unlearned 40 %")


def test_the_headline_prefers_what_saved_as_much_as_was_asked_for() -> None:
    runs = [full(value, seed) for seed, value in enumerate((90.0, 90.2, 90.1))]
    runs += [run(value, seed) for seed, value in enumerate((89.2, 89.4, 89.3))]
    less = {"saved": 0.2, "label": "InfoBatch 40 %", "policy": "infobatch"}
    runs += [run(value, seed, **less) for seed, value in enumerate((89.3, 89.5, 89.4))]
    rows = compare(runs)
    assert not any(row.holds for row in rows if row.policy != "full")
    assert headline(rows)[0].startswith("OrderDP 40 %")


def test_the_headline_of_nothing_but_losses_is_a_loss() -> None:
    runs = [full(90.0, seed) for seed in range(3)] + [run(85.0 + 0.1 * seed, seed) for seed in range(3)]
    assert "(-4.90; 95 % interval -5.08 to -4.72): worse by more than 0.5." in headline(compare(runs))[0]


def test_a_method_that_is_slower_is_said_to_be() -> None:
    runs = [full(90.0, seed, seconds=10.0) for seed in (0, 1)] + [run(90.0, seed, seconds=15.0) for seed in (0, 1)]
    assert "50 % more time" in headline(compare(runs))[0]


def test_without_full_data_or_methods_the_headline_says_what_is_missing() -> None:
    assert headline(compare([run(90.0)])) == [
        "Nothing can be said yet: there is no finished run of full data of the same seeds."
    ]
    assert "a method to set against full data" in headline(compare([full(90.0)]))[0]
    unfinished = replace(run(90.0), summary=None)
    assert "a method to set against full data" in headline(compare([full(90.0), unfinished]))[0]


def test_a_task_of_ones_own_is_called_by_its_name(tmp_path: Path) -> None:
    runs = [full(90.0, task="own.py:make"), run(91.0, task="own.py:make")]
    text = markdown_report(write(tmp_path, runs))
    assert "### own.py:make" in text
    assert "digits" not in text


def test_the_terminal_says_which_means_are_of_fewer_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    runs = [full(90.0 + seed, seed) for seed in range(3)] + [run(90.1 + seed, seed) for seed in range(3)]
    runs[5] = replace(runs[5], summary={**(runs[5].summary or {}), "status": "failed", "metric": None})
    show_comparison("digits, mlp", compare(runs), print)
    said = capsys.readouterr().out
    assert re.search(r"OrderDP 40 %: \+0.10 \(.* to .*\), within 0.5 points of full data \(2 seeds, 1 failed\)", said)
    assert "Full data:" not in said  # nothing to say of it
    runs[0] = replace(runs[0], summary=None)
    show_comparison("digits, mlp", compare(runs), print)
    assert "the reference (2 seeds, 1 unfinished)" in capsys.readouterr().out


def test_a_method_without_a_ratio_is_set_against_random_at_its_cost() -> None:
    methods = [run(91.0, prune_ratio=None, policy="adaptive", label="adaptive", saved=0.38)]
    said = headline(compare([full(90.0), random(90.5), *methods]))
    assert said[-1] == "Against dynamic random at the same cost: +0.50 (one seed, no interval)."


def test_a_metric_is_called_what_its_task_calls_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [full(60.0, task="own.py:make"), run(61.0, task="own.py:make")]
    for each in runs:
        each.summary = {**(each.summary or {}), "metric_name": "mIoU"}
    show_comparison("own.py:make", compare(runs), print)
    shown = capsys.readouterr().out
    written = Page(write_report(write(tmp_path, runs)))
    axes = json.dumps(written.specs)
    for text in (shown, markdown_report(tmp_path), written.text):
        assert "mIoU %" in text
        assert "ccuracy" not in text
    assert "mIoU (%)" in axes
    assert "ccuracy (%)" not in axes


@pytest.mark.parametrize("terminal", [True, False])
def test_square_brackets_in_a_table_are_no_markup(terminal: bool, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    show("a [title]", ("[name]", "what"), [("pip install '.[demo]'", "[bold]as it is[/bold]")])
    output = capsys.readouterr().out
    assert "a [title]" in output
    assert "[name]" in output
    assert ".[demo]" in output
    assert "[bold]as it is[/bold]" in output


def test_a_table_is_aligned_in_a_terminal_and_separated_by_tabs_in_a_pipe(capsys, monkeypatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)  # as if rich were missing
    for terminal in (True, False):
        monkeypatch.setattr(sys.stdout, "isatty", lambda terminal=terminal: terminal)
        show("a title", ("", "size", "why"), [("one", "1", ""), ("twenty", "2 ", "because  of\tit")])
    assert capsys.readouterr().out.splitlines() == [
        *("a title", "          size  why", "  one     1", "  twenty  2     because  of\tit"),
        *("a title", "\tsize\twhy", "one\t1\t", "twenty\t2\tbecause of it"),
    ]


def test_usage_shares_add_up_and_long_histograms_are_gathered() -> None:
    method = run(90.0)
    method.summary = {**(method.summary or {}), "usage": [1] * 201}
    rows = compare([full(90.0), method])
    points = usage_shares(rows, series(rows))
    assert sum(point["y"] for point in points) == pytest.approx(100)
    assert len(points) == 51
    assert points[1]["times"] == "4 to 7"


def test_long_times_are_shown_in_hours() -> None:
    assert time_unit([86400.0]) == (3600.0, "h")
    assert time_unit([]) == (1.0, "s")


def test_the_time_to_accuracy_is_cumulative_and_counts_the_proxy() -> None:
    method = run(90.0)
    method.epochs = [{**EPOCH, "epoch": number} for number in (1, 2, 3)]
    method.summary = {**(method.summary or {}), "proxy_seconds": 100.0}
    chart = next(chart for chart in charts(compare([method])) if chart.name == "time-to-accuracy")
    values = chart.chart.to_dict()["data"]["values"]
    cost = EPOCH["training_seconds"] + EPOCH["selection_seconds"] + EPOCH["overhead_seconds"]
    assert [value["seconds"] for value in values] == pytest.approx([100 + cost, 100 + 2 * cost, 100 + 3 * cost])


def forest(runs: list[Run]) -> dict[str, Any]:
    return next(chart for chart in charts(compare(runs)) if chart.name == "differences").chart.to_dict()


def test_the_first_chart_has_the_estimates_and_intervals_of_the_table() -> None:
    rows = compare(grid())
    drawn = charts(rows)[0]
    assert drawn.name == "differences"
    values = drawn.chart.to_dict()["layer"][-1]["data"]["values"]
    expected = [(row.label, row.against_full) for row in in_order(rows) if row.against_full is not None]
    assert [(each["label"], each["y"], each["low"], each["high"]) for each in values] == [
        (label, found.mean, pytest.approx(found.low), pytest.approx(found.high)) for label, found in expected
    ]
    accuracy = next(chart for chart in charts(rows) if chart.name == "accuracy").chart.to_dict()
    points = [each for layer in accuracy["layer"] for each in layer["data"]["values"] if "label" in each]
    assert {each["label"]: each["x"] for each in points} == {
        row.label: pytest.approx(100 * (1 - row.saved)) for row in rows
    }
    reached = {each["label"]: each["high"] - each["y"] for each in points}
    assert reached == {"Full data": 0.0, **{label: pytest.approx(found.high - found.mean) for label, found in expected}}


def test_rows_stand_by_ratio_and_within_a_ratio_by_their_estimate(page: Page) -> None:
    runs = [*grid(), *(run(90.5 + seed, seed, label="better", policy="ucb") for seed in range(3))]
    assert [row.label for row in in_order(compare(runs))] == [
        "Full data",
        "better",
        "OrderDP 40 %",
        "Dynamic random 40 %",
        "Fewer epochs",
        "OrderDP 70 %",
    ]
    losses = [replace(each, summary={**each.summary, "higher_is_better": False}) for each in runs]
    assert [row.label for row in in_order(compare(losses))][1:3] == ["Fewer epochs", "Dynamic random 40 %"]
    firsts = [cell for cell in page.cells if "3 seeds" in cell]
    assert [cell.removesuffix("3 seeds") for cell in firsts] == [row.label for row in in_order(compare(grid()))]


def test_the_frontier_is_what_nothing_cheaper_beats() -> None:
    """The slow version: a point is on it if no other point costs as little and is as good."""
    rows = compare(grid())
    points = final_points(rows, series(rows))
    for higher in (True, False):
        sign = 1 if higher else -1
        expected = [
            point["label"]
            for point in points
            if not any(
                other["x"] <= point["x"] and sign * other["y"] >= sign * point["y"]
                for other in points
                if other is not point
            )
        ]
        assert sorted(point["label"] for point in frontier(points, higher)) == sorted(expected)
    drawn = next(chart for chart in charts(rows) if chart.name == "accuracy").chart.to_dict()
    steps = [(each["x"], each["y"]) for each in drawn["layer"][1]["data"]["values"]]
    assert steps == [pytest.approx(each) for each in ((30, 88.0), (60, 273.5 / 3), (100, 273.5 / 3))]


def test_the_page_holds_the_numbers_of_the_table_without_rounding(page: Page, folder: Path) -> None:
    (table,) = json.loads(page.scripts[1])
    assert table["name"] == "digits-mlp"
    rows = compare(grid())
    assert table["rows"] == json.loads(json.dumps(flat_rows(rows)))
    found = next(each for each in table["rows"] if each["method"] == "OrderDP 40 %")
    method = next(row for row in rows if row.label == "OrderDP 40 %")
    assert found["metric"] == method.metric
    assert (found["to_full"], found["to_full_low"]) == (method.against_full.mean, method.against_full.low)
    assert (found["seeds"], found["samples_saved"], found["verdict"]) == (3, pytest.approx(0.4), method.word)


def pictured(each: Run) -> Run:
    shown = {"index": 7, "used": 0, "score": 2.5, "label": "sock", "picture": "iVBORw0KGgo="}
    notable = {"least": [shown], "most": [{**shown, "index": 8, "used": 3}], "hardest": [{**shown, "index": 9}]}
    each.epochs = [{**EPOCH, "epoch": number} for number in (1, 2, 3)]
    each.summary = {**(each.summary or {}), "notable": notable}
    return each


def test_samples_are_shown_with_index_and_label_where_they_were_recorded(tmp_path: Path) -> None:
    runs = [full(90.0, seed) for seed in range(2)] + [pictured(run(90.1, seed)) for seed in range(2)]
    found = gallery(compare(runs))
    assert found is not None
    assert found["title"] == "Samples of OrderDP 40 %, seed 0"
    assert [kind["title"] for kind in found["kinds"]] == [
        "Never kept: 0 samples",
        "Always kept: 400 samples",
        "Hardest: the largest losses",
    ]
    page = Page(write_report(write(tmp_path, runs)))
    sources = [attributes["src"] for tag, attributes in page.tags if tag == "img"]
    assert sources == ["data:image/png;base64,iVBORw0KGgo="] * 3
    for words in ("#7", "#8", "#9", "label sock", "loss 2.50", "used 3×"):  # noqa: RUF001
        assert words in page.text
    assert gallery(compare([full(90.0), run(90.1)])) is None  # records of earlier versions


def test_the_margin_is_shaded_and_what_diverged_is_left_out_of_the_first_chart() -> None:
    lost = [run(10.0, seed, label="lost", policy="ucb") for seed in range(3)]
    spec = forest([*grid(), *lost])
    assert spec["layer"][0]["data"]["values"] == [{"low": -0.5, "high": 0.5}]
    assert "lost" not in json.dumps(spec)
    assert "Diverged, and left out of the pooled variance: lost" in " ".join(headline(compare([*grid(), *lost])))


def with_epochs(each: Run, *numbers: int) -> Run:
    each.epochs = [{**EPOCH, "epoch": number, "metric": (each.summary or {})["metric"]} for number in numbers]
    return each


def test_what_diverged_does_not_set_the_scale_of_any_chart_of_the_metric() -> None:
    runs = [*grid(), *(run(10.0, seed, label="lost", policy="ucb") for seed in range(3))]
    drawn = {chart.name: chart for chart in charts(compare([with_epochs(each, 5, 10) for each in runs]))}
    for name in ("accuracy", "time-to-accuracy", "learning-curves"):
        assert "Methods that diverged are left out." in drawn[name].text
        assert "lost" not in json.dumps(drawn[name].chart.to_dict())
    assert "lost" in json.dumps(drawn["cost"].chart.to_dict())
    usual = charts(compare([with_epochs(each, 5, 10) for each in grid()]))
    assert not any("diverged" in chart.text for chart in usual if chart.name != "differences")


def test_runs_that_were_tested_once_have_no_learning_curve() -> None:
    drawn = {chart.name: chart for chart in charts(compare([with_epochs(each, 10) for each in grid()]))}
    assert drawn["learning-curves"].chart is None
    assert "--evaluate-every" in drawn["learning-curves"].text
    assert drawn["time-to-accuracy"].chart is not None


@pytest.mark.parametrize(("seconds", "said"), [(6.0, False), (5.1, False), (4.0, True), (15.0, False)])
def test_a_time_that_samples_do_not_explain_is_doubted(seconds: float, said: bool) -> None:
    runs = [full(90.0, seed, seconds=10.0) for seed in (0, 1)] + [run(90.0, seed, seconds=seconds) for seed in (0, 1)]
    assert ("likely not timed alike" in headline(compare(runs))[0]) is said


def learned_chart(runs: list[Run]) -> dict[str, Any] | None:
    found = [chart for chart in charts(compare(runs)) if chart.name == "learned"]
    return found[0].chart.to_dict() if found else None


def with_shares(each: Run, samples: list[int], shares: list[float | None]) -> Run:
    numbers = enumerate(zip(samples, shares, strict=True), start=1)
    each.epochs = [
        {**EPOCH, "epoch": epoch, "samples": count, **({} if share is None else {"learned": share})}
        for epoch, (count, share) in numbers
    ]
    return each


def test_the_share_of_learned_samples_is_drawn_against_what_full_data_would_have_cost() -> None:
    """Full data cost 10,000 samples in 10 epochs; two seeds of a method, with epochs of their own sizes."""
    runs = [with_shares(full(90.0), [1000, 1000], [0.1, 0.3])]
    runs += [with_shares(run(90.0, 0), [1000, 500, 400], [0.2, 0.6, 0.8])]
    runs += [with_shares(run(91.0, 1), [1000, 700, 600], [0.4, 0.4, 0.6])]
    spec = learned_chart(runs)
    values = spec["data"]["values"]
    shown = [(value["label"], value["cost"], value["y"], value["seeds"]) for value in values]
    assert shown == [
        ("Full data", 1.0, 10.0, 1),
        ("Full data", 2.0, 30.0, 1),
        ("OrderDP 40 %", 1.0, 30.0, 2),
        ("OrderDP 40 %", 1.6, 50.0, 2),
        ("OrderDP 40 %", 2.1, 70.0, 2),
    ]
    text = json.dumps(spec)
    assert "epochs of full data" in text
    assert "samples learned (%)" in text


def test_runs_and_epochs_that_did_not_record_it_are_left_out_of_the_share_of_learned_samples() -> None:
    runs = [with_shares(full(90.0), [1000, 1000], [None, None])]
    assert learned_chart(runs) is None
    runs += [with_shares(run(90.0, 0), [600, 600], [None, 0.5])]
    runs += [with_shares(run(90.0, 1), [600, 600], [None, None])]
    values = learned_chart(runs)["data"]["values"]
    assert [(value["label"], value["cost"], value["y"], value["seeds"]) for value in values] == [
        ("OrderDP 40 %", 1.2, 50.0, 1)
    ]


def test_what_an_epoch_of_full_data_costs_is_told_by_any_finished_run() -> None:
    late = replace(with_shares(run(90.0, 1), [600], [0.5]), summary=None)
    assert full_epoch(compare([late])) is None
    assert learned_chart([late]) is None
    assert full_epoch(compare([full(90.0), late])) == 1000
    assert [value["cost"] for value in learned_chart([full(90.0), late])["data"]["values"]] == [0.6]


def test_the_page_shows_the_share_of_learned_samples_where_it_was_recorded(tmp_path: Path, page: Page) -> None:
    written = Page(write_report(write(tmp_path, grid(), learned=0.25)))
    kinds = [re.sub(r"^chart-\d+-\d+-", "", name) for name in written.specs]
    assert kinds == ["differences", "accuracy", "time-to-accuracy", "learning-curves", "learned", "cost", "usage"]
    assert "Share of samples learned" in written.text
    assert "Share of samples learned" not in page.text  # records of earlier versions
