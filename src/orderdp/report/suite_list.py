"""What can be reproduced, and what each needs: time, memory, data."""

from __future__ import annotations

from collections.abc import Callable

from orderdp.report import theory_figures, toy
from orderdp.report.tables import show
from orderdp.workbench.suites import Scale, Suite

__all__ = ["describe", "list_suites", "needs"]

_DIAGNOSTICS = {
    False: "It needs no costly diagnostics.",
    "steps": "It looks at the gradient of every step.",
    True: "It switches the costly diagnostics on: up to 10 passes over all data a run.",
}
_SMOKE = "under 15 s"  # on two cores; the tests run them all


def list_suites(say: Callable[[str], None]) -> None:
    """Prints all there are."""
    from orderdp.workbench.suites import SUITES

    rows = [
        (suite.id, suite.shows, _briefly(suite.scales["cpu"]), _briefly(suite.scales["paper"]))
        for suite in SUITES.values()
    ]
    header = ("id", "what it shows", "--scale cpu", "--scale paper")
    show("orderdp reproduce ID --scale S", header, rows, names=True)
    theory = [(name, text) for name, (text, _) in theory_figures.FIGURES.items()]
    show("without runs, in seconds", ("id", "what it shows"), [*theory, ("table-toy", toy.DESCRIPTION)], names=True)
    say(f"smoke: {_SMOKE} each, on digits. cpu: on two cores. paper: on one L40 card.")
    say("Times are estimates, from that of a run with all data. `orderdp reproduce ID --list` says more about one.")


def describe(suite: Suite, say: Callable[[str], None]) -> None:
    """Prints what one suite runs at each scale."""
    say(f"{suite.id}: {suite.shows}")
    say(f"  in the paper: {suite.printed.source}; {suite.printed.setting}.")
    say(f"  its claim: {suite.printed.claim}.")
    for name, scale in suite.scales.items():
        runs = sum(1 for part in scale.parts for _ in part.runs())
        say(f"  --scale {name}: {runs} runs, {needs(scale, smoke=name == 'smoke')}. {scale.differs}")
        for part in scale.parts:
            model = f"{part.base['model']}{_of_width(part.base.get('width'))}"
            ratios = sorted({planned.ratio for planned in part.runs() if planned.ratio is not None})
            shares = ", ".join(f"{100 * ratio:g}" for ratio in ratios)
            names = ", ".join(dict.fromkeys(method.name for method in part.methods))
            say(
                f"    {part.base['data']}, {model}, {part.base['epochs']} epochs, "
                f"{len(part.seeds)} seed{'' if len(part.seeds) == 1 else 's'}, {shares} % left out: {names}"
            )
    say(f"  {_DIAGNOSTICS[suite.diagnose]}")


def needs(scale: Scale, *, smoke: bool = False) -> str:
    """Time, memory and data in a few words."""
    time = _SMOKE if smoke else f"{_rough(scale.seconds)} on {scale.machine}"
    return f"{time}, {scale.memory}, {' and '.join(scale.data)}"


def _briefly(scale: Scale) -> str:
    return f"{_rough(scale.seconds)}, {scale.memory}, {', '.join(scale.data)}"


def _rough(seconds: float) -> str:
    if seconds < 3600:
        return f"{max(1, round(seconds / 60)):d} min"
    hours = seconds / 3600
    return f"{hours:.1f} h" if hours < 10 else f"{hours:.0f} h"


def _of_width(width: int | None) -> str:
    return "" if width is None else f" of width {width}"
