"""How far the proxy is: a bar in the terminal by rich, or calls of a function."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

from orderdp.errors import ConfigError

__all__ = ["Progress", "check_progress", "told"]

#: None for silence, True for a bar, or a function of (what, done, total).
Progress: TypeAlias = Callable[[str, int, int], None] | bool | None


def check_progress(progress: Any) -> None:
    """Raises unless `progress` can be used here and now."""
    if progress is True:
        try:
            import rich.progress  # noqa: F401
        except ImportError:
            raise ConfigError("a progress bar needs rich, which is not installed: pip install 'orderdp[cli]'") from None
    elif progress not in (None, False) and not callable(progress):
        raise ConfigError(f"progress must be True, None or a function of (what, done, total), got {progress!r}.")


@contextmanager
def told(progress: Progress, what: str, total: int) -> Iterator[Callable[[], None]]:
    """Gives a function to be called after each of `total` steps."""
    if progress is True:
        with _bar(what, total) as step:
            yield step
        return
    done = 0

    def step_on() -> None:
        nonlocal done
        done += 1
        if callable(progress):
            progress(what, done, total)

    yield step_on


@contextmanager
def _bar(what: str, total: int) -> Iterator[Callable[[], None]]:
    from rich.progress import Progress as Bars

    with Bars(transient=True) as bars:
        task = bars.add_task(what, total=total)
        yield lambda: bars.advance(task)
