"""The command line: what it prints, what it writes, how it fails."""

from __future__ import annotations

import builtins
import importlib.util
import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest

from orderdp import __version__
from orderdp.cli import main
from orderdp.errors import ConfigError
from orderdp.policies.registry import NAMES, card, summary
from orderdp.theory import plan

PLAN = ["plan", "--samples", "1281167", "--prune-ratio", "0.4", "--epochs", "90", "--batch-size", "1024"]


def test_a_plan_is_printed_as_a_table(capsys: pytest.CaptureFixture) -> None:
    assert main([*PLAN, "--hours", "35.2", "--price", "4"]) == 0
    printed = capsys.readouterr().out
    for text in ("1,127,570", "768,700", "67,590", "45,090 saved", "all by epoch 11", "14.1 saved", "56.32"):
        assert text in printed


def test_a_run_of_minutes_does_not_take_no_hours(capsys: pytest.CaptureFixture) -> None:
    assert main([*PLAN, "--hours", "0.05"]) == 0
    assert "0.02 saved" in capsys.readouterr().out
    assert main([*PLAN, "--hours", "352"]) == 0
    assert "140.8 saved" in capsys.readouterr().out


def test_a_plan_is_printed_without_rich(capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert main(PLAN) == 0
    printed = capsys.readouterr().out
    assert "trained on each epoch      768,700" in printed
    assert main(["reproduce", "--list"]) == 0
    assert "what it shows" in capsys.readouterr().out


def test_a_plan_as_json_is_the_plan(capsys: pytest.CaptureFixture) -> None:
    assert main([*PLAN, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == plan(1281167, 0.4, 90, 1024).as_dict()


def test_the_dials_and_the_other_options_reach_the_plan(capsys: pytest.CaptureFixture) -> None:
    options = ["--exploration", "0.5", "--exploitation", "0.6", "--drop-last", "--world-size", "4", "--json"]
    assert main(["plan", "--samples", "5000", "--epochs", "2", "--batch-size", "64", *options]) == 0
    expected = plan(5000, None, 2, 64, exploration=0.5, exploitation=0.6, drop_last=True, world_size=4)
    assert json.loads(capsys.readouterr().out) == expected.as_dict()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--prune-ratio", "40"], "--prune-ratio must be in [0, 1), got 40.0. It is a fraction, not a percentage."),
        ([], "give --prune-ratio, or both --exploration and --exploitation; "),
        (["--exploration", "0.3"], "give --prune-ratio, or both --exploration and --exploitation; "),
        (["--prune-ratio", "0.4", "--exploration", "0.3"], "--exploration must be at least"),
        (["--prune-ratio", "0.4", "--price", "3"], "needs hours"),
        (
            ["--prune-ratio", "0.9996"],
            "--prune-ratio 0.9996 keeps 0 of 1000 samples; at least one must be kept. Prune less.",
        ),
        (["--exploration", "0.001", "--exploitation", "0.3"], "--exploration 0.001, --exploitation 0.3 keeps 0"),
        (["--prune-ratio", "0.995", "--drop-last"], "the 5 samples it keeps make none, in batches of 10 for each of 1"),
        (["--prune-ratio", "0.995", "--world-size", "8"], "Choose smaller batches or fewer processes, or prune less."),
        (["--prune-ratio", "0.4", "--plot", "weights.jpg"], "must end in .png, .svg, .html"),
        (["--prune-ratio", "0.4", "--plot", "no/such/folder/weights.png"], "No such file"),
    ],
)
def test_bad_values_are_one_line_and_exit_code_2(arguments, message, capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["plan", "--samples", "1000", "--epochs", "3", "--batch-size", "10", *arguments]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", [["plan"], ["nonsense"], ["plan", "--samples", "many"]])
def test_bad_usage_is_exit_code_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2


@pytest.mark.parametrize(("ending", "start"), [("png", b"\x89PNG"), ("svg", b"<svg"), ("html", b"<!DOCTYPE html>")])
def test_a_plot_is_written_in_the_format_of_its_ending(ending: str, start: bytes, tmp_path: Path) -> None:
    path = tmp_path / f"weights.{ending}"
    assert (
        main(
            [
                "plan",
                "--samples",
                "5000",
                "--prune-ratio",
                "0.4",
                "--epochs",
                "3",
                "--batch-size",
                "9",
                "--plot",
                str(path),
            ]
        )
        == 0
    )
    assert path.read_bytes().lstrip().startswith(start)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_without_the_plotting_library_the_error_says_how_to_get_it(capsys, tmp_path, monkeypatch) -> None:
    real = builtins.__import__

    def missing(name: str, *args, **kwargs):
        if name == "altair":
            raise ImportError("no altair", name="altair")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)
    assert main(["reproduce", "fig-weights-sum", "--out", str(tmp_path)]) == 2
    assert "pip install '.[plot]'" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["fig-weights-limit", "fig-weights-uniform", "fig-weights-shape", "fig-weights-sum"])
