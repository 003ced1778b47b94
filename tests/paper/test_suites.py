"""The paper's suites through the real command: every one at smoke scale, the full recipes for a few steps."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from orderdp.cli import main
from orderdp.errors import ConfigError, DatasetError
from orderdp.experiments.config import RunOptions, Settings
from orderdp.experiments.models import MODELS
from orderdp.experiments.runner import check
from orderdp.experiments.static import is_static
from orderdp_paper import SCALES, SUITES
from orderdp_paper.suite import Part, prepare, try_out
from orderdp_paper.suites import METHODS, recipe_settings, show_trials

IDS = [
    "table-static",
    "table-dynamic",
    "table-imagenet",
    "table-imagenet-ratios",
    "table-architectures",
    "table-vit",
    "table-optimizers",
    "table-jaccard",
    "table-stability",
    "table-cosine",
    "fig-motivation",
    "fig-time",
    "fig-ablation",
    "fig-usage",
    "fig-time-to-accuracy",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all suites, which share their runs in it."""
    return tmp_path_factory.mktemp("suites")


def reproduce(*arguments: object) -> int:
    return main(["reproduce", *map(str, arguments)])


# -- every suite ----------------------------------------------------------------------------------------------------


def test_these_are_the_suites() -> None:
    assert sorted(SUITES) == sorted(IDS)
    assert all(tuple(suite.scales) == SCALES for suite in SUITES.values())


