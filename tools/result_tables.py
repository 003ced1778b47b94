"""The tables of the pages of results: shorter than those of a report, whose headline the text of a page gives."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from orderdp.experiments.intervals import critical_value
from orderdp.experiments.records import Run
from orderdp.experiments.statistics import Difference, Row, between, compare, spread_of
from orderdp.policies import Unlearned
from orderdp.report.tables import counted_out, diverged, note
from orderdp_paper.suite import Table

__all__ = ["ceilings", "comparison", "further_tests", "glance", "leads", "ranking", "regimes", "suite_lines", "summary"]

_CONTROLS = ("full", "reduced", "random")
_DEFAULTS = {"unlearned": {"refresh": 0.1}}
_TITLES = {"orderdp": "OrderDP", "unlearned": "`Unlearned`"}
_NAMES = {"reduced": "fewer epochs", "random": "random"}
# The part of a lead's variance that comes from the rule itself, not from the rival; a half if spreads are equal.
_COMMON = 0.4
_SAME_SAVINGS = 0.01  # who leaves out less is no rival at this ratio


def comparison(rows: Sequence[Row]) -> str:
    """A line for each method, without columns that are empty.

    The number of seeds that most have stands above, and so does a verdict that all have. How far intervals reach to
    either side stands in the head of a column; those of other seeds or another variance are written out. The name of a
    method has its ratio, and adds what differs: other seeds, and what was really saved.
    """
    notes = [note(row) for row in rows]
    usual = max(notes, key=notes.count)
    reaches = {title: _usual_reach([of(row) for row in rows]) for title, of in _DIFFERENCES.items()}
    found = [_compared(row, "" if text == usual else text, reaches) for row, text in zip(rows, notes, strict=True)]
    verdicts = [line["Verdict"] for line in found if line["Verdict"]]
    above = f"Each {usual}:"
    if len(verdicts) > 2 and len(set(verdicts)) == 1:
        above = f"Each {usual}; the verdict on all: {verdicts[0]}."
        found = [{**line, "Verdict": ""} for line in found]
    titles = [title for title in found[0] if any(line[title] for line in found)]
    heads = [f"{title} (±{reaches[title]})" if reaches.get(title) else title for title in titles]
    lines = [above, "", *table([heads, *([line[title] for title in titles] for line in found)])]
    below = [*diverged(rows), *(f"{entry['state']}: {entry['text']}" for entry in counted_out(rows))]
    return "\n".join(lines + ([""] + [f"- {_escaped(text)}" for text in below] if below else []))


_DIFFERENCES: dict[str, Callable[[Row], Difference | None]] = {
    "To full data": lambda row: row.against_full,
    "To fewer epochs": lambda row: row.against_reduced,
    "To random": lambda row: None if row.policy == "reduced" else row.against_random,  # the line of random has it
}


def _usual_reach(differences: Sequence[Difference | None]) -> str:
    """How far at least three of the intervals reach to either side; empty if there are no three alike."""
    reaches = [_reach(difference) for difference in differences]
    usual = max(reaches, key=lambda reach: (bool(reach), reaches.count(reach)))
    return usual if reaches.count(usual) > 2 else ""


def _reach(difference: Difference | None) -> str:
    if difference is None or difference.low is None or difference.high is None:
        return ""
    return f"{(difference.high - difference.low) / 2:.2f}"


def _compared(row: Row, seeds: str, reaches: Mapping[str, str]) -> dict[str, str]:
    differs = [seeds] if seeds else []
    named = row.policy == "reduced"  # its name has the share of whole epochs
    if (
        row.prune_ratio is not None
        and row.saved is not None
        and not named
        and abs(row.saved - row.prune_ratio) > 0.0005
    ):
        differs.append(f"saved {100 * row.saved:.1f} %")
    word = "" if row.against_full is None else row.word
    return {
        "Method": _escaped(row.label + (f" ({', '.join(differs)})" if differs else "")),
        "Accuracy %": _accuracy(row),
        **{title: _difference(of(row), reaches[title]) for title, of in _DIFFERENCES.items()},
        "Verdict": word.replace("more than ", ">").replace(" points of full data", "").replace(", no interval", ""),
    }


def further_tests(tests: Sequence[Sequence[Row]], policy: str = "orderdp") -> str:
    """A line for each further test set and ratio: a policy, and what it gains on full data and the two controls.

    Args:
        tests: The rows of each test set.
        policy: The policy.
    """
    lines = [["Test, left out", _TITLES[policy], "To full data", "To fewer epochs", "To random"]]
    for rows in tests:
        full = _plain(rows, "full")
        name = str(dict(full.task)["data"]).rpartition("corrupt=")[2]
        for ratio in _ratios(rows):
            there = [row for row in rows if row.prune_ratio in (None, ratio)]
            own = _plain(there, policy)
            lines.append(
                [
                    f"{name}, {100 * ratio:g} %",
                    _of_seeds(own, len(full.runs)),
                    *map(_with_reach, (own.against_full, own.against_reduced, own.against_random)),
                ]
            )
    return "\n".join(table(lines))


def glance(studies: Sequence[Sequence[Run]]) -> str:
    """A line for each data set and ratio: full data, OrderDP, the two controls and the lead over the best rival.

    Args:
        studies: The runs of each, all of them on one data set.
    """
    lines = [
        ["Data, left out", "Full data", "OrderDP", "To full data", "Fewer epochs", "Random share", "To the best rival"]
    ]
    for runs in studies:
        rows = compare(runs)
        lines += [_line(ratio, rows) for ratio in _ratios(rows)]
    return "\n".join(table(lines))


def _line(ratio: float, all_rows: list[Row]) -> list[str]:
    rows = [row for row in all_rows if row.prune_ratio in (None, ratio)]
    full, orderdp, reduced, random = (_plain(rows, policy) for policy in ("full", "orderdp", "reduced", "random"))
    others = [row for row in rows if row.policy not in (*_CONTROLS, "orderdp")]
    rivals = [row for row in others if row.saved is not None and row.saved > ratio - _SAME_SAVINGS]
    found = between(all_rows, [(orderdp, row) for row in rivals])
    leads = [(row.policy, lead) for row, lead in zip(rivals, found, strict=True) if lead is not None]
    name, smallest = min(leads, key=lambda entry: entry[1].mean, default=("none saved as much", None))
    seeds = dict.fromkeys(note(row) for row in (full, orderdp, reduced, random))
    return [
        f"{dict(full.task)['data']}, {100 * ratio:g} % ({' or '.join(seeds)})",
        _accuracy(full),
        _accuracy(orderdp),
        _difference(orderdp.against_full),
        _accuracy(reduced),
        _accuracy(random),
        f"{name} {_difference(smallest)}".strip(),
    ]


def regimes(studies: Sequence[Sequence[Run]]) -> str:
    """A line for each data set and ratio: the share that full data has learned, and what `Unlearned` and OrderDP lose.

    Args:
        studies: The runs of each, all of them on one data set.
    """
    heads = [
        "Data, network, epochs",
        "Learned at the end",
        "Left out",
        "`Unlearned` to full data",
        "To fewer epochs",
        "To random",
    ]
    lines = [[*heads, "OrderDP to fewer epochs"]]
    for runs in studies:
        rows = compare(runs)
        full = _plain(rows, "full")
        for ratio in _ratios(rows):
            there = [row for row in rows if row.prune_ratio == ratio]
            own, orderdp = _plain(there, "unlearned"), _plain(there, "orderdp")
            lines.append(
                [
                    _setting(full, own),
                    _learned(full),
                    f"{100 * ratio:g} %",
                    *map(_with_reach, (own.against_full, own.against_reduced, own.against_random)),
                    _with_reach(orderdp.against_reduced),
                ]
            )
    return "\n".join(table(lines))


def summary(studies: Sequence[Sequence[Run]]) -> str:
    """A line for each study: how far `Unlearned` is from fewer epochs and from full data, at the ratios of the first.

    Differences that are clear of zero are bold. The cells of ratios that a study does not have are empty.

    Args:
        studies: The runs of each, all of them on one data set.
    """
    compared = [compare(runs) for runs in studies]
    ratios = _ratios(compared[0])
    percent = [f"{100 * ratio:g} %" for ratio in ratios]
    lines = [["Data, network, epochs", "Learned at the end", *percent, *percent]]
    lines[0][2] = f"To fewer epochs: {percent[0]}"
    lines[0][2 + len(ratios)] = f"To full data: {percent[0]}"
    for rows in compared:
        full = _plain(rows, "full")
        own = {ratio: _plain([row for row in rows if row.prune_ratio == ratio], "unlearned") for ratio in _ratios(rows)}
        there = [own.get(ratio) for ratio in ratios]
        differences = [row and row.against_reduced for row in there] + [row and row.against_full for row in there]
        lines.append([_setting(full, *own.values()), _learned(full), *map(_bold_if_clear, differences)])
    return "\n".join(table(lines))


def _setting(full: Row, *own: Row) -> str:
    setting = full.runs[0].config
    counts = [len(row.runs) for row in own]
    seeds = note(own[0]) if len(set(counts)) == 1 else f"{min(counts)} to {max(counts)} seeds"
    width = f" of width {setting['width']}" if setting["model"] == "cnn" else ""
    return f"{_data_name(setting['data'])}, {setting['model']}{width}, {setting['epochs']} ({seeds})"


def _learned(full: Row) -> str:
    """The fraction that full data has learned at the end, in the mean over seeds."""
    return f"{100 * statistics.fmean(run.epochs[-1]['learned'] for run in full.runs):.0f} %"


def _bold_if_clear(difference: Difference | None) -> str:
    text = _with_reach(difference)
    if difference is None or difference.low is None or difference.high is None:
        return text
    return f"**{text}**" if difference.low > 0 or difference.high < 0 else text


def _data_name(data: str) -> str:
    """The data set in words: "cifar10, 10,000 images" for "cifar10?train=10000"; not what was held out of it."""
    name, _, modifiers = data.partition("?")
    kept = [text for text in modifiers.split("&") if text and not text.startswith("holdout=")]
    images = [f", {int(text[6:]):,} images" for text in kept if text.startswith("train=")]
    others = [text for text in kept if not text.startswith("train=")]
    return name + ("?" + "&".join(others) if others else "") + "".join(images)


def _study_names(studies: Sequence[Sequence[Run]]) -> list[str]:
    """What each study is about: its data, and its epochs if another study has the same data."""
    settings = [next(run.config for run in runs if run.config["policy"] == "full") for runs in studies]
    names = [_data_name(setting["data"]) for setting in settings]
    return [
        name if names.count(name) == 1 else f"{name}, {setting['epochs']} epochs"
        for name, setting in zip(names, settings, strict=True)
    ]


@dataclass
class _Rival:
    """What the recommended rule is compared with: leads by cell, a cell being a study at a prune ratio."""

    leads: dict[str, Difference] = field(default_factory=dict)
    diverged: int = 0
    saved_less: int = 0

    def line(self, name: str, rivals: int) -> list[str]:
        """The line of the table; the interval of the mean holds for all rivals at once."""
        counts = {"": len(self.leads), "diverged in ": self.diverged, "saved less in ": self.saved_less}
        cells = "; ".join(f"{what}{count}" for what, count in counts.items() if count or not what)
        if not self.leads:
            return [name, cells, "", "", ""]
        ordered = sorted(self.leads.items(), key=lambda entry: entry[1].mean)
        ends = ordered[:: len(ordered) - 1] if len(ordered) > 1 else []
        shown = [f"{lead.mean:+.2f} ({cell})" for cell, lead in ends] or ["", ""]
        return [name, cells, self.mean(rivals), *shown]

    def mean(self, rivals: int) -> str:
        """The mean over cells, with an interval that holds for as many rivals at once."""
        found = list(self.leads.values())
        mean = statistics.fmean(lead.mean for lead in found)
        if any(lead.deviation is None for lead in found):
            return f"{mean:+.2f}"
        errors = [(lead.deviation or 0.0) ** 2 / lead.pairs for lead in found]
        # By Welch and Satterthwaite; the runs of a rival and of the rule are others at each ratio.
        degrees = sum(errors) ** 2 / sum(
            error**2 / lead.degrees(lead.pairs) for error, lead in zip(errors, found, strict=True)
        )
        bound = critical_value((_COMMON,) * rivals, degrees)
        reach = bound * math.sqrt(sum(errors)) / len(found)
        return f"{mean:+.2f} ({mean - reach:.2f}, {mean + reach:.2f})"


def leads(studies: Sequence[Sequence[Run]], policy: str = "unlearned") -> str:
    """A line for each rival: the mean over studies and ratios of the lead of the recommended rule, and its range.

    A rival that diverged in a cell, or left out less there, is not compared in it, and the line says so. Full data is
    no rival: its runs are the same at every ratio.

    Args:
        studies: The runs of each, all of them on one data set.
        policy: The rule whose leads are shown.
    """
    rivals: dict[str, _Rival] = {}
    for study, runs in zip(_study_names(studies), studies, strict=True):
        rows = compare(runs)
        spread = spread_of(rows)
        full = _plain(rows, "full")
        for ratio in _ratios(rows):
            cell = f"{study}, {100 * ratio:g} %"
            own = _plain([row for row in rows if row.prune_ratio == ratio], policy)
            others = [row for row in rows if row.prune_ratio == ratio and row.policy != policy and row.runs]
            for row in others:
                rival = rivals.setdefault(_NAMES.get(row.policy, row.policy), _Rival())
                if (row.metric or 0.0) < (full.metric or 0.0) / 2:
                    rival.diverged += 1
                elif (row.saved or 0.0) < ratio - _SAME_SAVINGS:
                    rival.saved_less += 1
                else:
                    (found,) = between(rows, [(own, row)], spread)
                    if found is not None:
                        rival.leads[cell] = found
    heads = [f"{_TITLES[policy]} to", "Cells", "Mean", "Smallest", "Largest"]
    order = sorted(rivals, key=lambda name: (name not in _NAMES.values(), list(rivals).index(name)))
    return "\n".join(table([heads, *(rivals[name].line(name, len(rivals)) for name in order)]))


def ranking(studies: Sequence[Sequence[Run]]) -> str:
    """A line for each method: its lead over fewer epochs in every study at every ratio, and in the mean, best first.

    Leads that are clear of zero are bold. The intervals of the means hold for all methods at once.

    Args:
        studies: The runs of each, all of them on one data set, with the same methods.
    """
    methods: dict[str, _Rival] = {}
    cells: list[str] = []
    for study, runs in zip(_study_names(studies), studies, strict=True):
        rows = compare(runs)
        for ratio in _ratios(rows):
            cells.append(f"{study}, {100 * ratio:g} %")
            for row in rows:
                if row.prune_ratio == ratio and row.policy != "reduced" and row.against_reduced is not None:
                    name = row.label.removesuffix(f" {100 * ratio:g}%")
                    methods.setdefault(name, _Rival()).leads[cells[-1]] = row.against_reduced
    ordered = sorted(methods.items(), key=lambda item: -statistics.fmean(lead.mean for lead in item[1].leads.values()))
    lines = [
        [_escaped(name), *(_bold_if_clear(found.leads.get(cell)) for cell in cells), found.mean(len(methods))]
        for name, found in ordered
    ]
    return "\n".join(table([["Method", *cells, "Mean"], *lines]))


def ceilings(studies: Sequence[Sequence[Run]]) -> str:
    """A line for each data set and ratio: how far `Unlearned` could be ahead of fewer epochs, and how far it is.

    If leaving out learned samples cost nothing, a training would be worth as many epochs of full data as it makes
    passes over the samples that are not learned. What so many epochs reach is read off the runs of fewer epochs, by
    lines between them over the logarithm of the epochs.

    Args:
        studies: The runs of each, all of them on one data set.
    """
    lines = [["Data, left out", "Samples", "Passes over the rest", "Lead at most", "Lead measured"]]
    for study, runs in zip(_study_names(studies), studies, strict=True):
        rows = compare(runs)
        full, ratios = _plain(rows, "full"), _ratios(rows)
        at = {ratio: [row for row in rows if row.prune_ratio == ratio] for ratio in ratios}
        reached = {1.0: full.metric or 0.0}
        reached |= {1 - ratio: _plain(at[ratio], "reduced").metric or 0.0 for ratio in ratios}
        curve = sorted(reached.items())
        for ratio in ratios:
            own = _plain(at[ratio], "unlearned")
            passes = statistics.fmean(_passes(run, Unlearned(ratio)) for run in own.runs)
            most = _interpolated(curve, passes) - reached[1 - ratio]
            lines.append(
                [
                    f"{study}, {100 * ratio:g} %",
                    f"{100 * (1 - ratio):.0f} %",
                    f"{100 * passes:.0f} %",
                    f"{most:+.2f}",
                    _with_reach(own.against_reduced),
                ]
            )
    return "\n".join(table(lines))


def _passes(run: Run, policy: Unlearned) -> float:
    """How often a run went over the samples not learned at the time, as a fraction of its number of epochs."""
    n = round((run.summary or {})["full_samples"] / run.config["epochs"])
    learned = [0.0, *(epoch["learned"] for epoch in run.epochs[:-1])]
    passes, trained = [], 0
    for share in learned:
        n_learned = round(share * n) if policy.skips(trained / n) else 0
        of_others, of_learned = policy.counts(n, n_learned)
        passes.append(of_others / (n - n_learned) if n_learned < n else 1.0)
        trained += of_others + of_learned
    return statistics.fmean(passes)


def _interpolated(curve: Sequence[tuple[float, float]], x: float) -> float:
    """The value at x, on lines between the points over the logarithm; at the last point beyond it."""
    x = min(max(x, curve[0][0]), curve[-1][0])
    (low, bottom), (high, top) = next(pair for pair in pairwise(curve) if x <= pair[1][0])
    return bottom + (top - bottom) * math.log(x / low) / math.log(high / low)


def suite_lines(tables: Iterable[Table]) -> list[str]:
    """The tables of one of the paper's suites; a column that says the same of all is said once, in the title.

    A column of sums of the two before it is left out.
    """
    lines = []
    for found in tables:
        title, cells = found.title, _beside_the_papers([list(found.header), *map(list, found.rows)])
        if "together" in cells[0]:
            place = cells[0].index("together")
            cells = [line[:place] + line[place + 1 :] for line in cells]
        for place in reversed(range(1, len(cells[0]))):
            values = {line[place].strip() for line in cells[1:]} - {""}
            if len(values) == 1 and len(cells) > 3:
                title += f", {values.pop()} {cells[0][place]}"
                cells = [line[:place] + line[place + 1 :] for line in cells]
        lines += [f"**{title}**", "", *table(cells), "", *[f"- {note}" for note in found.notes], ""]
    return lines


def _beside_the_papers(cells: list[list[str]]) -> list[list[str]]:
    """The paper's numbers in a column of their own, where the table has but one."""
    if len(cells[0]) != 2 or not any(line[0].strip() == "paper" for line in cells):
        return cells
    result = [[*cells[0], "paper"]]
    for name, value in cells[1:]:
        if name.strip() == "paper":
            result[-1][2] = value
        else:
            result.append([name, value, ""])
    return result