def test_the_papers_theory_figures_can_be_drawn(name: str, tmp_path: Path) -> None:
    assert main(["reproduce", name, "--out", str(tmp_path / "figures"), "--format", "svg"]) == 0
    assert "<svg" in (tmp_path / "figures" / f"{name}.svg").read_text()


def test_a_theory_figure_goes_where_the_help_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", "fig-weights-sum", "--format", "svg"]) == 0
    assert [str(path) for path in Path().rglob("*.svg")] == ["reproduced/fig-weights-sum.svg"]


def test_what_can_be_reproduced_is_listed_and_the_toy_tables_printed(capsys: pytest.CaptureFixture) -> None:
    assert main(["reproduce", "--list"]) == 0
    listed = capsys.readouterr().out
    assert "fig-weights-limit" in listed
    assert "table-toy" in listed
    assert main(["reproduce", "table-toy"]) == 0
    printed = capsys.readouterr().out
    assert "4.26" in printed
    assert "4.336" in printed


def test_an_unknown_figure_suggests_the_nearest(capsys: pytest.CaptureFixture) -> None:
    assert main(["reproduce", "fig-weigths-limit"]) == 2
    assert "Did you mean 'fig-weights-limit'?" in capsys.readouterr().err


def test_without_a_command_it_says_which_there_are(capsys: pytest.CaptureFixture) -> None:
    assert main([]) == 0
    assert "plan" in capsys.readouterr().out
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == f"orderdp {__version__}"


def test_it_runs_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "orderdp", *PLAN, "--json"], capture_output=True, text=True, check=True, timeout=180
    )
    assert json.loads(done.stdout)["q"] == 768_700


def test_policies_are_listed_and_their_cards_printed(capsys: pytest.CaptureFixture) -> None:
    assert main(["policies"]) == 0
    listed = capsys.readouterr().out
    for name in NAMES:
        assert name in listed
    assert main(["policies", "infobatch"]) == 0
    assert "target_ratio" in capsys.readouterr().out
    assert main(["policies", "infobatsch"]) == 2
    assert "Did you mean 'infobatch'?" in capsys.readouterr().err


@pytest.mark.parametrize("name", NAMES)
def test_every_policy_has_a_card_with_the_same_parts(name: str) -> None:
    text = card(name)
    for part in ("**Rule.**", "**Parameters.**", "**Cost.**", "**Limits.**", "**Tests.**", "- reference: "):
        assert part in text
    assert text.startswith(f"# {name}\n\n{summary(name)}\n")
    assert 20 < len(summary(name)) < 250
    assert f"policies.{NAMES[name].__name__}(" in text
    for parameter in inspect.signature(NAMES[name]).parameters:
        assert f"`{parameter}`" in text, f"the card of {name} does not explain {parameter}"


def test_a_reader_that_has_read_enough_is_no_error() -> None:
    command = f"{sys.executable} -m orderdp policies infobatch | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=180, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "# infobatch\n"


def test_run_options_are_built_once_from_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every option that says how to run, and not what, arrives in one value that cannot be changed."""
    from orderdp.cli import _parser
    from orderdp.cli._common import run_options
    from orderdp.experiments.config import RunOptions

    monkeypatch.setattr("sys.argv", ["orderdp", "compare", "--out", "x"])
    line = "--out x --data-dir d --device cpu --threads 2 --checkpoint-seconds 5 --jobs 3 --also-test a,b?c=1 --quiet"
    built = run_options(_parser().parse_args(["compare", *line.split(), "--tensorboard", "--diagnose"]))
    assert built == RunOptions(
        Path("x"),
        data_dir=Path("d"),
        device="cpu",
        threads=2,
        jobs=3,
        checkpoint_seconds=5.0,
        command="orderdp compare --out x",
        tests=("a", "b?c=1"),
        tensorboard=True,
        diagnose=True,
        quiet=True,
    )
    with pytest.raises(AttributeError):
        built.jobs = 1
    assert run_options(_parser().parse_args(["train", "--out", "x", "--resume", "--diagnose", "steps"])) == RunOptions(
        Path("x"), resume=True, diagnose="steps", command="orderdp compare --out x"
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"jobs": 0}, "--jobs must be at least 1, got 0"),
        ({"threads": 0}, "--threads must be at least 1, got 0"),
        ({"checkpoint_seconds": float("nan")}, "--checkpoint-seconds must be a number, at least 0, got nan"),
        ({"diagnose": "cosine"}, "diagnose must be False, True or \"steps\", got 'cosine'"),
    ],
)
def test_run_options_out_of_range(changes: dict, message: str) -> None:
    from orderdp.experiments.config import RunOptions

    with pytest.raises(ConfigError, match=message):
        RunOptions(Path("x"), **changes)
