"""What the examples of other tasks share: all data, all data for fewer epochs and OrderDP, as a small table.

An example brings a function ``train(policy, epochs, seed)`` that returns a `Result`. Everything that has to do with its
task, the training loop included, is in the example itself.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from typing import NamedTuple

import torch

import orderdp
from orderdp.policies import FullData


class Result(NamedTuple):
    """What one training reached and cost, and what it left behind."""

    metric: float
    samples: int
    seconds: float
    pruner: orderdp.Pruner
    model: torch.nn.Module


class Options(NamedTuple):
    """What the command line says."""

    epochs: int
    seeds: list[int]
    prune_ratio: float


Train = Callable[[orderdp.Policy, int, int], Result]


def read_options(document: str | None, epochs: int, seeds: str, arguments: list[str] | None = None) -> Options:
    """Reads --epochs, --seeds and --prune-ratio."""
    parser = argparse.ArgumentParser(description=document, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=epochs, help=f"epochs of each training (default {epochs})")
    parser.add_argument("--seeds", default=seeds, help=f"which seeds to run (default {seeds})")
    parser.add_argument("--prune-ratio", type=float, default=0.4, help="share left out each epoch (default 0.4)")
    given = parser.parse_args(arguments)
    try:
        orderdp.OrderDP(prune_ratio=given.prune_ratio)
        return Options(given.epochs, [int(seed) for seed in given.seeds.split(",")], given.prune_ratio)
    except ValueError as error:
        parser.error(str(error))


def compare(
    train: Train, options: Options, metric: str, *, unit: str = "points", policies: tuple[orderdp.Policy, ...] = ()
) -> dict[str, list[Result]]:
    """Trains in every way with every seed, prints the table and what was saved.

    Args:
        train: Called with a policy, a number of epochs and a seed.
        options: How long, which seeds, how much is left out.
        metric: What `Result.metric` is, for the head of the table.
        unit: Of the metric.
        policies: More policies to try.

    Returns:
        The results by the name of their line.
    """
    full, pruned = FullData(), orderdp.OrderDP(prune_ratio=options.prune_ratio)
    fewer = max(1, round(options.epochs * (1 - options.prune_ratio)))
    ways = [("all data", full, options.epochs), (f"all data, {fewer} epochs", full, fewer)]
    ways += [(str(policy), policy, options.epochs) for policy in (pruned, *policies)]

    torch.set_num_threads(1)  # small models: a second thread costs more than it does
    train(full, 1, 0)  # so that the first run timed is not the one that loads libraries
    print(f"{options.epochs} epochs, seeds {options.seeds}")
    print(f"{'':<42} {metric:>18} {'samples used':>13} {'CPU seconds':>12}")
    results = {}
    for name, policy, epochs in ways:
        results[name] = [train(policy, epochs, seed) for seed in options.seeds]
        print(_line(name, results[name]))
    print(_saved(results["all data"], results[str(pruned)], unit))
    return results


def mean_of(results: list[Result], what: str) -> float:
    """The mean of `metric`, `samples` or `seconds` over seeds."""
    return statistics.mean(getattr(result, what) for result in results)


def _line(name: str, results: list[Result]) -> str:
    spread = statistics.stdev(result.metric for result in results) if len(results) > 1 else 0.0
    reached = f"{mean_of(results, 'metric'):.2f} ± {spread:.2f}"
    return f"{name:<42} {reached:>18} {mean_of(results, 'samples'):>13,.0f} {mean_of(results, 'seconds'):>12.2f}"


def _saved(full: list[Result], pruned: list[Result], unit: str) -> str:
    saved = 1 - mean_of(pruned, "samples") / mean_of(full, "samples")
    faster = 1 - mean_of(pruned, "seconds") / mean_of(full, "seconds")
    change = mean_of(pruned, "metric") - mean_of(full, "metric")
    cost = f"OrderDP used {saved:.1%} fewer samples and {faster:.1%} less CPU time"
    return f"{cost}; the metric changed by {change:+.2f} {unit}."
