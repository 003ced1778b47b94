"""Functions that the commands share: output, progress, the options of a run, and running many runs."""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import shlex
import sys
import sysconfig
import time
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from orderdp.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orderdp.experiments.config import DiagnosticLevel, RunOptions, Settings
    from orderdp.experiments.records import Run, RunRecords

__all__ = [
    "Command",
    "Progress",
    "add_json",
    "add_run_options",
    "as_ratio",
    "command_line",
    "complain",
    "in_option_names",
    "name_defaults",
    "numbers",
    "outcome",
    "result_text",
    "run_all",
    "run_options",
    "say",
    "say_json",
    "seeds_of",
    "settings_of",
    "show_progress",
    "without_library_frames",
]


class Command(NamedTuple):
    """A command.

    Attributes:
        name: Its name.
        summary: What it does, in a line.
        description: What it does, with examples.
        add: Adds its arguments to a parser.
        run: Runs it; returns the exit code, None for 0.
    """

    name: str
    summary: str
    description: str
    add: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int | None]


def say(text: str) -> None:
    """Print a line to stdout."""
    print(text, flush=True)  # noqa: T201


def complain(text: str) -> None:
    """Print a line to stderr: an error, a note, or progress."""
    print(text, file=sys.stderr, flush=True)  # noqa: T201


def add_json(parser: argparse._ActionsContainer) -> None:
    """Add the option ``--json``."""
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def say_json(value: Any) -> None:
    """Print a value as one line of JSON; NaN and infinity become null."""
    from orderdp.experiments.records import plain

    say(json.dumps(plain(value), allow_nan=False, ensure_ascii=False))


_ASSIGNED = r"=(?:'([^']*)'|([^\s,;:.]+(?:\.\d+)?))"


def in_option_names(message: str, options: argparse.Namespace) -> str:
    """Return an error message with the names of options in place of those of parameters.

    Names in quotes and in code are left alone, and so are names that a file may have set.
    """
    names = _option_names(options)
    for name, option in names.items():
        start = rf"(?<![\w.('\"-]){name}"
        message = re.sub(start + _ASSIGNED, partial(_with_value, option), message)
        # A word such as "epochs" is a name only where something is said about its value.
        message = re.sub(start + (r"\b(?!=)" if "_" in name else r"\b(?= must | needs |: was )"), option, message)
    return message


def _with_value(option: str, found: re.Match[str]) -> str:
    return f"{option} {found[1] or found[2]}"


def _option_names(options: argparse.Namespace) -> dict[str, str]:
    parser: argparse.ArgumentParser | None = getattr(options, "parser", None)
    named = {}
    for action in () if parser is None else parser._actions:
        if not action.option_strings or isinstance(action, argparse._StoreFalseAction):
            continue
        if getattr(options, "config", None) is not None and not hasattr(options, action.dest):
            continue
        named[action.dest] = action.option_strings[-1]
        if action.dest in ("prune_ratios", "seeds"):  # a comparison varies them; a message is about one
            named[action.dest[:-1]] = action.option_strings[-1]
    return named


def without_library_frames(error: BaseException) -> str | None:
    """Return the traceback of an error without the frames of libraries; None if there are no others.

    An error in a worker process has its traceback as text.
    """
    remote = getattr(error.__cause__, "tb", None)
    lines = str(remote).strip('\n"').splitlines() if remote else "".join(traceback.format_exception(error)).splitlines()
    kept, dropping, n_frames = [], False, 0
    for line in lines:
        frame = re.match(r'  File "(.*)", line \d+', line)
        if frame:
            dropping = ", in " in line and _of_a_library(frame[1])
            n_frames += not dropping
        elif not line.startswith("    "):
            dropping = False
        if not dropping:
            kept.append(line)
    return "\n".join(kept) if n_frames else None


