"""What scripts rely on: exit codes, results on stdout and the rest on stderr, JSON and CSV."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from orderdp.cli import main
from orderdp.cli._common import show_progress
from orderdp.coresets import NAMES as METHODS
from orderdp.coresets import card as method_card
from orderdp.coresets import summary as method_summary
from orderdp.datasets import NAMES as DATASETS
from orderdp.experiments.config import Settings
from orderdp.experiments.records import read_runs
from orderdp.policies.registry import NAMES, RECORDED, summary
from orderdp_paper import SUITES
from tests import runs

SMALL = ["--data", "digits", "--model", "mlp", "--width", "4", "--epochs", "1", "--device", "cpu", "--threads", "1"]
DIVERGING = ["--lr", "1e30", "--schedule", "constant", "--epochs", "2"]
ONE = ["--policies", "orderdp", "--prune-ratios", "0.5", "--seeds", "0", "--no-controls"]


def printed(arguments: list[str], capsys: pytest.CaptureFixture[str], code: int = 0) -> tuple[str, str]:
    capsys.readouterr()
    assert main(arguments) == code
    captured = capsys.readouterr()
    return captured.out, captured.err


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """Records of full data, fewer epochs, random and a method, three seeds each, and a failed run."""
    made = []
    for seed in range(3):
        made += [runs.full(90 + 0.1 * seed, seed), runs.reduced(88 + 0.1 * seed, seed)]
        made += [runs.random(89 + 0.1 * seed, seed), runs.run(90.1 - 0.1 * seed, seed)]
    made[-1].summary["status"], made[-1].summary["reason"] = "failed", "the loss became nan in epoch 2"
    return runs.write(tmp_path / "study", made)


# -- exit codes -------------------------------------------------------------------------------------------------------


def test_a_comparison_with_a_failed_run_exits_with_1_also_when_it_is_asked_again(tmp_path: Path, capsys) -> None:
    command = ["compare", *SMALL, *DIVERGING, *ONE, "--out", str(tmp_path)]
    out, err = printed(command, capsys, code=1)
    assert "failed" in out
    assert "1 of 1 runs failed." in err
    printed(command, capsys, code=1)


def test_a_search_with_a_failed_run_exits_with_1(tmp_path: Path, capsys) -> None:
    search = ["--policies", "orderdp", "--find-lossless", "--resolution", "0.9", "--seeds", "0,1"]
    printed(["compare", *SMALL, *DIVERGING, *search, "--out", str(tmp_path)], capsys, code=1)


def test_a_training_that_failed_exits_with_1_also_when_it_is_asked_again(tmp_path: Path, capsys) -> None:
    command = ["train", *SMALL, *DIVERGING, "--prune-ratio", "0.5", "--out", str(tmp_path)]
    out, _ = printed(command, capsys, code=1)
    assert re.fullmatch(r"orderdp 50%, seed 0: failed, .*\n", out)
    again, err = printed([*command, "--resume"], capsys, code=1)
    assert again == out
    assert "This run is finished already." in err


def test_a_suite_with_a_failed_run_exits_with_1(tmp_path: Path, monkeypatch, capsys) -> None:
    from orderdp.experiments.trainer import DivergedError, Training

    def diverge(self: Training) -> None:
        if self.settings.policy != "full":
            raise DivergedError("the loss became nan in epoch 1")
        train_epoch(self)

    train_epoch = Training._train_epoch
    command = ["reproduce", "table-dynamic", "--scale", "smoke", "--out", str(tmp_path), "--quiet"]
    monkeypatch.setattr(Training, "_train_epoch", diverge)
    _, err = printed(command, capsys, code=1)
    assert "runs failed." in err


def test_data_that_are_not_here_are_an_error_of_where(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("ORDERDP_DATA", str(tmp_path))
    out, err = printed(["data", "where", "cifar100"], capsys, code=1)
    assert out == ""
    assert err == "cifar100 is not here; get it with: orderdp data fetch cifar100\n"
    out, _ = printed(["data", "where", "cifar100", "--json"], capsys, code=1)
    assert json.loads(out) == {"name": "cifar100", "path": None}
    out, err = printed(["data", "where", "digits"], capsys)
    assert Path(out.rstrip("\n")).is_dir()
    assert err == ""


# -- stdout and stderr ------------------------------------------------------------------------------------------------


def test_results_go_to_stdout_and_progress_to_stderr(tmp_path: Path, capsys) -> None:
    compare = ["compare", *SMALL, *ONE, "--out", str(tmp_path / "compared")]
    out, err = printed(compare, capsys)
    assert "[1/1] orderdp 50%, seed 0: " in err
    assert "[1/1]" not in out
    assert str(tmp_path / "compared" / "report.html") in out
    out, err = printed(compare, capsys)
    assert "1 of 1 runs are finished already." in err
    assert "already" not in out
    train = ["train", *SMALL, "--prune-ratio", "0.5", "--out", str(tmp_path / "trained")]
    out, err = printed(train, capsys)
    assert re.fullmatch(r"orderdp 50%, seed 0: \d+\.\d\d %, 5\d\.\d% fewer samples, .* s\n", out)
    assert "Records are in" in err
    quiet, _ = printed([*train, "--resume", "--quiet"], capsys)
    assert quiet == out


def tables(text: str) -> list[list[list[str]]]:
    """The tables of an output, each with its lines, and each line with its cells."""
    found: list[list[list[str]]] = [[]]
    for line in text.splitlines():
        if "\t" in line:
            assert "  " not in line, line
            found[-1].append(line.split("\t"))
        elif found[-1]:
            found.append([])
    return [table for table in found if table]


PLAN = ["plan", "--samples", "1000", "--prune-ratio", "0.4", "--epochs", "3", "--batch-size", "10"]


@pytest.mark.parametrize(
    ("command", "names"),
    [
        (["policies"], [(name, summary(name)) for name in NAMES]),
        (["coreset", "--list"], [(name, method_summary(name)) for name in METHODS]),
        (["data"], [(name,) for name in DATASETS]),
        (["reproduce", "--list"], [(suite.id, suite.shows) for suite in SUITES.values()]),
        (["reproduce", "table-toy"], []),
        (PLAN, [("trained on each epoch", "600", "exploitation 0.682")]),
    ],
    ids=["policies", "coreset", "data", "reproduce", "toy", "plan"],
)
def test_tables_in_a_pipe_are_separated_by_tabs_without_padding(command, names, capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")  # a pipe has no width to wrap at
    out, _ = printed(command, capsys)
    found = tables(out)
    assert found
    for table in found:
        assert len({len(line) for line in table}) == 1  # an empty cell at the end is a cell
    lines = [tuple(line) for table in found for line in table]
    for cells in names:
        assert cells in [line[: len(cells)] for line in lines]


def test_the_tables_of_runs_in_a_pipe_are_separated_by_tabs_without_padding(tmp_path: Path, capsys) -> None:
    out, _ = printed(["compare", *SMALL, *ONE, "--out", str(tmp_path)], capsys)
    ((header, row),) = tables(out)
    assert header[:3] == ["", "accuracy %", "samples"]
    assert row[0] == "orderdp 50%"
    out, _ = printed(["advise", str(tmp_path)], capsys)
    ((header, row),) = tables(out)
    assert header == ["", "epoch: share", "up to"]
    assert row[0] == "orderdp 50%, seed 0"


def test_a_pipe_gets_tables_without_padding() -> None:
    line = [sys.executable, "-m", "orderdp", *PLAN]
    done = subprocess.run(line, capture_output=True, text=True, check=True, timeout=180)
    assert ["steps in all", "180", "120 saved"] in [cells for table in tables(done.stdout) for cells in table]


def test_the_data_sets_are_listed_without_an_action(capsys) -> None:
    assert printed(["data"], capsys) == printed(["data", "list"], capsys)


# -- JSON and CSV -----------------------------------------------------------------------------------------------------


def test_a_comparison_as_json_is_the_only_thing_on_stdout(tmp_path: Path, capsys) -> None:
    policies = ["--policies", "orderdp", "--prune-ratios", "0.5", "--seeds", "0,1"]
    out, err = printed(["compare", *SMALL, *policies, "--json", "--out", str(tmp_path)], capsys)
    found = json.loads(out)
    assert "[8/8]" in err
    assert found["page"] == str(tmp_path / "report.html")
    (task,) = found["tasks"]
    assert task["metric"] == {"name": "accuracy", "unit": "%", "higher_is_better": True}
    by_label = {row["label"]: row for row in task["rows"]}
    assert list(by_label) == ["full data", "orderdp 50%", "random 50%", "fewer epochs 50%"]
    own = by_label["orderdp 50%"]
    metrics = [run.final_metric for run in read_runs(tmp_path) if run.config["policy"] == "orderdp"]
    assert own["metric"] == pytest.approx(sum(metrics) / 2)
    assert own["seeds"] == [0, 1]
    difference = own["against_full"]
    assert difference["estimate"] == pytest.approx(own["metric"] - by_label["full data"]["metric"])
    assert difference["low"] < difference["estimate"] < difference["high"]
    reported, _ = printed(["report", str(tmp_path), "--json"], capsys)
    assert json.loads(reported) == {"tasks": found["tasks"]}


def test_a_search_as_json_has_what_it_tried(tmp_path: Path, capsys) -> None:
    search = ["--policies", "orderdp", "--find-lossless", "--resolution", "0.9", "--seeds", "0,1", "--json"]
    out, err = printed(["compare", *SMALL, *search, "--out", str(tmp_path)], capsys)
    (found,) = json.loads(out)["find_lossless"]
    assert found["method"] == "orderdp"
    assert [trial["prune_ratio"] for trial in found["trials"]] == [0.9]
    assert "orderdp 90%: " in err


def test_a_report_as_json_or_csv_writes_no_page(study: Path, capsys) -> None:
    before = set(study.rglob("*"))
    found = json.loads(printed(["report", str(study), "--json"], capsys)[0])
    lines = list(csv.DictReader(io.StringIO(printed(["report", str(study), "--csv"], capsys)[0])))
    assert set(study.rglob("*")) == before
    rows = found["tasks"][0]["rows"]
    assert [line["label"] for line in lines] == [row["label"] for row in rows]
    for line, row in zip(lines, rows, strict=True):
        assert float(line["metric"]) == row["metric"]
        assert int(line["seeds"]) == len(row["seeds"])
        assert line["verdict"] == row["verdict"]
        low = None if row["against_full"] is None else row["against_full"]["low"]
        assert (float(line["against_full_low"]) if line["against_full_low"] else None) == low
    failed = next(row for row in rows if row["policy"] == "orderdp")
    assert (failed["seeds"], failed["failed"]) == ([0, 1], [2])


def test_one_form_of_a_report_at_a_time(study: Path, capsys) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["report", str(study), "--json", "--csv"])
    assert "not allowed with" in capsys.readouterr().err


def test_lists_as_json(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("ORDERDP_DATA", str(tmp_path))
    listed = json.loads(printed(["policies", "--json"], capsys)[0])
    assert [entry["name"] for entry in listed] == [*NAMES, *RECORDED]
    one = json.loads(printed(["policies", "ucb", "--json"], capsys)[0])
    assert (one["name"], one["summary"]) == ("ucb", summary("ucb"))
    assert one["card"].startswith("# ucb\n")
    methods = json.loads(printed(["coreset", "--list", "--json"], capsys)[0])
    assert [entry["name"] for entry in methods] == list(METHODS)
    data = {entry["name"]: entry for entry in json.loads(printed(["data", "--json"], capsys)[0])}
    assert list(data) == list(DATASETS)
    assert data["fashion-mnist"]["train_samples"] == 60_000
    assert data["fashion-mnist"]["shape"][-2:] == [28, 28]
    suites = {entry["id"]: entry for entry in json.loads(printed(["reproduce", "--list", "--json"], capsys)[0])}
    assert suites.keys() >= {*SUITES, "table-toy", "fig-weights-sum"}
    smoke = suites["table-dynamic"]["scales"]["smoke"]
    assert smoke["runs"] > 0
    assert smoke["data"] == ["digits"]
    for name in ("table-dynamic", "table-toy"):
        assert json.loads(printed(["reproduce", name, "--list", "--json"], capsys)[0]) == suites[name]
    assert "--json prints the list" in printed(["reproduce", "table-toy", "--json"], capsys, code=2)[1]


def test_a_coreset_as_json(tmp_path: Path, capsys) -> None:
    import numpy as np

    features, out = tmp_path / "features.npz", tmp_path / "coreset.npz"
    np.savez(features, features=np.random.default_rng(0).standard_normal((50, 4)).astype(np.float32))
    own = ["--from-features", str(features), "--prune-ratio", "0.8", "--out", str(out), "--json"]
    found = json.loads(printed(["coreset", "--method", "k-center", *own], capsys)[0])
    assert (found["file"], found["samples"], found["prune_ratio"]) == (str(out), 10, 0.8)


def test_the_card_of_a_coreset_method_is_printed(capsys) -> None:
    assert printed(["coreset", "--card", "el2n"], capsys)[0] == method_card("el2n") + "\n"
    assert json.loads(printed(["coreset", "--card", "el2n", "--json"], capsys)[0])["card"] == method_card("el2n")
    assert "Did you mean 'el2n'?" in printed(["coreset", "--card", "el3n"], capsys, code=2)[1]


# -- what is typed ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "answer"),
    [
        (["trian"], "there is no command 'trian'. Did you mean 'train'?"),
        (["nonsense"], "there is no command 'nonsense'. There are plan, train, "),
        (["compare", "--polices", "orderdp", "--out", "x"], "no option --polices. Did you mean '--policies'?"),
        (["data", "--xyz"], "there is no option --xyz. `orderdp "),
        (["plan", "--samples", "9", "--epochs", "1", "--batch-size", "1", "more"], "unrecognized arguments: more"),
        (
            ["plan", "--samples", "9", "--epochs", "1", "--batch-size", "1", "--prune-ratio", "40%"],
            "--prune-ratio: must be in [0, 1), got 40%. It is a fraction, not a percentage. Give 0.4.",
        ),
        (["train", "--prune-ratio", "a", "--out", "x"], "must be a number in [0, 1), got 'a'"),
    ],
)
def test_what_is_mistyped_is_answered_with_what_is_near(typed: list[str], answer: str, capsys) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(typed)
    assert answer in capsys.readouterr().err


@pytest.mark.parametrize(
    ("typed", "answer"),
    [
        (["--prune-ratios", "30%,50%"], "--prune-ratios: must be in [0, 1), got 30%. It is a fraction"),
        (["--prune-ratios", "30"], "--prune-ratios must be in [0, 1), got 30.0. It is a fraction, not a percentage."),
        (["--seeds", "4-0"], "--seeds must be numbers separated by commas, or ranges such as 0-4, got '4-0'."),
        (["--seeds", "a"], "--seeds must be numbers separated by commas, or ranges"),
        (["--seeds", "0-99999999"], "--seeds must be numbers separated by commas, or ranges"),
        (["--batch-size", "0"], "--batch-size must be a whole number, at least 1, got 0."),
        (["--lr", "-1"], "--lr must be a number, at least 0, got -1.0."),
        (["--label-smoothing", "2"], "--label-smoothing must be in [0, 1), got 2.0."),
        (["--flip", "alternate", "--no-augment"], "--flip alternate needs training images"),
    ],
)
def test_errors_of_a_comparison_have_the_names_of_its_options(
    typed: list[str], answer: str, tmp_path: Path, capsys
) -> None:
    assert answer in printed(["compare", "--data", "digits", *typed, "--out", str(tmp_path)], capsys, code=2)[1]


def test_an_error_about_a_value_of_a_file_has_the_name_that_the_file_has(tmp_path: Path, capsys) -> None:
    file = tmp_path / "run.toml"
    file.write_text("batch_size = 0\n")
    command = ["train", "--data", "digits", "--config", str(file), "--out", str(tmp_path / "out")]
    assert "orderdp train: batch_size must be" in printed(command, capsys, code=2)[1]
    file.write_text("")
    assert "orderdp train: --batch-size must be" in printed([*command, "--batch-size", "0"], capsys, code=2)[1]


def test_a_range_of_seeds_has_both_ends(tmp_path: Path, capsys) -> None:
    command = ["compare", *SMALL, "--policies", "full", "--no-controls", "--seeds", "0-2,5", "--out", str(tmp_path)]
    printed(command, capsys)
    assert sorted(run.seed for run in read_runs(tmp_path)) == [0, 1, 2, 5]


def test_data_and_model_that_are_not_given_are_named(tmp_path: Path, capsys) -> None:
    command = ["train", "--prune-ratio", "0.5", "--epochs", "1", "--device", "cpu"]
    width = ["--width", "4"]
    _, err = printed([*command, *width, "--out", str(tmp_path / "a")], capsys)
    assert "Not given, so the default is used: --data digits and --model cnn." in err
    _, err = printed([*command, *width, "--model", "mlp", "--out", str(tmp_path / "b")], capsys)
    assert "Not given, so the default is used: --data digits." in err
    (tmp_path / "c.toml").write_text('data = "digits"\nmodel = "mlp"\n')
    _, err = printed([*command, *width, "--config", str(tmp_path / "c.toml"), "--out", str(tmp_path / "c")], capsys)
    assert "default" not in err


def test_the_version_has_a_short_option(capsys) -> None:
    assert printed(["-V"], capsys) == printed(["--version"], capsys)


# -- tasks of one's own -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_the_traceback_of_a_task_has_no_frames_of_libraries(tmp_path: Path, jobs: str) -> None:
    root = Path(__file__).parents[2]
    (tmp_path / "broken.py").write_text(
        "import torch\nfrom examples.own_task import make as plain\n\n\n"
        "class Broken(type(plain())):\n    def losses(self, model, batch):\n        return helper(batch)\n\n\n"
        "def helper(batch):\n    return torch.nn.functional.cross_entropy(batch[0], 'no target')\n\n\n"
        "def make():\n    return Broken()\n"
    )
    options = ["--policies", "full", "--no-controls", "--seeds", "0,1", "--epochs", "1", "--device", "cpu"]
    line = [sys.executable, "-m", "orderdp", "compare", "--task", "broken.py:make", *options, "--jobs", jobs]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*map(str, (root / "src", root))])}
    done = subprocess.run(
        [*line, "--out", "out"], capture_output=True, text=True, timeout=600, env=environment, cwd=tmp_path, check=False
    )
    assert done.returncode == 1
    files = re.findall(r'File "(.*)", line', done.stderr)
    assert [Path(file).name for file in files] == ["broken.py", "broken.py"], done.stderr
    assert "orderdp compare: your code raised an error." in done.stderr
    assert "return helper(batch)" in done.stderr
    assert "TypeError: " in done.stderr


def test_an_error_of_the_library_itself_keeps_its_traceback(monkeypatch) -> None:
    from orderdp.policies import registry

    monkeypatch.setattr(registry, "NAMES", None)
    with pytest.raises(TypeError):
        main(["policies"])


# -- bars -------------------------------------------------------------------------------------------------------------


def screen(text: str) -> list[str]:
    """What a terminal shows of a text: lines, cursor up, erased lines."""
    lines, row = [""], 0
    for part in re.findall(r"\x1b\[[?0-9;]*[A-Za-z]|\r|\n|[^\x1b\r\n]+", text):
        if part == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif part == "\x1b[2K":
            lines[row] = ""
        elif re.fullmatch(r"\x1b\[\d*A", part):
            row -= int(part[2:-1] or 1)
        elif part[0] not in "\x1b\r":
            lines[row] += part
    return lines


def test_no_line_is_lost_under_the_bars(monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    before = threading.active_count()
    seconds = dict.fromkeys(("training_seconds", "selection_seconds", "overhead_seconds"), 2.0)
    with show_progress(40, 0, quiet=False) as progress:
        assert threading.active_count() == before  # nothing draws while a line is printed
        for seed in range(40):
            run = Settings(data="digits", model="mlp", policy="full", seed=seed)
            progress.watch(run, 1.0, 2, 88.0)
            progress.ended(run, {"status": "done", "metric": 90.0, "saved": 0.0, **seconds})
    captured = capsys.readouterr()
    assert captured.out == ""
    shown = [line for line in screen(captured.err) if "90.00 %" in line]
    assert [re.search(r"seed (\d+)", line)[1] for line in shown] == [str(seed) for seed in range(40)]
    assert any("all 40 runs" in line for line in screen(captured.err))


# -- completion -------------------------------------------------------------------------------------------------------


def completed(line: str) -> list[str]:
    """What bash offers at the end of a line."""
    words = line.split(" ")
    script = (
        f'eval "$({sys.executable} -m orderdp completion bash)"\n'
        f"COMP_WORDS=({' '.join(repr(word) for word in words)})\nCOMP_CWORD={len(words) - 1}\n_orderdp\n"
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, timeout=180)
    return done.stdout.split()


def test_bash_completes_commands_options_and_choices() -> None:
    assert completed("orderdp co") == ["compare", "coreset", "completion"]
    assert completed("orderdp compare --find") == ["--find-lossless"]
    assert completed("orderdp data ") == ["list", "fetch", "where", "-h", "--help", "--data-dir", "--json"]
    assert completed("orderdp -") == ["-h", "--help", "-V", "--version"]


def test_zsh_and_fish_get_a_script_with_every_command(capsys) -> None:
    for shell in ("zsh", "fish"):
        script, _ = printed(["completion", shell], capsys)
        for name in ("plan", "train", "compare", "completion"):
            assert name in script
        assert "--prune-ratios" in script
    assert script.splitlines()[0].startswith("complete -c orderdp -n __fish_use_subcommand -a 'plan train ")


@pytest.mark.parametrize(
    "typed",
    [
        ["completion", "bash"],
        ["--help"],
        ["compare", "--help"],
        ["plan", "--samples", "9", "--prune-ratio", "0.4", "--epochs", "1", "--batch-size", "1"],
    ],
    ids=" ".join,
)
def test_what_needs_no_torch_imports_none(typed: list[str]) -> None:
    code = "import sys; from orderdp.cli import main\ntry: main(sys.argv[1:])\nexcept SystemExit: pass\n"
    code += "sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code, *typed], check=True, timeout=180, capture_output=True)


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (["compare", "--sedes", "0", "--out", "a"], "orderdp compare: there is no option --sedes. Did you mean"),
        (["train", "--epochs", "x", "--out", "a"], "orderdp train: --epochs: invalid int value: 'x'."),
        (["train"], "orderdp train: the following arguments are required: --out."),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_bad_usage_is_said_in_one_line(typed: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(typed)
    assert stopped.value.code == 2
    errors = capsys.readouterr().err
    assert errors.startswith(said)
    assert errors.count("\n") == 1
    assert f"`orderdp {typed[0]} --help` shows the options." in errors


# -- Ctrl-C -----------------------------------------------------------------------------------------------------------


def test_ctrl_c_while_workers_import_leaves_no_traceback(tmp_path: Path) -> None:
    options = ["--policies", "full", "--no-controls", "--seeds", "0,1", "--jobs", "2", "--epochs", "1000"]
    process = subprocess.Popen(
        [sys.executable, "-m", "orderdp", "compare", *SMALL, *options, "--out", str(tmp_path)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # a terminal sends Ctrl-C to the whole group
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        _wait_for_workers(process)
        time.sleep(0.5)  # they import torch, which takes longer
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=180)
    finally:
        process.kill()
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    assert "Interrupted; saved." in errors


def _wait_for_workers(process: subprocess.Popen) -> None:
    if not Path("/proc").is_dir():
        time.sleep(4)
        return
    for _ in range(6000):
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        found = [Path(f"/proc/{child}/cmdline").read_bytes() for child in children if Path(f"/proc/{child}").exists()]
        if sum(b"spawn_main" in line for line in found) >= 1:
            return
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.01)
    raise AssertionError("no worker was started")
