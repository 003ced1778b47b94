"""``python -m benchmarks [NAME ...]``: JSON lines on stdout, notes on stderr."""

from __future__ import annotations

import argparse
import difflib
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from benchmarks import (
    augment,
    coresets,
    draw,
    epoch,
    layout,
    loader,
    memory,
    policies,
    scale,
    update,
    weights,
    workbench,
)
from benchmarks.conditions import conditions

BENCHMARKS: dict[str, Callable[[], Iterator[dict[str, Any]]]] = {
    "draw-imagenet": draw.imagenet,
    "draw-first": draw.first,
    "update": update.update,
    "loader": loader.loader,
    "index-batches": loader.index_batches,
    "epoch": epoch.epoch,
    "smaller-batches": epoch.smaller_batches,
    "memory": memory.memory,
    "weights": weights.weights,
    "policies": policies.policies,
    "augment": augment.augment,
    "workbench": workbench.workbench,
    "import": workbench.imports,
    "draw-100m": draw.hundred_million,
}

#: Too long to run unless they are named.
LONG: dict[str, Callable[[], Iterator[dict[str, Any]]]] = {
    "layout": layout.layout,
    "scale": scale.scale,
    "coresets-10k": coresets.coresets_10k,
    "coresets": coresets.coresets,
    "coresets-unbalanced": coresets.coresets_unbalanced,
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Prints one JSON object a benchmark.")
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="which benchmarks; all but the long ones where none is named"
    )
    parser.add_argument("--list", action="store_true", help="print the names and stop")
    options = parser.parse_args(arguments)
    if options.list:
        print("\n".join([*BENCHMARKS, *LONG]))
        return 0
    unknown = [name for name in options.names if name not in {**BENCHMARKS, **LONG}]
    if unknown:
        _note(_no_such(unknown[0]))
        return 2
    run(options.names or list(BENCHMARKS))
    return 0


def run(names: Sequence[str]) -> None:
    _print_line(conditions())
    for name in names:
        _note(f"{name} ...")
        start = time.perf_counter()
        for line in {**BENCHMARKS, **LONG}[name]():
            _print_line(line)
        _note(f"{name} took {time.perf_counter() - start:.0f} s")


def _no_such(name: str) -> str:
    # Some name is always the nearest; a cutoff of 0 leaves the choice to the reader.
    nearest = difflib.get_close_matches(name, [*BENCHMARKS, *LONG], n=1, cutoff=0.0)[0]
    return f"there is no benchmark {name!r}. Did you mean {nearest!r}? --list shows all."


def _print_line(line: dict[str, Any]) -> None:
    print(json.dumps(line), flush=True)


def _note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