def table(cells: Sequence[Sequence[str]]) -> list[str]:
    """Lines of Markdown; all but the first column are numbers, and a last one called Verdict is not."""
    header = cells[0]
    kinds = ["---", *("---" if title == "Verdict" else "---:" for title in header[1:])]
    written = [f"| {' | '.join(cell.strip() for cell in line)} |" for line in cells]
    return [written[0], f"|{'|'.join(kinds)}|", *written[1:]]


def _ratios(rows: Sequence[Row]) -> list[float]:
    return sorted({row.prune_ratio for row in rows if row.prune_ratio is not None})


def _plain(rows: Sequence[Row], policy: str) -> Row:
    """The row of a policy as it is by default, which may be written out."""
    return next(row for row in rows if row.policy == policy and row.parameters in ({}, _DEFAULTS.get(policy)))


def _accuracy(row: Row) -> str:
    if row.metric is None:
        return ""
    return f"{row.metric:.2f}" + ("" if row.deviation is None else f"±{row.deviation:.2f}")


def _of_seeds(row: Row, usual: int) -> str:
    """The accuracy, with the number of seeds where it is not the usual one."""
    return _accuracy(row) + ("" if len(row.runs) == usual else f" ({note(row)})")


def _difference(difference: Difference | None, reach: str = "") -> str:
    """The estimate, and its interval unless it reaches as far as the column says."""
    if difference is None:
        return ""
    if difference.low is None or (reach and _reach(difference) == reach):
        return f"{difference.mean:+.2f}"
    return f"{difference.mean:+.2f} ({difference.low:.2f}, {difference.high:.2f})"


def _with_reach(difference: Difference | None) -> str:
    """The estimate, and how far its interval reaches to either side."""
    reach = _reach(difference)
    return _difference(difference, reach) + (f" (±{reach})" if reach else "")


def _escaped(text: str) -> str:
    """Names hold underscores and asterisks, which Markdown would take for itself."""
    return " ".join(text.replace("_", "\\_").replace("*", "\\*").replace("|", "\\|").split())
