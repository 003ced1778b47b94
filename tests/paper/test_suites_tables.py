"""What suites make of records: cells with known answers, beside numbers that stand in the paper."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from orderdp.errors import RecordError
from orderdp.experiments.records import Run
from orderdp_paper import SUITES, Method, Part, Suite
from orderdp_paper import charts as suite_charts
from orderdp_paper.charts import draw
from orderdp_paper.suite import Number, PartResults, Planned, measure, read_part
from orderdp_paper.suites import METHODS, markdown
from orderdp_paper.tables import FIFTHS, NOTHING, QUARTERS, StagePoint, over_stages

BASE = {"data": "digits", "model": "mlp", "epochs": 10}

FULL, INFOBATCH, ORDERDP, RANDOM = (METHODS[name] for name in ("full", "infobatch", "orderdp", "random"))


def part(*methods: Method, ratios: tuple[float, ...] = (0.5,), seeds: int = 1, beside: str = "", **base: Any) -> Part:
    return Part(beside, {**BASE, **base}, methods, ratios, tuple(range(seeds)), 1.0)


def made_up(planned: Planned, metric: float, *, seconds: float = 10.0, saved: float | None = None, **more: Any) -> Run:
    """A finished run with these numbers."""
    share = planned.ratio or 0.0 if saved is None else saved
    summary = {
        "status": "done",
        "metric": metric,
        "samples": round(10_000 * (1 - share)),
        "full_samples": 10_000,
        "training_seconds": seconds,
        "usage": more.pop("usage", []),
    }
    config = {**planned.settings.as_dict(), "label": planned.settings.label}
    return Run(planned.settings.run_id, config, summary=summary, epochs=more.pop("epochs", []))


def results(made: Part, numbers: dict[tuple[str, float | None], list[float]], **more: Any) -> PartResults:
    """The part, every run of it with the final accuracy given for its method, ratio and seed."""
    runs = [
        made_up(planned, numbers[planned.method.name, planned.ratio][planned.settings.seed], **more)
        for planned in made.runs()
    ]
    return measure(made, runs)


def cells(suite: Suite, *parts: PartResults) -> dict[str, tuple[str, ...]]:
    """Rows by name; those called paper by the name of the row above."""
    found = {}
    for table in suite.tables(suite, parts):
        above = ""
        for name, *rest in table.rows:
            found[f"{above} in the paper" if name.strip() == "paper" else name] = tuple(rest)
            above = above if name.strip() == "paper" else name
    return found


# -- the paper's numbers --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("suite", "group", "row", "column", "number"),
    [
        ("table-static", "CIFAR-10, ResNet-18", "EL2N-20", "70", Number(91.9)),
        ("table-static", "CIFAR-100, ResNet-18", "Glister", "70", Number(70.4)),
        ("table-static", "CIFAR-10, ResNet-18", "Herding", "50", Number(88.0)),
        ("table-dynamic", "CIFAR-10, ResNet-50", "UCB", "30", Number(95.5)),
        ("table-dynamic", "CIFAR-100, ResNet-50", "OrderDP", "70", Number(77.9)),
        ("table-dynamic", "CIFAR-100, ResNet-18", "InfoBatch", "50", Number(77.7)),
        ("table-dynamic", "CIFAR-100, ResNet-50", "Full data", "30", Number(80.6, 0.1)),
        ("table-imagenet", "ImageNet-1K, ResNet-50", "OrderDP", "hours", Number(21.5)),
        ("table-imagenet", "ImageNet-1K, ResNet-50", "Dynamic Random", "accuracy", Number(73.4, 0.3)),
        ("table-imagenet-ratios", "ImageNet-1K, ResNet-50", "InfoBatch", "60", Number(74.9)),
        ("table-architectures", "ImageNet-1K, ResNet-18", "OrderDP", "saved", Number(27.3)),
        ("table-architectures", "CIFAR-100, ResNet-50", "InfoBatch", "saved", Number(36.3)),
        ("table-vit", "Swin-T", "OrderDP", "accuracy", Number(81.4)),
        ("table-optimizers", "AdamW", "OrderDP", "accuracy", Number(94.4)),
        ("table-jaccard", "70", "OrderDP", "100%", Number(0.704, 0.09)),
        ("table-jaccard", "40", "InfoBatch", "0-20%", Number(0.583, 0.05)),
        ("table-stability", "gradient norm", "InfoBatch", "50-70%", Number(4.35, 9.48)),
        ("table-stability", "accuracy", "Full data", "100%", Number(80.6, 0.2)),
        ("table-cosine", "70", "InfoBatch", "100%", Number(0.716, 0.029)),
        ("fig-motivation", "correlation", "Full data", "accuracy with gradient norm", Number(-0.93)),
        ("fig-time", "CIFAR-100, ResNet-18", "InfoBatch", "largest ratio reached", Number(72.2)),
    ],
)
def test_the_papers_numbers_are_those_it_prints(suite: str, group: str, row: str, column: str, number: Number) -> None:
    assert SUITES[suite].printed.number(group, row, column) == number


def test_what_the_paper_leaves_empty_is_not_there() -> None:
    assert SUITES["table-static"].printed.number("CIFAR-100, ResNet-18", "DP", "70") is None


def test_every_method_of_the_paper_is_run_at_its_scale() -> None:
    for suite in SUITES.values():
        for made in suite.scales["paper"].parts:
            printed = set(suite.printed.values.get(made.beside, {}))
            assert printed <= {method.name for method in made.methods}


def test_a_method_that_broke_down_does_not_hide_the_others_in_a_figure() -> None:
    made = part(FULL, RANDOM, INFOBATCH, ORDERDP)
    numbers: dict[tuple[str, float | None], list[float]] = {(FULL.name, None): [91.0], (INFOBATCH.name, 0.5): [10.0]}
    numbers |= {(RANDOM.name, 0.5): [89.0], (ORDERDP.name, 0.5): [90.0]}
    figure = draw(SUITES["table-static"], [results(made, numbers)]).to_dict()
    written = json.dumps(figure, ensure_ascii=False)
    assert "◂ -81.0" in written
    domains = [tuple(map(float, found.split(","))) for found in re.findall(r'"domain": \[(-[^"\]]*)\]', written)]
    assert domains
    assert all(low == pytest.approx(-2.16) for low, _ in domains)


def test_what_a_static_method_chose_with_is_part_of_what_it_cost() -> None:
    el2n = Method("EL2N-2", "el2n", settings={"proxy_epochs": 20})
    made = part(FULL, el2n, ORDERDP, seeds=2)
    runs = [made_up(planned, 90.0, seconds=10.0 if planned.ratio else 20.0) for planned in made.runs()]
    for run in runs:
        if run.config["policy"] == "el2n":
            run.summary = {**(run.summary or {}), "proxy_seconds": 14.0 + 2 * run.config["seed"]}
    accuracy, costs = SUITES["table-static"].tables(SUITES["table-static"], [measure(made, runs)])
    assert [row[0] for row in accuracy.rows] == ["Full data", "EL2N-2", "OrderDP"]
    assert costs.rows == [
        ("Full data", "", NOTHING, "20 s", "20 s", ""),
        ("EL2N-2", "50 %", "15 s", "10 s", "25 s", "-25.0%"),
        ("OrderDP", "50 %", NOTHING, "10 s", "10 s", "50.0%"),
    ]


# -- cells ----------------------------------------------------------------------------------------------------------


def test_accuracies_stand_with_their_spread_above_the_papers() -> None:
    made = part(FULL, ORDERDP, seeds=2, beside="CIFAR-10, ResNet-18")
    found = cells(SUITES["table-dynamic"], results(made, {("Full data", None): [90, 92], ("OrderDP", 0.5): [89, 92]}))
    assert found["Full data"] == ("91.00±1.41",)
    assert found["OrderDP"] == ("90.50±2.12 (-0.50)",)
    assert found["OrderDP in the paper"] == ("95.3 (-0.3)",)
    assert found["Full data in the paper"] == ("95.6±0.1",)


def test_what_was_really_left_out_is_said_where_it_is_something_else() -> None:
    made = part(FULL, INFOBATCH, ORDERDP, beside="CIFAR-10, ResNet-18")
    runs = [made_up(planned, 90.0, saved=0.321 if planned.method is INFOBATCH else None) for planned in made.runs()]
    (table,) = SUITES["table-dynamic"].tables(SUITES["table-dynamic"], [measure(made, runs)])
    assert table.notes[-1] == "Really left out: InfoBatch 32.1 %."


@pytest.mark.parametrize("name", ["table-jaccard", "table-cosine", "table-stability", "fig-motivation"])
def test_tables_without_a_column_for_it_say_what_was_really_left_out_too(name: str) -> None:
    suite = SUITES[name]
    (made,) = suite.scales["smoke"].parts
    runs = [made_up(planned, 90.0, saved=0.55 if planned.method is INFOBATCH else None) for planned in made.runs()]
    (table,) = suite.tables(suite, [measure(made, runs)])
    assert f"Really left out: InfoBatch {', '.join(['55.0'] * len(made.ratios))} %." in table.notes


def test_infobatch_is_asked_for_more_because_its_first_epoch_uses_all_data() -> None:
    assert INFOBATCH.parameters_for(0.5, 10) == {"annealing": None, "target_ratio": 0.5556}
    assert INFOBATCH.parameters_for(0.95, 10)["target_ratio"] == 0.99


def test_times_are_set_beside_the_papers() -> None:
    made = part(FULL, ORDERDP, ratios=(0.4,), beside="ImageNet-1K, ResNet-50")
    runs = [made_up(planned, 76.0, seconds=3600.0 if planned.ratio is None else 2700.0) for planned in made.runs()]
    found = cells(SUITES["table-imagenet"], measure(made, runs))
    assert found["OrderDP"] == ("76.00 (+0.00)", "45 min", "25.0%", "40.0%")
    assert found["OrderDP in the paper"] == ("76.4±0.2 (+0.0)", "21.5 h", "38.9%", "")


def test_each_method_at_the_papers_ratio_with_what_may_be_said_of_it() -> None:
    suite = SUITES["table-optimizers"]
    made = replace(suite.scales["smoke"].parts[1], methods=(FULL, replace(ORDERDP, ratios=(0.424,))), seeds=(0, 1, 2))
    measured = results(made, {("Full data", None): [90, 91, 92], ("OrderDP", 0.424): [90.1, 91, 92.2]})
    found = cells(suite, measured)
    # Differences 0.1, 0 and 0.2: their mean is 0.1, their deviation 0.1, and 4.303 * 0.1 / sqrt(3) is 0.248.
    assert found["OrderDP"] == ("91.10±1.05 (+0.10)", "-0.15 to +0.35", "42.4%")
    assert found["OrderDP in the paper"] == ("94.4 (+0.1)", "", "42.4%")
    (table,) = suite.tables(suite, [measured])
    assert "OrderDP: within 0.5 points of full data" in table.notes[1]


def test_a_failed_run_is_said_in_its_cell() -> None:
    made = part(FULL, ORDERDP, beside="CIFAR-10, ResNet-18")
    runs = [made_up(planned, 90.0) for planned in made.runs()]
    runs[1].summary = {"status": "failed", "reason": "the loss became nan"}
    found = cells(SUITES["table-dynamic"], measure(made, runs))
    assert found["OrderDP"] == ("failed",)


def failing(made: Part, *failed: tuple[str, int]) -> PartResults:
    """The part, with runs that failed: of which method, at which seed."""
    runs = []
    for planned in made.runs():
        course = epochs([1.0, 2.0, 3.0], "gradient_norm")
        run = made_up(planned, 90.0 + planned.settings.seed, epochs=course, usage=[0, 5])
        if (planned.method.name, planned.settings.seed) in failed:
            run.summary = {"status": "failed", "reason": "the loss became nan"}
        runs.append(run)
    return measure(made, runs)


@pytest.mark.parametrize("name", SUITES)
def test_every_table_says_where_a_mean_is_of_fewer_seeds(name: str) -> None:
    suite = SUITES[name]
    parts = [replace(made, seeds=(0, 1, 2)) for made in suite.scales["smoke"].parts]
    whole = suite.tables(suite, [failing(made) for made in parts])
    assert "fewer seeds" not in str(whole)
    tables = suite.tables(suite, [failing(made, ("OrderDP", 1)) for made in parts])
    for table in tables:
        told = [note for note in table.notes if "Means over fewer seeds, because runs failed: OrderDP at " in note]
        assert bool(told) == any("OrderDP" in row[0] for row in table.rows)
        assert all("% (2 of 3)" in note for note in told)


def test_runs_without_an_end_are_not_called_failed_and_differences_are_of_the_same_seeds() -> None:
    made = part(FULL, ORDERDP, seeds=2, beside="CIFAR-10, ResNet-18")
    runs = [made_up(planned, 90.0 + 2 * planned.settings.seed) for planned in made.runs()]
    runs[-1].summary = None
    (table,) = SUITES["table-dynamic"].tables(SUITES["table-dynamic"], [measure(made, runs)])
    assert table.rows[-2] == ("OrderDP", "90.00 (+0.00)")
    assert table.notes[-1] == (
        "Means over fewer seeds, because runs failed or are not finished: OrderDP at 50 % (1 of 2). "
        "Differences to full data are over the seeds that both have."
    )


def test_intervals_are_spoken_of_where_there_are_some() -> None:
    def title(seeds: int, *failed: tuple[str, int]) -> str:
        made = part(FULL, ORDERDP, seeds=seeds, beside="CIFAR-10, ResNet-18")
        runs = [made_up(planned, 90.0 + (planned.settings.seed if planned.ratio else 0)) for planned in made.runs()]
        for planned, run in zip(made.runs(), runs, strict=True):
            if (planned.method.name, planned.settings.seed) in failed:
                run.summary = {"status": "failed"}
        return str(draw(SUITES["table-dynamic"], [measure(made, runs)]).to_dict())

    assert "here, with 95 % intervals" in title(2)
    assert "intervals" not in title(1)
    assert "intervals" not in title(2, ("OrderDP", 1))


# -- stages ---------------------------------------------------------------------------------------------------------


def test_every_epoch_is_in_one_stage_and_the_last_also_in_that_of_the_end() -> None:
    for stages in (FIFTHS, QUARTERS):
        for epochs in (1, 3, 7, 10, 200):
            for epoch in range(1, epochs + 1):
                inside = [stage.name for stage in stages if stage.holds(epoch, epochs)]
                assert len(inside) == 1 + (epoch == epochs)
    names = [[stage.name for stage in QUARTERS if stage.holds(epoch, 10)] for epoch in (3, 4, 5, 7, 8, 10)]
    assert names == [["0-30%"], ["30-50%"], ["30-50%"], ["50-70%"], ["70-100%"], ["70-100%", "100%"]]


def epochs(values: list[float | None], name: str) -> list[dict[str, Any]]:
    return [
        {"epoch": number, "metric": 10.0 * number, "diagnostics": {name: value}}
        for number, value in enumerate(values, start=1)
    ]


def test_stages_are_means_over_epochs_then_over_seeds() -> None:
    made = part(ORDERDP, ratios=(0.7,), seeds=2, beside="CIFAR-100, ResNet-18")
    recorded = [[None, 0.2, 0.4, 0.6, 0.8], [None, 0.4, 0.4, 0.6, 1.0]]
    runs = [
        made_up(planned, 50.0, epochs=epochs(recorded[planned.settings.seed], "jaccard")) for planned in made.runs()
    ]
    measured = measure(made, runs)
    row = measured.find("OrderDP", 0.7)
    assert row is not None
    found = over_stages(row, "jaccard", FIFTHS)
    assert found[0] is None  # the first epoch has none before it
    assert found[1] == Number(pytest.approx(0.3), pytest.approx(0.02**0.5))
    shown = cells(SUITES["table-jaccard"], measured)
    wide = ("0.300±0.141", "0.400±0.000", "0.600±0.000", "0.900±0.141", "0.900±0.141")
    assert shown["OrderDP"] == ("–", *wide)  # noqa: RUF001
    assert shown["OrderDP in the paper"][-2:] == ("0.678±0.023", "0.704±0.090")  # as it is printed
    assert draw(SUITES["table-jaccard"], [measured]).to_dict()


def test_records_without_diagnostics_are_told() -> None:
    made = part(ORDERDP, ratios=(0.7,))
    measured = measure(made, [made_up(planned, 50.0) for planned in made.runs()])
    (table,) = SUITES["table-cosine"].tables(SUITES["table-cosine"], [measured])
    assert "Nothing was recorded here" in table.notes[-1]
    assert draw(SUITES["table-cosine"], [measured]).to_dict()


def test_stability_has_accuracy_and_gradient_norm() -> None:
    made = part(FULL, ratios=())
    (planned,) = made.runs()
    measured = measure(made, [made_up(planned, 50.0, epochs=epochs([4.0, 3.0, 2.0, 1.0, 1.0], "gradient_norm"))])
    suite = SUITES["table-stability"]
    (table,) = suite.tables(suite, [measured])
    here = [row[1:] for row in table.rows if row[0] == "Full data"]
    assert here[0] == ("10.00", "20.00", "30.00", "45.00", "50.00")
    assert here[1] == ("4.00", "3.00", "2.00", "1.00", "1.00")


def test_the_first_figure_has_the_correlation_of_accuracy_and_gradient_norm() -> None:
    made = part(FULL, ratios=())
    (planned,) = made.runs()
    measured = measure(made, [made_up(planned, 50.0, epochs=epochs([5.0, 4.0, 3.0, 2.0, 1.0], "gradient_norm"))])
    found = cells(SUITES["fig-motivation"], measured)
    assert found["Full data"] == ("-1.00", "3.00", "1.00")  # three consecutive whole numbers spread by 1
    assert found["Full data in the paper"][0] == "-0.93"
    assert draw(SUITES["fig-motivation"], [measured]).to_dict()


# -- figures in numbers ---------------------------------------------------------------------------------------------


def test_time_to_accuracy_counts_all_but_tests_and_says_who_never_came_there() -> None:
    made = part(FULL, RANDOM, ratios=(0.4,))
    curve = [
        {"epoch": n, "metric": metric, "training_seconds": 2.0, "evaluation_seconds": 9.0}
        for n, metric in ((1, 50.0), (2, 99.5), (3, 100.0))
    ]
    slow = [
        {"epoch": 1, "metric": 96.0, "training_seconds": 1.0},
        {"epoch": 2, "metric": 97.0, "training_seconds": 1.0},
    ]
    full, random = made.runs()
    measured = measure(made, [made_up(full, 100.0, epochs=curve), made_up(random, 97.0, epochs=slow)])
    found = cells(SUITES["fig-time-to-accuracy"], measured)
    assert found["Full data"][:3] == ("4 s", "4 s", "4 s")
    assert found["Dynamic Random 40 %"] == ("1 s", "never", "never", "97.00 (-3.00)")


def test_usage_counts_those_never_used() -> None:
    made = part(ORDERDP, ratios=(0.99,))
    (planned,) = made.runs()
    measured = measure(made, [made_up(planned, 90.0, usage=[2, 5, 0, 3])])
    found = cells(SUITES["fig-usage"], measured)
    assert found["99 % OrderDP, 10 epochs"] == ("2 of 10", "0", "1", "3", "1.40")


def drawn_points(chart: Any, field: str) -> list[dict[str, Any]]:
    """The points of a chart that have this field, wherever its description keeps them."""
    if isinstance(chart, list):
        if chart and isinstance(chart[0], dict) and field in chart[0]:
            return chart
        return [point for entry in chart for point in drawn_points(entry, field)]
    return (
        [point for entry in chart.values() for point in drawn_points(entry, field)] if isinstance(chart, dict) else []
    )


def test_usage_is_that_of_all_seeds_and_never_used_that_of_the_worst() -> None:
    made = part(ORDERDP, ratios=(0.99,), seeds=2)
    usages = [[2, 5, 0, 3], [4, 6]]
    measured = measure(made, [made_up(planned, 90.0, usage=usages[planned.settings.seed]) for planned in made.runs()])
    suite = SUITES["fig-usage"]
    assert cells(suite, measured)["99 % OrderDP, 10 epochs"] == ("4 of 10", "0", "1", "3", "1.00")
    (table,) = suite.tables(suite, [measured])
    assert "that of the seed with the most" in table.notes[0]
    shares = {point["times"]: point["share"] for point in drawn_points(draw(suite, [measured]).to_dict(), "share")}
    assert shares == pytest.approx({"0": 30.0, "1": 55.0, "2": 0.0, "3": 15.0})


def test_the_rolling_spread_is_drawn_as_the_mean_over_seeds() -> None:
    made = part(FULL, ratios=(), seeds=2)
    norms = [[1.0, 2.0, 3.0, 4.0], [2.0, 4.0, 6.0, 6.0]]
    runs = [
        made_up(planned, 50.0, epochs=epochs(norms[planned.settings.seed], "gradient_norm")) for planned in made.runs()
    ]
    measured = measure(made, runs)
    chart = draw(SUITES["fig-motivation"], [measured]).to_dict()
    points = drawn_points(chart["vconcat"][1]["hconcat"][0], "epoch")  # the panel of the rolling spread
    # Windows of three: (1, 2, 3) spreads by 1 and (2, 4, 6) by 2; (2, 3, 4) by 1 and (4, 6, 6) by 2 / sqrt(3).
    assert [(point["epoch"], point["y"]) for point in points] == [(3, 1.5), (4, pytest.approx(0.5 + 3**-0.5))]


def test_ratios_say_how_far_infobatch_came() -> None:
    made = part(FULL, INFOBATCH, ratios=(0.5, 0.9), beside="CIFAR-10, ResNet-18")
    runs = [made_up(planned, 90.0, saved=min(planned.ratio or 0.0, 0.62)) for planned in made.runs()]
    (table,) = SUITES["fig-time"].tables(SUITES["fig-time"], [measure(made, runs)])
    assert table.notes[-1] == "The most InfoBatch left out: 62.0% here, 77.9 % in the paper."
    assert "without numbers" not in table.notes[0]


def test_decompositions_and_ratios_are_two_tables() -> None:
    suite = SUITES["fig-ablation"]
    made = suite.scales["smoke"].parts[0]
    measured = measure(made, [made_up(planned, 90.0) for planned in made.runs()])
    pools, ratios = suite.tables(suite, [measured])
    assert [row[0] for row in pools.rows] == ["70 % 0.3 x 1.00", "70 % 0.5 x 0.60", "70 % 1 x 0.30"]
    assert [row[0] for row in ratios.rows] == ["Full data", "30 % OrderDP", "70 % OrderDP", "90 % OrderDP"]


# -- the rest -------------------------------------------------------------------------------------------------------


def test_a_table_as_markdown() -> None:
    suite = SUITES["table-dynamic"]
    made = part(FULL, ORDERDP, beside="CIFAR-10, ResNet-18")
    measured = results(made, {("Full data", None): [90], ("OrderDP", 0.5): [89]})
    text = markdown(suite, "cpu", suite.tables(suite, [measured]), suite.scales["cpu"].differs)
    assert "| OrderDP | 89.00 (-1.00) |\n| paper | 95.3 (-0.3) |" in text
    assert "Fashion-MNIST in place of CIFAR" in text


def test_a_figure_without_anything_to_show_says_so() -> None:
    made = part(ORDERDP)
    measured = measure(made, [made_up(planned, 90.0) for planned in made.runs()])
    chart = draw(SUITES["table-dynamic"], [measured]).to_dict()
    assert "nothing was measured" in str(chart)


def test_a_figure_names_the_papers_methods_where_full_data_failed_here() -> None:
    made = part(FULL, RANDOM, ORDERDP, beside="CIFAR-10, ResNet-18")
    runs = [made_up(planned, 90.0) for planned in made.runs()]
    runs[0].summary = {"status": "failed"}
    chart = draw(SUITES["table-dynamic"], [measure(made, runs)]).to_dict()
    (panel,) = chart["vconcat"][0]["hconcat"]
    assert panel["title"] == "in the paper"
    assert panel["layer"][1]["encoding"]["y"]["scale"]["domain"] == ["Dynamic Random", "OrderDP"]
    assert panel["height"] == 2 * 24


def test_a_figure_has_the_methods_of_both_sides_in_the_order_of_the_table() -> None:
    made = part(FULL, RANDOM, INFOBATCH, ORDERDP, beside="CIFAR-10, ResNet-18")
    runs = [made_up(planned, 90.0) for planned in made.runs()]
    runs[1].summary = {"status": "failed"}
    chart = draw(SUITES["table-dynamic"], [measure(made, runs)]).to_dict()
    domains = [panel["layer"][1]["encoding"]["y"]["scale"]["domain"] for panel in chart["vconcat"][0]["hconcat"]]
    assert domains == [["Dynamic Random", "InfoBatch", "OrderDP"]] * 2


def test_a_part_that_has_not_run_is_told(tmp_path) -> None:
    with pytest.raises(RecordError, match="there are no records of full data"):
        read_part(part(FULL), tmp_path)


@pytest.mark.parametrize(("largest", "kind"), [(9.0, None), (4e8, "log")])
def test_a_method_that_broke_down_does_not_hide_the_others(largest: float, kind: str | None) -> None:
    numbers = {"Full data": Number(0.7, 0.1), "InfoBatch": Number(largest, 2 * largest)}
    points = [StagePoint("gradient norm", name, "100%", "here", number) for name, number in numbers.items()]
    drawn = suite_charts._stage_panel(points, "gradient norm, here", "gradient norm").to_dict()
    assert {layer["encoding"]["y"]["scale"].get("type") for layer in drawn["layer"]} == {kind}
    lows = [value["low"] for value in drawn["data"]["values"]]
    assert (min(lows) > 0) == (kind == "log")  # a logarithm has no room for less