def _of_a_library(file: str) -> bool:
    paths = sysconfig.get_paths()
    folders = [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    folders += [str(Path(__file__).parents[1]), str(Path(__file__).parents[1].with_name("orderdp_paper"))]
    return file.startswith("<") or any(Path(file).is_relative_to(folder) for folder in folders)


_NUMBERS: dict[str, tuple[type, str, str]] = {
    "epochs": (int, "N", "number of epochs of full data (default 10)"),
    "batch_size": (int, "N", "samples per batch (default 128)"),
    "width": (int, "N", "channels of the first layer, for models that have a width"),
    "lr": (float, "X", "largest learning rate (default 0.1)"),
    "momentum": (float, "X", "momentum of SGD and LARS (default 0.9)"),
    "weight_decay": (float, "X", "weight decay (default 0.0005)"),
    "label_smoothing": (float, "X", "fraction of the target that is spread over all classes (default 0)"),
    "mixup": (float, "ALPHA", "alpha of MixUp, which blends images in pairs; scores use the sample's own label"),
    "cutmix": (float, "ALPHA", "alpha of CutMix, which pastes a part of another image"),
    "accumulate": (int, "N", "batches per optimizer step (default 1)"),
    "evaluate_every": (int, "N", "epochs between tests (default 1)"),
    "proxy_epochs": (int, "N", "epochs that the proxy of static methods is trained (default 10)"),
    "proxy_inits": (int, "N", "number of proxies, for methods that average over several (default 1)"),
}


_SWITCHES = {
    "nesterov": "Nesterov momentum for SGD",
    "average": "test the average of all iterates, weighted by the learning rate",
    "amp": "use mixed precision",
    "channels_last": "use the channels-last memory format",
    "compile": "compile the model",
}


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that ``train`` and ``compare`` share. An unset option is left to the preset and the file."""
    unset = argparse.SUPPRESS
    what = parser.add_argument_group("what is trained")
    what.add_argument(
        "--data", default=unset, metavar="D", help="data set: name or path, with modifiers; see orderdp data"
    )
    what.add_argument(
        "--model", default=unset, metavar="M", help="mlp, cnn, vit, resnet18, resnet50, timm:NAME, module:factory"
    )
    what.add_argument(
        "--task", default=unset, metavar="MODULE:FACTORY", help="factory of your own data, model, loss and metric"
    )
    what.add_argument(
        "--also-test", metavar="D,D", help="further test sets for the trained models, such as digits?corrupt=noise:3"
    )
    how = parser.add_argument_group("how it is trained")
    how.add_argument("--preset", metavar="P", help="named settings to start from: cpu, paper-cifar-resnet18, ...")
    how.add_argument(
        "--config", type=Path, metavar="FILE", help="settings as TOML; options of the command line override it"
    )
    how.add_argument("--optimizer", default=unset, metavar="O", help="sgd, adamw, lars or lamb (default sgd)")
    how.add_argument(
        "--schedule", default=unset, metavar="S", help="onecycle, cosine, step or constant (default onecycle)"
    )
    for name, (kind, metavar, text) in _NUMBERS.items():
        how.add_argument(f"--{name.replace('_', '-')}", type=kind, default=unset, metavar=metavar, help=text)
    for name, text in _SWITCHES.items():
        how.add_argument(f"--{name.replace('_', '-')}", action="store_true", default=unset, help=text)
    how.add_argument(
        "--steps",
        default=unset,
        metavar="fewer|same",
        help="fewer: a pruned epoch has fewer steps (default); same: as many steps as full data, with batch size and "
        "learning rate multiplied by the kept fraction; the controls alike",
    )
    how.add_argument(
        "--keep-last", dest="drop_last", action="store_false", default=unset, help="train on incomplete last batches"
    )
    how.add_argument(
        "--flip",
        default=unset,
        metavar="F",
        help="'random', or 'alternate': mirror a sample every second time it is used",
    )
    how.add_argument("--no-augment", dest="augment", action="store_false", default=unset, help="do not augment images")
    where = parser.add_argument_group("where")
    where.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="output folder: records, checkpoints, report"
    )
    where.add_argument("--data-dir", type=Path, metavar="DIR", help="folder that is searched for data first")
    where.add_argument(
        "--device", default="auto", metavar="NAME", help="cpu, cuda, ... (default: a GPU if there is one)"
    )
    where.add_argument("--threads", type=int, metavar="N", help="number of torch threads in each process")
    where.add_argument(
        "--checkpoint-seconds", type=float, default=30.0, metavar="S", help="seconds between checkpoints (default 30)"
    )
    where.add_argument("--tensorboard", action="store_true", help="also write TensorBoard logs")
    for name, title, place in (("wandb", "Weights & Biases", "PROJECT"), ("mlflow", "MLflow", "EXPERIMENT")):
        where.add_argument(
            f"--{name}", nargs="?", const="orderdp", metavar=place, help=f"also log to {title} (default: orderdp)"
        )
    where.add_argument(
        "--diagnose",
        nargs="?",
        type=_diagnose,
        default=False,
        const=True,
        metavar="HOW",
        help="also diagnose gradients and kept sets, not counted in the times of a run; 'steps': the gradient of each "
        "step; 'all' (default): also the gradient of all data, up to 10 passes over them",
    )
    where.add_argument("--quiet", action="store_true", help="show no progress")


def _diagnose(text: str) -> DiagnosticLevel:
    if text not in ("steps", "all"):
        raise argparse.ArgumentTypeError(f"invalid choice: {text!r} (choose from 'steps', 'all')")
    return "steps" if text == "steps" else True


def settings_of(options: argparse.Namespace, *, varied: bool = False, **own: Any) -> Settings:
    """Return the settings: those of the preset, overridden by the file, overridden by the command line.

    Args:
        options: Parsed options.
        varied: Whether the command varies policies, ratios and seeds, so that a file must not set them.
        **own: Further settings, which override all others.
    """
    from orderdp.experiments.config import VARIED, Settings, preset_values, read_config

    names = {"data", "model", "task", "optimizer", "schedule", "augment", "flip", "drop_last", "steps"}
    names |= {*_NUMBERS, *_SWITCHES}
    given = {name: value for name, value in vars(options).items() if name in names}
    from_file = {} if options.config is None else read_config(options.config)
    wrong = [name for name in VARIED if name in from_file] if varied else []
    if wrong:
        raise ConfigError(
            f"{str(options.config)!r} sets {' and '.join(map(repr, wrong))}, which a comparison varies. Leave it out "
            "there, and give --policies, --prune-ratios and --seeds."
        )
    chosen = {**preset_values(options.preset), **from_file, **given, **own}
    options.left_out = [name for name in ("data", "model") if name not in chosen]
    return Settings.from_dict(chosen)


def name_defaults(options: argparse.Namespace, settings: Settings) -> None:
    """Name the data and the model that are trained because neither the command line nor a file says which."""
    if options.left_out and settings.task is None and not options.quiet:
        names = " and ".join(f"--{name} {getattr(settings, name)}" for name in options.left_out)
        complain(f"Not given, so the default is used: {names}.")


def run_options(options: argparse.Namespace) -> RunOptions:
    """Return the run options of the command line; options that a command does not have keep their defaults."""
    from orderdp.experiments.config import RunOptions

    names = {field.name for field in dataclasses.fields(RunOptions)}
    given = {name: value for name, value in vars(options).items() if name in names}
    tests = (getattr(options, "also_test", None) or "").split(",")
    given["tests"] = tuple(name.strip() for name in tests if name.strip())
    given["command"] = command_line()  # in place of the command's name
    return RunOptions(**given)


def command_line() -> str:
    """Return the command line as text."""
    return shlex.join(["orderdp", *sys.argv[1:]])


def run_all(runs: Sequence[Settings], options: RunOptions, records: RunRecords) -> list[Run]:
    """Run all unfinished runs, test them on further test sets, and return the records of all runs."""
    from orderdp.experiments.runner import compare_all

    done = sum(records.finished(settings.run_id) is not None for settings in runs)
    if done and not options.quiet:
        complain(f"{done} of {len(runs)} runs are finished already.")
    if done < len(runs):
        with show_progress(len(runs), done, quiet=options.quiet) as progress:
            for settings, summary in compare_all(runs, options, records=records, watch=progress.watch):
                progress.ended(settings, summary)
    for data in options.tests:
        _evaluate(runs, options, records, data)
    return [run for settings in runs if (run := records.get(settings.run_id)) is not None]


def _evaluate(runs: Sequence[Settings], options: RunOptions, records: RunRecords, data: str) -> None:
    from orderdp.experiments.runner import evaluate_all, not_evaluated

    waiting = not_evaluated(runs, records, data)
    if waiting and not options.quiet:
        complain(f"Testing {len(waiting)} trained model{'s' * (len(waiting) > 1)} on {data}.")
    for _ in evaluate_all(waiting, dataclasses.replace(options, tests=(data,)), records=records):
        pass


def numbers(text: str, kind: Callable[[str], Any], option: str) -> list[Any]:
    """Parse the numbers in an option."""
    try:
        return [kind(part) for part in text.split(",") if part.strip()]
    except argparse.ArgumentTypeError as error:
        raise ConfigError(f"{option}: {error}") from None
    except ValueError:
        raise ConfigError(f"{option} must be numbers separated by commas, got {text!r}.") from None


def as_ratio(text: str) -> float:
    """Parse a prune ratio; a percentage is an error that says which fraction it is.

    >>> as_ratio("0.4")
    0.4
    """
    percent = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*%\s*", text)
    if percent:
        meant = f" Give {float(percent[1]) / 100:g}." if float(percent[1]) < 100 else ""
        raise argparse.ArgumentTypeError(f"must be in [0, 1), got {text}. It is a fraction, not a percentage.{meant}")
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number in [0, 1), got {text!r}.") from None


_MOST_SEEDS = 10_000


def seeds_of(text: str) -> list[int]:
    """Parse seeds: numbers, and ranges with both ends.

    >>> seeds_of("0-2,7")
    [0, 1, 2, 7]
    """
    seeds: list[int] = []
    for part in filter(None, map(str.strip, text.split(","))):
        ends = re.fullmatch(r"(\d+)(?:\s*-\s*(\d+))?", part)
        first, last = (int(ends[1]), int(ends[2] or ends[1])) if ends else (1, 0)
        if not 0 <= last - first < _MOST_SEEDS:
            raise ConfigError(f"--seeds must be numbers separated by commas, or ranges such as 0-4, got {text!r}.")
        seeds += range(first, last + 1)
    return seeds


_EVERY = 10.0  # seconds between plain lines


_REDRAWN = 0.1  # seconds between drawings of bars


class Progress:
    """Shows nothing, as `--quiet` asks for; the base class of the other displays."""

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Restore the terminal."""

    def watch(self, run: Settings, done: float, epochs: int, metric: float | None) -> None:
        """Show that `done` of `epochs` epochs of a run are done."""

    def ended(self, run: Settings, summary: dict[str, Any]) -> None:
        """Show that a run has ended."""


class _Lines(Progress):
    def __init__(self, n_runs: int, n_done: int) -> None:
        self._n_runs = n_runs
        self._n_done = n_done
        self._start = self._said = time.monotonic()
        self._n_before = n_done

    def watch(self, run: Settings, done: float, epochs: int, metric: float | None) -> None:
        if time.monotonic() - self._said < _EVERY:
            return
        self._said = time.monotonic()
        so_far = "" if metric is None else f", {metric:.2f}{_percent(run)}"
        complain(f"  {run.label}, seed {run.seed}: epoch {done:.1f} of {epochs}{so_far}")

    def ended(self, run: Settings, summary: dict[str, Any]) -> None:
        self._n_done += 1
        self._said = time.monotonic()
        each = (time.monotonic() - self._start) / (self._n_done - self._n_before)
        n_left = self._n_runs - self._n_done
        left = f"; about {_duration(each * n_left)} left" if n_left else ""
        complain(f"[{self._n_done}/{self._n_runs}] {outcome(run, summary)}{left}")


class _Bars(Progress):
    def __init__(self, n_runs: int, n_done: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        self._bars = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            auto_refresh=False,  # rich's thread may draw the bars over a line that is being printed
        )
        self._drawn = 0.0
        self._all = self._bars.add_task(f"all {n_runs} runs", total=n_runs, completed=n_done)
        self._own: dict[str, Any] = {}
        self._share: dict[str, float] = {}
        self._n_done = n_done

    def __enter__(self) -> Progress:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def watch(self, run: Settings, done: float, epochs: int, metric: float | None) -> None:
        if run.run_id not in self._own:
            self._own[run.run_id] = self._bars.add_task("", total=epochs)
        so_far = "" if metric is None else f"  {metric:.2f}{_percent(run)}"
        text = f"{run.label}, seed {run.seed}{so_far}"
        self._bars.update(self._own[run.run_id], completed=done, description=text)
        self._share[run.run_id] = done / epochs
        self._bars.update(self._all, completed=self._n_done + sum(self._share.values()))
        if time.monotonic() - self._drawn > _REDRAWN:
            self._bars.refresh()
            self._drawn = time.monotonic()

    def ended(self, run: Settings, summary: dict[str, Any]) -> None:
        self._n_done += 1
        self._share.pop(run.run_id, None)
        own = self._own.pop(run.run_id, None)
        if own is not None:
            self._bars.remove_task(own)
        self._bars.update(self._all, completed=self._n_done + sum(self._share.values()))
        self._bars.console.print(outcome(run, summary), highlight=False, markup=False, soft_wrap=True)
        self._bars.refresh()


def _percent(run: Settings) -> str:
    return " %" if run.task is None else ""  # only the records of a finished run have the unit of a user's task


def show_progress(n_runs: int, n_done: int, *, quiet: bool) -> Progress:
    """Return the display that suits stderr: a terminal, a file, or none."""
    if quiet:
        return Progress()
    if sys.stderr.isatty():
        try:
            return _Bars(n_runs, n_done)
        except ImportError:  # bars need an optional package
            pass
    return _Lines(n_runs, n_done)


def outcome(run: Settings, summary: Mapping[str, Any]) -> str:
    """Return the result of a run in a line."""
    from orderdp.experiments.records import seconds_of

    name = f"{run.label}, seed {run.seed}"
    if summary["status"] != "done":
        return f"{name}: failed, {summary.get('reason')}"
    return f"{name}: {result_text(summary)}, {_duration(seconds_of(dict(summary)))}"


def result_text(summary: Mapping[str, Any]) -> str:
    """Format the result of a finished run: its metric, which may be missing, and what it saved."""
    unit = summary.get("metric_unit", "%")
    digits = ".2f" if unit == "%" else ".4g"
    metric = (
        "its metric is not a number" if summary["metric"] is None else f"{summary['metric']:{digits}} {unit}".rstrip()
    )
    proxy = summary.get("proxy_samples")
    told = f", and {proxy['forward']:,} through a proxy, {proxy['backward']:,} of them back" if proxy else ""
    return f"{metric}, {summary['saved']:.1%} fewer samples{told}"


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
