"""The published tables are those of the committed records, and the records are those of the commands shown."""

from __future__ import annotations

import argparse
import math
import re
from pathlib import Path

import pytest
from tools import result_tables, results

from orderdp import Unlearned
from orderdp.cli._common import run_options, seeds_of, settings_of
from orderdp.cli.reproduce import REPRODUCE
from orderdp.cli.runs import COMPARE
from orderdp.experiments.config import grid, parse_method, split_outside_brackets
from orderdp.experiments.records import Run, read_runs
from orderdp.experiments.statistics import compare as compare_runs
from orderdp_paper import SUITES, Part
from orderdp_paper.suite import PartResults, measure, prepare
from tests import runs as written
from tests.paper.test_suites_tables import made_up

PAGES = sorted(results.PAGES.glob("*.md"))


@pytest.mark.parametrize("page", [*PAGES, results.README], ids=lambda path: path.stem)
def test_the_tables_of_a_page_are_what_its_records_give(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert results.filled(text) == text, "run `make results`"


def test_every_run_that_the_pages_ask_for_is_in_their_records_and_nothing_else() -> None:
    asked: dict[str, dict[str, set[str]]] = {}
    for page in PAGES:
        for command in results.commands(page.read_text(encoding="utf-8")):
            read = {"compare": runs_of, "reproduce": runs_of_suite}.get(command[0])
            if read is not None:
                folder, ids, tests = read(command[1:])
                for name in ids:
                    asked.setdefault(folder, {}).setdefault(name, set()).update(tests)
    assert asked
    for folder, tests_of in asked.items():
        there = {run.id: run for run in read_runs(results.records_of(folder))}
        assert set(there) == set(tests_of)
        for run in there.values():
            assert run.summary is not None, run.id  # one that gave up is a result too, and its table says so
            assert set(run.tests) == tests_of[run.id], run.id
    assert set(results.RECORDS.iterdir()) == {results.records_of(folder) for folder in asked}


def test_records_name_no_folder_of_the_machine_on_which_they_were_made() -> None:
    for file in results.RECORDS.iterdir():
        assert re.search(r"""["\s='](/|~|[A-Z]:\\)\w""", file.read_text(encoding="utf-8")) is None, file.name


def runs_of(arguments: list[str]) -> tuple[str, set[str], list[str]]:
    """Where a comparison writes to, the runs it consists of, and the further test sets they are tested on."""
    parser = argparse.ArgumentParser()
    COMPARE.add(parser)
    options = parser.parse_args(arguments)
    methods = [parse_method(text) for text in split_outside_brackets(options.policies, ",")]
    ratios = [float(ratio) for ratio in options.prune_ratios.split(",")]
    seeds = seeds_of(options.seeds)
    base = settings_of(options, policy="full", prune_ratio=None)
    settings = grid(base, methods, ratios, seeds, controls=not options.no_controls)
    return str(options.out), {run.run_id for run in settings}, list(run_options(options).tests)


def runs_of_suite(arguments: list[str]) -> tuple[str, set[str], list[str]]:
    """The same for one of the paper's suites."""
    parser = argparse.ArgumentParser()
    REPRODUCE.add(parser)
    options = parser.parse_args(arguments)
    assert options.scale == results.SCALE
    suite = SUITES[options.id]
    seeds = None if options.seeds is None else seeds_of(options.seeds)
    parts = prepare(suite, options.scale, data=options.data, seeds=seeds)
    return str(suite.runs_in(options.out)), {planned.settings.run_id for part in parts for planned in part.runs()}, []


def test_commands_are_read_from_a_page() -> None:
    page = "```console\n$ orderdp compare --data 'a?b=1' \\\n      --out x\n$ pip install y\n$ orderdp plan\n```\n"
    assert results.commands(page) == [["compare", "--data", "a?b=1", "--out", "x"], ["plan"]]


def test_a_table_may_be_about_one_ratio_and_has_full_data_to_compare_with(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [written.full(90.0 + seed, seed) for seed in (0, 1)]
    for ratio in (0.3, 0.5):
        options = {"saved": ratio, "prune_ratio": ratio, "label": f"OrderDP {ratio:.0%}"}
        runs += [written.run(89.0 + seed, seed, **options) for seed in (0, 1)]
    monkeypatch.setattr(results, "read_runs", lambda folder: runs)
    page = "# Mine\n\n<!-- records: mine ratio=0.5 -->\nold\n<!-- end -->\n\nText.\n"
    text = results.filled(page)
    assert "old" not in text
    assert text.endswith("<!-- end -->\n\nText.\n")
    assert re.findall(r"^\| (OrderDP \d+%|Full data)", text, re.MULTILINE) == ["Full data", "OrderDP 50%"]
    assert results.filled(text) == text


def test_a_table_says_once_what_is_the_same_in_all_rows_and_hides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [written.full(90.0 + seed, seed) for seed in (0, 1)]
    runs += [written.run(89.0 + seed, seed, saved=0.4, prune_ratio=0.4, label="OrderDP 40 %") for seed in (0, 1)]
    monkeypatch.setattr(results, "read_runs", lambda folder: runs)
    page = "<!-- records: mine -->\n<!-- end -->\n"
    assert results.filled(page).splitlines()[2:7] == [
        "Each 2 seeds:",
        "",
        "| Method | Accuracy % | To full data | Verdict |",
        "|---|---:|---:|---|",
        "| Full data | 90.50±0.71 |  |  |",
    ]
    runs.append(written.run(88.0, 0, saved=0.2, prune_ratio=0.4, policy="infobatch", label="saves_less"))
    line = next(line for line in results.filled(page).splitlines() if "saves" in line)
    assert [cell.strip() for cell in line.strip("|").split("|")] == [
        "saves\\_less (1 seed, saved 20.0 %)",
        "88.00",
        "-2.00",
        "one seed",
    ]


def test_what_all_rows_share_stands_above_the_table_or_in_its_head(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [written.full(90.0 + seed, seed) for seed in (0, 1)]
    for ratio in (0.3, 0.5, 0.7):
        options = {"saved": ratio, "prune_ratio": ratio, "label": f"OrderDP {ratio:.0%}"}
        runs += [written.run(50.0 + 1.1 * seed, seed, **options) for seed in (0, 1)]
    monkeypatch.setattr(results, "read_runs", lambda folder: runs)
    page = "<!-- records: mine -->\n<!-- end -->\n"
    lines = results.filled(page).splitlines()
    assert lines[2] == "Each 2 seeds; the verdict on all: worse by >0.5."
    reach = re.fullmatch(r"\| Method \| Accuracy % \| To full data \(±(\d+\.\d\d)\) \|", lines[4])
    assert reach is not None
    row = next(row for row in compare_runs(runs) if row.against_full is not None)
    assert row.against_full is not None
    assert row.against_full.low is not None
    assert float(reach[1]) == pytest.approx(row.against_full.mean - row.against_full.low, abs=0.006)
    assert lines[7].endswith("| -39.95 |")

    del runs[-1]  # two rows are too few to stand for a column
    lines = results.filled(page).splitlines()
    assert lines[2] == "Each 2 seeds:"
    assert lines[4] == "| Method | Accuracy % | To full data | Verdict |"
    assert re.search(r"\| -39\.95 \(-\d+\.\d\d, -\d+\.\d\d\) \| worse by >0\.5 \|$", lines[7])

    options = {"saved": 0.7, "prune_ratio": 0.7, "label": "OrderDP 70%"}
    runs[-1:] = [written.run(90.1 + 1.1 * seed, seed, **options) for seed in (0, 1)]
    lines = results.filled(page).splitlines()
    assert lines[2] == "Each 2 seeds:"
    assert "±" in lines[4]
    assert [line.split(" | ")[-1] for line in lines[7:9]] == ["worse by >0.5 |"] * 2


def test_a_table_may_be_about_further_test_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [
        make(metric + seed, seed)
        for make, metric in (
            (written.full, 90.0),
            (written.run, 89.0),
            (written.random, 88.0),
            (written.reduced, 87.0),
        )
        for seed in (0, 1)
    ]
    for run in runs:
        run.tests = {"digits?corrupt=blur:3": (run.final_metric or 0.0) - 20, "digits?corrupt=blur:1": 50.0}
    monkeypatch.setattr(results, "read_runs", lambda folder: runs)
    text = results.filled("<!-- tests: mine on digits?corrupt=blur:3,digits?corrupt=blur:1 -->\n<!-- end -->\n")
    lines = text.splitlines()
    cells = [[cell.split(" (")[0].strip() for cell in line.strip("|").split("|")] for line in lines[4:6]]
    assert cells[0] == ["blur:3, 40 %", "69.50±0.71", "-1.00", "+2.00", "+1.00"]
    assert cells[1] == ["blur:1, 40 %", "50.00±0.00", "+0.00", "+0.00", "+0.00"]
    assert results.filled(text) == text
    own = {"policy": "unlearned", "policy_parameters": {"refresh": 0.1}, "label": "unlearned 40 %"}
    runs += [written.run(89.5 + seed, seed, **own) for seed in (0, 1)]
    for run in runs[-2:]:
        run.tests = {"digits?corrupt=blur:3": (run.final_metric or 0.0) - 20}
    of_another = results.filled(
        "<!-- tests: mine on digits?corrupt=blur:3 of unlearned -->\n<!-- end -->\n"
    ).splitlines()
    assert of_another[2].startswith("| Test, left out | `Unlearned` |")
    assert of_another[4].startswith("| blur:3, 40 % | 70.00±0.71 | -0.50 (±")
    del runs[2].tests["digits?corrupt=blur:3"]  # OrderDP's first seed
    fewer = results.filled(text).splitlines()[4]
    assert fewer.startswith("| blur:3, 40 % | 70.00 (1 seed) | ")


def test_at_a_glance_the_best_rival_leaves_out_as_much_and_has_the_same_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = {
        "first": [written.full(90.0), written.run(89.0), written.random(88.0), written.reduced(87.0)],
        "second": [
            written.full(92.0, 1),
            written.run(90.0, 1),
            written.random(88.5, 1),
            written.reduced(87.5, 1),
            written.run(99.0, 1, policy="infobatch", label="saves less", saved=0.2),
            written.run(89.5, 1, policy="ucb", label="UCB"),
            written.run(89.9, 1, policy_parameters={"exploration": 1.0}, label="of the family"),
        ],
    }
    monkeypatch.setattr(results, "read_runs", lambda folder: runs[folder.stem])
    page = "<!-- glance: first+second -->\nold\n<!-- end -->\n"
    line = results.filled(page).splitlines()[4]
    assert [cell.strip() for cell in line.strip("|").split("|")] == [
        "digits, 40 % (2 seeds)",
        "91.00±1.41",
        "89.50±0.71",
        "-1.50 (-4.88, 1.88)",
        "87.25±0.35",
        "88.25±0.35",
        "ucb +0.50",
    ]


def test_the_table_of_regimes_sets_the_recommended_rule_and_orderdp_against_the_controls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = {"policy": "unlearned", "policy_parameters": {"refresh": 0.1}, "label": "unlearned 40 %"}
    runs = [written.full(90.0 + seed, seed) for seed in (0, 1)]
    for run, learned in zip(runs, (0.2, 0.4), strict=True):
        run.epochs = [{"epoch": 1, "learned": 0.0}, {"epoch": 2, "learned": learned}]
    for seed in (0, 1):
        runs += [written.run(88.0 + seed, seed), written.run(89.5 + seed, seed, **own)]
        other = {"policy": "unlearned", "policy_parameters": {"refresh": 0}, "label": "other"}
        runs += [
            written.run(50.0, seed, **other),
            written.random(88.5 + seed, seed),
            written.reduced(89.0 + seed, seed),
        ]
    monkeypatch.setattr(results, "read_runs", lambda folder: runs)
    line = results.filled("<!-- regimes: mine -->\n<!-- end -->\n").splitlines()[4]
    cells = [cell.split(" (±")[0].strip() for cell in line.strip("|").split("|")]
    assert cells == ["digits, mlp, 10 (2 seeds)", "30 %", "40 %", "-0.50", "+0.50", "+1.00", "-1.00"]


def test_the_summary_has_a_line_for_each_study_and_the_ratios_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    def study(epochs: int, leads: dict[float, float], noise: float) -> list[Run]:
        options = {"data": "digits?train=1000", "model": "cnn", "width": epochs - 2, "epochs": epochs}
        runs = [written.full(90.0 + noise * seed, seed, **options) for seed in (0, 1, 2)]
        for run in runs:
            run.epochs = [{"epoch": epochs, "learned": 0.25}]
        for ratio, lead in leads.items():
            at = {**options, "prune_ratio": ratio, "saved": ratio}
            for seed in (0, 1, 2):
                own = {"policy": "unlearned", "label": f"unlearned {ratio}", **at}
                runs.append(written.run(80.0 + lead + noise * (seed == 1), seed, **own))
                runs.append(written.reduced(80.0 + noise * (seed == 2), seed, label=f"fewer epochs {ratio}", **at))
        return runs

    studies = {"short": study(10, {0.3: 1.0, 0.7: 2.0}, 0.1), "long": study(60, {0.4: 5.0, 0.7: 0.01}, 2.0)}
    del studies["long"][-2:]  # seed 2 at 70 %, of both
    monkeypatch.setattr(results, "read_runs", lambda folder: studies[folder.stem])
    lines = results.filled("<!-- summary: short long -->\n<!-- end -->\n").splitlines()
    heads, short, long = ([cell.strip() for cell in line.strip("|").split("|")] for line in (lines[2], *lines[4:6]))
    assert heads == [
        "Data, network, epochs",
        "Learned at the end",
        "To fewer epochs: 30 %",
        "70 %",
        "To full data: 30 %",
        "70 %",
    ]
    plain = [re.sub(r" \(±[\d.]+\)", "", cell) for cell in short]
    assert plain == [
        "digits, 1,000 images, cnn of width 8, 10 (3 seeds)",
        "25 %",
        "**+1.00**",  # clear of zero
        "**+2.00**",
        "**-9.07**",
        "**-8.07**",
    ]
    assert [cell.split(" (±")[0] for cell in long] == [
        "digits, 1,000 images, cnn of width 58, 60 (2 to 3 seeds)",
        "25 %",
        "",
        "+1.01",  # within chance: runs differ by more
        "",
        "**-9.99",
    ]


def test_the_lead_over_a_rival_is_the_mean_over_data_sets_and_ratios(monkeypatch: pytest.MonkeyPatch) -> None:
    def study(data: str, leads: dict[float, float], noise: float) -> list[Run]:
        runs = [written.full(90.0 + sign * noise, seed, data=data) for seed, sign in enumerate((1, -1, 1, -1))]
        for ratio, lead in leads.items():
            at = {"data": data, "prune_ratio": ratio, "saved": ratio}
            for seed, sign in enumerate((1, 1, -1, -1)):
                own = {"policy": "unlearned", "label": f"unlearned {ratio}", **at}
                runs.append(written.run(80.0 + lead + sign * noise, seed, **own))
            for seed, sign in enumerate((1, -1, -1, 1)):
                runs.append(written.reduced(80.0 + sign * noise, seed, label=f"fewer epochs {ratio}", **at))
                lost = {"policy": "infobatch", "label": f"infobatch {ratio}", **at}
                if ratio == 0.3:  # it diverges there
                    runs.append(written.run(10.0, seed, **lost))
                else:
                    lost["saved"] = ratio if data == "first" else ratio - 0.1  # left less out in the second study
                    runs.append(written.run(79.0 + sign * noise, seed, **lost))
        return runs

    studies = {"first": study("first", {0.3: 1.0, 0.5: 2.0}, 0.1), "second": study("second", {0.5: -0.3}, 0.4)}
    monkeypatch.setattr(results, "read_runs", lambda folder: studies[folder.stem])
    lines = results.filled("<!-- leads: first second -->\n<!-- end -->\n").splitlines()
    assert [cell.strip() for cell in lines[2].strip("|").split("|")] == [
        "`Unlearned` to",
        "Cells",
        "Mean",
        "Smallest",
        "Largest",
    ]
    cells = {line.split("|")[1].strip(): [cell.strip() for cell in line.split("|")[2:-1]] for line in lines[4:-2]}
    assert list(cells) == ["fewer epochs", "infobatch"]  # full data is the same run at every ratio
    count, mean, least, most = cells["fewer epochs"]
    assert (count, least, most) == ("3", "-0.30 (second, 50 %)", "+2.00 (first, 50 %)")
    assert mean.startswith("+0.90 (")
    # Runs differ by 2 / sqrt(3) times the noise; a difference of means of four runs by sqrt(2 / 4) times that. The mean
    # of the three is within twice to four times its error: Student's t, for two comparisons at once.
    error = (2 / 3**0.5) * (2 / 4) ** 0.5 * (0.1**2 + 0.1**2 + 0.4**2) ** 0.5 / 3
    low, high = map(float, re.findall(r"-?\d+\.\d\d", mean)[1:])
    assert (low + high) / 2 == pytest.approx(0.9, abs=0.011)
    assert 2 * error < (high - low) / 2 < 4 * error
    count, mean, least, most = cells["infobatch"]
    assert (count, least, most) == ("1; diverged in 1; saved less in 1", "", "")
    assert mean.startswith("+3.00 (")


def test_the_ranking_has_the_leads_of_all_methods_over_fewer_epochs_best_in_the_mean_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def study(data: str, leads: dict[str, float]) -> list[Run]:
        at = {"data": data, "prune_ratio": 0.5, "saved": 0.5}
        runs = [written.full(90.0 + seed / 10, seed, data=data) for seed in (0, 1, 2)]
        for seed in (0, 1, 2):
            runs.append(written.reduced(80.0 + (seed == 1) / 10, seed, label="fewer epochs 50%", **at))
            for name, lead in leads.items():
                runs.append(written.run(80.0 + lead + (seed == 2) / 10, seed, policy=name, label=f"{name} 50%", **at))
        return runs

    one = study("digits?holdout=0.2&train=1000", {"a_b": -1.0, "c": 0.5})
    studies = {"one": one, "two": study("iris", {"a_b": 3.0, "c": 0.7})}
    monkeypatch.setattr(results, "read_runs", lambda folder: studies[folder.stem])
    lines = results.filled("<!-- ranking: one two -->\n<!-- end -->\n").splitlines()
    heads, first, second = ([cell.strip() for cell in line.strip("|").split("|")] for line in (lines[2], *lines[4:6]))
    assert heads == ["Method", "digits, 1,000 images, 50 %", "iris, 50 %", "Mean"]
    assert (first[0], second[0]) == ("a\\_b", "c")
    assert [cell.split(" (")[0] for cell in first[1:]] == ["**-1.00", "**+3.00", "+1.00"]
    assert [cell.split(" (")[0] for cell in second[1:]] == ["**+0.50", "**+0.70", "+0.60"]
    low, high = (float(end) for end in second[3].split("(")[1].rstrip(")").split(", "))
    assert 0 < low < 0.6 < high


def test_studies_of_one_data_set_are_told_apart_by_their_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    def study(epochs: int, lead: float, data: str = "digits?train=1000") -> list[Run]:
        at = {"data": data, "epochs": epochs, "prune_ratio": 0.5, "saved": 0.5}
        own = [
            written.run(80.0 + lead + seed / 2, seed, policy="unlearned", label="unlearned 50 %", **at)
            for seed in (0, 1)
        ]
        for run in own:
            run.epochs = [{"epoch": number, "learned": 0.5} for number in range(1, epochs + 1)]
        reduced = [written.reduced(80.0 + seed, seed, label="fewer epochs", **at) for seed in (0, 1)]
        return [written.full(90.0 + seed, seed, data=data, epochs=epochs) for seed in (0, 1)] + own + reduced

    studies = {"short": study(10, 1.0), "long": study(60, -2.0), "other": study(10, 0.5, data="iris")}
    monkeypatch.setattr(results, "read_runs", lambda folder: studies[folder.stem])
    line = results.filled("<!-- leads: short long other -->\n<!-- end -->\n").splitlines()[4]
    count, mean, least, most = [cell.strip() for cell in line.split("|")[2:-1]]
    assert (count, least) == ("3", "-2.25 (digits, 1,000 images, 60 epochs, 50 %)")
    assert most == "+0.75 (digits, 1,000 images, 10 epochs, 50 %)"
    assert mean.startswith("-0.42 (")
    lines = results.filled("<!-- ceilings: short long other -->\n<!-- end -->\n").splitlines()[4:7]
    assert [line.split("|")[1].strip() for line in lines] == [
        "digits, 1,000 images, 10 epochs, 50 %",
        "digits, 1,000 images, 60 epochs, 50 %",
        "iris, 50 %",
    ]


@pytest.mark.parametrize(("learned", "passes", "most"), [(0.0, 50, 0.0), (0.5, 86, 2.0 * math.log2(1.72))])
def test_what_can_be_gained_is_what_passes_over_the_samples_not_learned_would_gain(
    monkeypatch: pytest.MonkeyPatch, learned: float, passes: int, most: float
) -> None:
    """A first epoch keeps half of all samples; where half are learned, the others keep 450 of the other 500."""
    at = {"prune_ratio": 0.5, "saved": 0.5}
    runs = []
    for seed in (0, 1):
        runs += [written.full(92.0 + seed, seed), written.reduced(90.0 + seed, seed, label="fewer epochs", **at)]
        own = written.run(90.7 + seed, seed, policy="unlearned", label="unlearned 50 %", **at)
        own.epochs = [{"epoch": number, "learned": learned} for number in range(1, 11)]
        runs.append(own)
    monkeypatch.setattr(results, "read_runs", lambda folder: runs)
    line = results.filled("<!-- ceilings: mine -->\n<!-- end -->\n").splitlines()[4]
    cells = [cell.split(" (±")[0].strip() for cell in line.strip("|").split("|")]
    assert cells == ["digits, 50 %", "50 %", f"{passes} %", f"{most:+.2f}", "+0.70"]


def test_passes_over_the_samples_not_learned_are_those_of_all_once_nothing_is_skipped() -> None:
    """Half are learned after the first epoch, and half are kept: two passes take four epochs."""
    own = written.run(90.0, 0, policy="unlearned", label="unlearned 50 %", prune_ratio=0.5, saved=0.5)
    own.epochs = [{"epoch": number, "learned": 0.5} for number in range(1, 11)]
    assert result_tables._passes(own, Unlearned(0.5, until_pass=2)) == pytest.approx((0.5 + 3 * 0.9 + 6 * 0.5) / 10)
    assert result_tables._passes(own, Unlearned(0.5)) == pytest.approx((0.5 + 9 * 0.9) / 10)


def test_the_picture_of_the_readme_has_a_line_for_each_method_in_both_themes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    runs = [make(90.0 - place + seed / 10, seed) for place, make in enumerate(_MAKERS) for seed in (0, 1, 2)]
    monkeypatch.setattr(results, "read_runs", lambda folder: runs)
    monkeypatch.setattr(results, "PICTURES", tmp_path / "pictures")
    results.draw_picture()
    light, dark = ((tmp_path / "pictures" / f"demo-{theme}.svg").read_text() for theme in ("light", "dark"))
    for text in (light, dark):
        assert all(name in text for name in ("OrderDP 40 %", "Dynamic random 40 %", "Fewer epochs"))
    assert light != dark


def test_the_pictures_in_the_readme_are_of_the_methods_in_the_records_of_the_demo() -> None:
    labels = [row.label for row in compare_runs(read_runs(results.records_of("demo"))) if row.policy != "full"]
    for theme in ("light", "dark"):
        picture = (results.PICTURES / f"demo-{theme}.svg").read_text(encoding="utf-8")
        assert all(label in picture for label in labels), "run `make figures`"


_MAKERS = (written.full, written.run, written.random, written.reduced)


def test_the_tables_and_the_figure_of_a_suite_are_those_of_the_seeds_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = []

    def read(part: Part, folder: Path) -> PartResults:
        asked.append((folder, part.seeds))
        return measure(part, [made_up(planned, 90.0 + planned.settings.seed) for planned in part.runs()])

    monkeypatch.setattr(results, "read_part", read)
    monkeypatch.setattr(results, "RECORDS", tmp_path)
    monkeypatch.setattr(results, "FIGURES", tmp_path / "figures")
    page = "<!-- suite: table-imagenet in mine seeds=0,2 -->\nold\n<!-- end -->\n"
    text = results.filled(page)
    assert "old" not in text
    assert re.search(r"^\| Full data \| 91\.00±1\.41", text, re.MULTILINE)
    assert results.filled(text) == text
    assert set(asked) == {(tmp_path / "mine.jsonl", (0, 2))}
    results.draw_figures(text)
    assert (tmp_path / "figures" / "table-imagenet.svg").read_text().startswith("<svg")
