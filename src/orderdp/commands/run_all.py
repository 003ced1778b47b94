"""A grid of runs with its progress on the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orderdp.commands.saying import say
from orderdp.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orderdp.workbench.comparing import Place
    from orderdp.workbench.records import Run
    from orderdp.workbench.settings import Settings

__all__ = ["numbers", "run_all"]


def run_all(runs: Sequence[Settings], place: Place, *, jobs: int, quiet: bool, tests: Sequence[str] = ()) -> list[Run]:
    """Runs what is not finished yet, judges it on further test sets, and returns the records of all."""
    from orderdp.workbench.comparing import compare_all, finished
    from orderdp.workbench.progress import show_progress
    from orderdp.workbench.records import read_run

    done = sum(finished(place.out, settings) is not None for settings in runs)
    if done and not quiet:
        say(f"{done} of {len(runs)} runs are finished already.")
    if done < len(runs):
        with show_progress(len(runs), done, quiet=quiet, say=say) as progress:
            for settings, summary in compare_all(runs, place, jobs=jobs, watch=progress.watch):
                progress.ended(settings, summary)
    for data in tests:
        _judge(runs, place, data, quiet=quiet)
    return [read_run(place.out / "runs" / settings.run_id) for settings in runs]


def _judge(runs: Sequence[Settings], place: Place, data: str, *, quiet: bool) -> None:
    from orderdp.workbench.further_tests import judge_all, not_judged

    waiting = not_judged(runs, place, data)
    if waiting and not quiet:
        say(f"Testing {len(waiting)} trained model{'s' * (len(waiting) > 1)} on {data}.")
    for _ in judge_all(waiting, place, [data]):
        pass


def numbers(text: str, kind: type, option: str) -> list[Any]:
    """The numbers in an option."""
    try:
        return [kind(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise ConfigError(f"{option} must be numbers separated by commas, got {text!r}.") from None