@pytest.mark.parametrize("name", IDS)
def test_every_suite_runs_at_smoke_scale_and_shows_the_papers_numbers(
    name: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--scale", "smoke", "--out", folder, "--format", "svg", "--threads", 1, "--device", "cpu", "--quiet")
    assert reproduce(name, *options) == 0
    printed = capsys.readouterr().out
    assert "digits" in printed
    assert "paper" in printed
    assert SUITES[name].printed.source in printed
    assert "<svg" in (folder / f"{name}-smoke.svg").read_text()
    page = (folder / f"{name}-smoke.md").read_text()
    assert "| --- |" in page
    planned = {planned.settings.run_id for part in prepare(SUITES[name], "smoke") for planned in part.runs()}
    runs = SUITES[name].runs_in(folder) / "runs"
    assert planned <= {path.name for path in runs.iterdir()}


def test_finished_runs_are_not_repeated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("fig-usage", "--scale", "smoke", "--out", tmp_path, "--threads", 1, "--data", "digits?train=100")
    assert reproduce(*options) == 0
    before = {path: path.read_bytes() for path in tmp_path.glob("runs/*/records.jsonl")}
    first = (tmp_path / "fig-usage-smoke.md").read_text()
    assert reproduce(*options) == 0
    printed, said = capsys.readouterr()
    assert "6 of 6 runs are finished already." in said
    # The suite's own words about its data are not those of the data that took their place.
    assert "At this scale: On digits?train=100, in place of digits. As planned: Digits and a plain network" in printed
    assert "On digits?train=100, in place of digits." in first
    assert {path: path.read_bytes() for path in tmp_path.glob("runs/*/records.jsonl")} == before
    assert (tmp_path / "fig-usage-smoke.md").read_text() == first


def test_suites_share_runs_in_a_folder() -> None:
    def runs(name: str) -> set[str]:
        return {planned.settings.run_id for part in prepare(SUITES[name], "smoke") for planned in part.runs()}

    assert len(runs("table-dynamic") & runs("fig-time")) > 5
    assert len(runs("table-dynamic") & runs("table-imagenet-ratios")) >= 4


@pytest.mark.parametrize(("scale", "shared"), [("smoke", 0), ("cpu", 12), ("paper", 24)])
def test_only_methods_that_ask_a_proxy_have_one_in_their_settings_so_other_runs_are_shared(
    scale: str, shared: int
) -> None:
    ids = {}
    for name in ("table-static", "table-dynamic"):
        runs = [planned for part in SUITES[name].scales[scale].parts for planned in part.runs()]
        ids[name] = {planned.settings.run_id for planned in runs}
        for planned in runs:
            asks = is_static(planned.method.policy) and planned.method.policy != "static-random"
            assert planned.settings.proxy_epochs == (20 if asks else Settings().proxy_epochs)
    # Full data, and what both have at the ratios of both: OrderDP alone at paper scale, the controls at the others.
    assert len(ids["table-static"] & ids["table-dynamic"]) == shared


def test_a_seed_that_is_named_twice_is_one_seed() -> None:
    assert {part.seeds for part in prepare(SUITES["table-imagenet"], "smoke", seeds=[3, 0, 3])} == {(3, 0)}


def test_interrupted_after_some_runs_it_goes_on_with_the_rest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("fig-usage", "--scale", "smoke", "--out", tmp_path, "--threads", 1, "--data", "digits?train=100")
    assert reproduce(*options) == 0
    capsys.readouterr()
    one, *others = sorted((tmp_path / "runs").iterdir())
    records = one / "records.jsonl"
    kept = [line for line in records.read_text().splitlines() if json.loads(line)["kind"] != "summary"]
    records.write_text("\n".join(kept[:2]) + "\n")  # as a kill in the second epoch would leave it
    before = {path.name: (path / "records.jsonl").read_bytes() for path in others}
    assert reproduce(*options) == 0
    said = capsys.readouterr().err
    assert f"{len(others)} of {len(others) + 1} runs are finished already." in said
    assert {path.name: (path / "records.jsonl").read_bytes() for path in others} == before
    assert json.loads(records.read_text().splitlines()[-1])["kind"] == "summary"


# -- what the user may change -------------------------------------------------------------------------------------


def test_seeds_and_data_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--scale", "smoke", "--seeds", "5", "--data", "digits?train=200", "--out", tmp_path, "--threads", 1)
    assert reproduce("fig-usage", *options) == 0
    assert "of 200" in capsys.readouterr().out
    names = [path.name for path in (tmp_path / "runs").iterdir()]
    assert names
    assert all("seed5" in name for name in names)


def test_data_are_replaced_all_of_them_or_by_name() -> None:
    suite = SUITES["table-architectures"]
    named = prepare(suite, "paper", data=["imagenet=/net", "cifar10=ten.npz"])
    assert [part.base["data"] for part in named] == ["ten.npz", "ten.npz", "cifar100", "cifar100", "/net", "/net"]
    modified = prepare(suite, "cpu", data=["fashion-mnist?train=1000"])
    assert {part.base["data"] for part in modified} == {"fashion-mnist?train=1000"}
    # With one data set for all, the parts of CIFAR-10 and CIFAR-100 are the same: those of 10 and 18 are not.
    static = prepare(SUITES["table-static"], "paper", data=["own.npz"])
    assert [part.base["data"] for part in static] == ["own.npz"]


def test_imagenet_must_be_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert reproduce("table-imagenet", "--scale", "paper", "--out", tmp_path / "out") == 2
    error = capsys.readouterr().err
    assert "needs ImageNet as a folder with train/CLASS/ and val/CLASS/" in error
    assert "--data imagenet=DIR" in error
    with pytest.raises(DatasetError, match="imagenet=DIR"):
        prepare(SUITES["table-architectures"], "paper")


def test_missing_data_are_said_with_how_to_get_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORDERDP_DATA", str(tmp_path / "nothing"))
    assert reproduce("table-imagenet", "--scale", "cpu", "--out", tmp_path / "out", "--quiet") == 2
    assert "orderdp data fetch cifar10" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["table-dynamics", "--scale", "smoke"], "Did you mean 'table-dynamic'?"),
        (["fig-motivatoin", "--scale", "smoke"], "Did you mean 'fig-motivation'?"),
        (["table-dynamic", "--scale", "smok"], "there is no scale 'smok'. Did you mean 'smoke'?"),
        (["table-dynamic"], "give --scale"),
        (["table-dynamic", "--scale", "smoke", "--seeds", "a"], "--seeds must be numbers separated by commas"),
        (["table-dynamic", "--scale", "smoke", "--seeds", ","], "at least one seed"),
        (["table-dynamic", "--scale", "smoke", "--jobs", "0"], "--jobs must be at least 1"),
        (["table-dynamic", "--scale", "smoke", "--format", "gif"], "must end in .png, .svg, .html"),
        (["table-dynamic", "--scale", "smoke", "--max-steps", "0"], "must be at least 1"),
        (["table-dynamic", "--scale", "smoke", "--device", "abacus"], "device 'abacus' cannot be used"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_usage_is_said_before_anything_is_trained(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert reproduce(*arguments, "--out", tmp_path / "out") == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.glob("out/runs/*/records.jsonl"))


# -- what each needs ------------------------------------------------------------------------------------------------


def test_the_list_says_time_memory_and_data_of_each(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert reproduce("--list") == 0
    printed = capsys.readouterr().out
    for name in [*IDS, "fig-weights-limit", "table-toy"]:
        assert name in printed
    for word in ("two cores", "L40 GPU", "GB", "fashion-mnist", "cifar10, cifar100", "imagenet", " h,", " min,"):
        assert word in printed


def test_one_suite_is_described_in_full(capsys: pytest.CaptureFixture[str]) -> None:
    assert reproduce("table-vit", "--list") == 0
    printed = capsys.readouterr().out
    assert "Table 5" in printed
    assert "timm:swin_tiny_patch4_window7_224" in printed
    assert "from scratch for 300 epochs, not pretrained" in printed


@pytest.mark.parametrize("name", ["fig-weights-limit", "table-toy"])
def test_what_takes_no_runs_is_described_and_not_drawn(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert reproduce(name, "--list") == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"{name}: ")
    assert "no runs" in printed
    assert "4.336" not in printed
    assert not list(tmp_path.iterdir())


def test_estimates_follow_from_the_runs() -> None:
    (part,) = SUITES["fig-time-to-accuracy"].scales["cpu"].parts
    # Full data once, and four methods at 60 and 30 % of it, for three seeds.
    assert part.seconds == pytest.approx(3 * part.full_run * (1 + 4 * (0.6 + 0.3)))
    (looked,) = SUITES["table-cosine"].scales["cpu"].parts
    # Three methods, five seeds; each of ten epochs is followed by one through all data and one through those kept.
    assert looked.seconds == pytest.approx(5 * 3 * looked.full_run * (0.6 + 1.6 + 0.3 + 1.3))


def test_full_recipes_are_priced_for_the_one_card_that_the_command_uses() -> None:
    assert {suite.scales["paper"].machine for suite in SUITES.values()} == {"one L40 GPU"}
    for name in ("table-imagenet", "table-imagenet-ratios"):
        (part,) = SUITES[name].scales["paper"].parts
        printed = SUITES["table-imagenet"].printed.number(part.beside, "Full data", "node hours")
        assert printed is not None
        assert part.full_run == pytest.approx(printed.value * 3600)
    hours = [part.full_run / 3600 for part in SUITES["table-architectures"].scales["paper"].parts]
    assert hours[-2:] == pytest.approx([28.0, 70.4])


BOTH = {
    "table-dynamic",
    "table-imagenet",
    "table-imagenet-ratios",
    "table-architectures",
    "table-vit",
    "table-optimizers",
}
RANDOM_ONLY = {"table-jaccard", "table-cosine", "table-stability", "fig-usage"}


@pytest.mark.parametrize("scale", ["smoke", "cpu"])
def test_the_guide_says_which_suites_have_which_controls(scale: str) -> None:
    found: dict[tuple[str, ...], set[str]] = {}
    for name, suite in SUITES.items():
        names = {method.name for part in suite.scales[scale].parts for method in part.methods}
        found.setdefault(tuple(sorted(names & {"Fewer epochs", "Dynamic Random"})), set()).add(name)
    assert found[("Dynamic Random",)] == RANDOM_ONLY
    assert found[()] == {"fig-motivation", "fig-ablation"}
    others = {"fig-time", "fig-time-to-accuracy", *({"table-static"} if scale == "cpu" else ())}
    assert found[("Dynamic Random", "Fewer epochs")] == BOTH | others


# -- the full recipes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", IDS)
def test_settings_are_valid_at_every_scale_without_timm(name: str, scale: str) -> None:
    parts = prepare(SUITES[name], scale, data=["imagenet=/data/imagenet"])
    for part in parts:
        runs = list(part.runs())
        assert len({planned.settings.run_id for planned in runs}) == len(runs)
        model = str(part.base["model"])
        assert model in MODELS or model.startswith("timm:")
        for planned in runs:
            check(planned.settings)
            assert planned.settings.policy == planned.method.policy


def test_the_papers_recipes_are_its_own() -> None:
    small, large, *_ = SUITES["table-dynamic"].scales["paper"].parts
    assert (small.base["model"], small.base["lr"], small.base["epochs"]) == ("resnet18", 0.2, 200)
    assert (large.base["model"], large.base["lr"], large.base["batch_size"]) == ("resnet50", 0.03, 128)
    assert {part.base["label_smoothing"] for part in (small, large)} == {0.1}
    (part,) = SUITES["table-imagenet"].scales["paper"].parts
    assert (part.base["optimizer"], part.base["lr"], part.base["epochs"]) == ("lars", 6.4, 90)
    for suite in ("table-dynamic", "table-imagenet", "table-imagenet-ratios", "table-architectures", "fig-time"):
        assert {part.base["weight_decay"] for part in SUITES[suite].scales["paper"].parts} == {5e-4}
    for name in ("table-jaccard", "table-cosine", "table-stability"):
        (part,) = SUITES[name].scales["paper"].parts
        assert part.base["lr"] == 0.03
    orderdp = [planned for planned in small.runs() if planned.method.name == "OrderDP" and planned.ratio == 0.7]
    assert orderdp[0].settings.policy_parameters == {"exploration": 0.5}
    infobatch = next(planned for planned in small.runs() if planned.method.name == "InfoBatch" and planned.ratio == 0.5)
    assert infobatch.settings.policy_parameters == {"annealing": None, "target_ratio": round(0.5 * 200 / 199, 4)}


def test_the_curve_over_ratios_has_one_rule_for_its_pools() -> None:
    for part in SUITES["fig-time"].scales["paper"].parts:
        pools = [planned.settings.policy_parameters for planned in part.runs() if planned.method.policy == "orderdp"]
        assert pools == [{}] * len(pools)
    assert "our default at all of them" in SUITES["fig-time"].scales["paper"].differs


@pytest.fixture(scope="module")
def small_pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four images in the shape of CIFAR's, of two classes: a ResNet-50 takes its time."""
    rng = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("images") / "images.npz"
    images = rng.integers(0, 256, (4, 32, 32, 3), dtype=np.uint8)
    labels = np.arange(4) % 2
    np.savez(path, x_train=images, y_train=labels, x_test=images, y_test=labels)
    return path


@pytest.mark.parametrize(
    ("name", "kinds", "steps"),
    [("fig-time-to-accuracy", 4, 2), ("table-optimizers", 12, 1), ("table-static", 3, 1)],
)
def test_the_full_recipe_starts(
    name: str, kinds: int, steps: int, small_pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    options = ("--scale", "paper", "--data", small_pictures, "--max-steps", steps, "--threads", 1, "--out", out)
    assert reproduce(name, *options) == 0
    printed = capsys.readouterr().out
    assert f"the first steps of {kinds} kinds of runs went well" in printed
    assert printed.count(f"{steps} step{'s' if steps > 1 else ''},") == kinds
    assert "resnet" in printed
    assert not out.exists()


def test_first_steps_that_fail_are_not_said_to_have_gone_well(tmp_path: Path) -> None:
    base = recipe_settings(
        "smoke", data="digits?train=129&test=50", model="cnn", width=4, batch_size=128
    )  # the second batch is one sample
    parts = [Part("any", base, (METHODS["full"], METHODS["random"]), (0.5,), (0,), 1.0)]
    said: list[str] = []
    show_trials(SUITES["table-dynamic"], try_out(parts, RunOptions(tmp_path, device="cpu"), 3), said.append)
    assert "Full data: 1 step, then it failed: the last batch of epoch 1 is a single sample" in said[0]
    assert "s per step" in said[1]
    assert said[2].endswith("the first steps of 1 kinds of runs went well, those of 1 failed. Nothing was kept.")


def test_without_timm_the_full_recipe_says_what_to_install(
    small_pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--scale", "paper", "--data", small_pictures, "--max-steps", 1, "--out", tmp_path)
    assert reproduce("table-vit", *options) == 2
    assert "pip install '.[vision]'" in capsys.readouterr().err


def test_a_suite_has_its_scale_by_name() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'paper'"):
        prepare(SUITES["fig-usage"], "papers")
