"""``python -m benchmarks.before REVISION``: an older revision of the library beside the present one, in one process.

Both are imported under the name ``orderdp``, one after the other; whichever runs has its modules in `sys.modules`. They
take turns, and each round swaps who is first. Times are those of the thread, with one thread of torch, so that other
programs on the machine count little. One JSON line per measurement: ratios above 1 mean that the present is slower.
"""

from __future__ import annotations

import argparse
import gc
import io
import json
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.utils.data import TensorDataset

_ROOT = Path(__file__).parents[1]
_SAMPLES = 20_000
_BATCH = 128
_ITERATIONS = 10

Run = Callable[[], int]


class Library:
    """One revision of the library; inside `used` it is the one that is imported."""

    def __init__(self, source: Path) -> None:
        self._modules: dict[str, ModuleType] = {}
        with self.used():
            sys.path.insert(0, str(source))
            try:
                self.main = import_module("orderdp")
                for name in self.main.__all__:  # all modules at once, so that no measurement pays for imports
                    getattr(self.main, name)
            finally:
                sys.path.remove(str(source))
        found = Path(str(self.main.__file__)).parents[1]
        if found != source:
            raise RuntimeError(f"imported {found} in place of {source}.")

    @contextmanager
    def used(self) -> Iterator[None]:
        """Have this revision's modules in `sys.modules`."""
        others = _taken_out()
        sys.modules.update(self._modules)
        try:
            yield
        finally:
            self._modules = _taken_out()
            sys.modules.update(others)


def _taken_out() -> dict[str, ModuleType]:
    names = [name for name in sys.modules if name.partition(".")[0] in ("orderdp", "orderdp_paper")]
    return {name: sys.modules.pop(name) for name in names}


def update(library: Library) -> tuple[Run, Run]:
    """A step: every `update` of an epoch, which it ends; the epoch is drawn beforehand."""
    pruner = _pruner(library)
    losses = torch.rand(_BATCH, requires_grad=True)
    steps: list[torch.Tensor] = []

    def prepare() -> int:
        steps[:] = [torch.tensor(batch) for batch in pruner.batch_sampler(_BATCH, drop_last=True)]
        return 0

    def run() -> int:
        for index in steps:
            pruner.update(index, losses)
        return len(steps)

    return prepare, run


def sampler(library: Library) -> tuple[Run, Run]:
    """An epoch's draw from known scores, and its batches of indices."""
    pruner = _pruner(library)
    return _whole_epochs(pruner, lambda: pruner.batch_sampler(_BATCH))


def loader(library: Library) -> tuple[Run, Run]:
    """A pass over a loader of tiny rows, with the draw."""
    dataset = TensorDataset(torch.rand(_SAMPLES, 4), torch.zeros(_SAMPLES, dtype=torch.int64))
    pruner = _pruner(library)
    batches = pruner.loader(dataset, batch_size=_BATCH)
    return _whole_epochs(pruner, lambda: batches)


def iterator(library: Library) -> tuple[Run, Run]:
    """``iter(loader)`` of an epoch that is open."""
    dataset = TensorDataset(torch.rand(_SAMPLES, 4))
    batches = _pruner(library).loader(dataset, batch_size=_BATCH)

    def run() -> int:
        for _ in range(_ITERATIONS):
            iter(batches)
        return _ITERATIONS

    return run, run


MEASURED = {"update": update, "sampler": sampler, "loader": loader, "iter(loader)": iterator}


def _pruner(library: Library) -> Any:
    pruner = library.main.Pruner(library.main.OrderDP(exploration=0.8, exploitation=0.75), _SAMPLES)
    pruner.observe(torch.arange(_SAMPLES), torch.rand(_SAMPLES, generator=torch.Generator().manual_seed(0)))
    return pruner


def _whole_epochs(pruner: Any, batches: Callable[[], Iterable[Any]]) -> tuple[Run, Run]:
    """Return a function that ends the last epoch by one loss, and one that goes through the next."""
    last: list[Any] = []

    def prepare() -> int:
        if last:
            index = last[0] if isinstance(last[0][0], int) else last[0][0]
            pruner.update(torch.as_tensor(index)[:1], torch.ones(1))
            pruner.end_epoch()
        return 0

    def run() -> int:
        for batch in batches():
            last[:] = [batch]
        return 1

    return prepare, run


def compare(now: Library, before: Library, name: str, rounds: int) -> dict[str, Any]:
    """Measure one thing on both sides in turns; the first round is for warming up."""
    sides = {"now": now, "before": before}
    made: dict[str, tuple[Run, Run]] = {}
    for side, library in sides.items():
        with library.used():
            made[side] = MEASURED[name](library)
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    gc.collect()
    gc.disable()  # once: collecting takes longer than what is measured
    for number in range(rounds + 1):
        for side in list(sides)[:: 1 if number % 2 else -1]:
            prepare, run = made[side]
            with sides[side].used():
                prepare()
                start = time.thread_time()
                count = run()
                taken = (time.thread_time() - start) / count
            if number:
                seconds[side].append(taken)
    gc.enable()
    ratios = [one / other for one, other in zip(seconds["now"], seconds["before"], strict=True)]
    first, _, third = statistics.quantiles(ratios, method="inclusive")
    return {
        "benchmark": "before",
        "what": name,
        "ratio_of": "now / before",
        "now_us": round(1e6 * statistics.median(seconds["now"]), 2),
        "before_us": round(1e6 * statistics.median(seconds["before"]), 2),
        "minima": round(min(seconds["now"]) / min(seconds["before"]), 3),
        "medians": round(statistics.median(seconds["now"]) / statistics.median(seconds["before"]), 3),
        "ratio_quartiles": [round(first, 3), round(third, 3)],
        "rounds": rounds,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.before", description="Now against an older revision.")
    parser.add_argument("revision", help="what git calls the older revision")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"what to measure: {', '.join(MEASURED)}")
    parser.add_argument("--rounds", type=int, default=100, metavar="N", help="rounds of each (default: 100)")
    options = parser.parse_args(arguments)
    for name in options.names:
        if name not in MEASURED:
            parser.error(f"there is nothing called {name!r}; there are {', '.join(MEASURED)}.")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        command = ["git", "-C", str(_ROOT), "archive", options.revision, "src"]
        archive = subprocess.run(command, check=True, capture_output=True).stdout
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            files.extractall(folder, filter="data")
        now, before = Library(_ROOT / "src"), Library(Path(folder).resolve() / "src")
        for name in options.names or MEASURED:
            line = {**compare(now, before, name, options.rounds), "revision": options.revision}
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
