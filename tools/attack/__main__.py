"""Attacks the library for a while and says what was tried and what did not hold.

python -m tools.attack --minutes 10 --seed 0
python -m tools.attack --only machine --case 17      (one case again)
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial

import torch
from rich.console import Console

from tools.attack import states
from tools.attack.files import files
from tools.attack.trainings import extremes, machine, ranks, streams

__all__ = ["ATTACKS", "attack", "main"]


def _damage(rng: random.Random) -> str | None:
    kind = rng.choice(list(states.KINDS))
    fault = states.fault_of(kind, rng)
    return fault and f"{kind}: {fault}"


ATTACKS: dict[str, Callable[[random.Random], str | None]] = {
    "machine": machine,
    "extremes": extremes,
    "ranks": ranks,
    "streams": streams,
    "states": _damage,
    "files": files,
}


def attack(
    seed: int, minutes: float, most: int, only: Iterable[str] = (), say: Callable[[str], None] = lambda line: None
) -> tuple[Counter[str], list[str]]:
    """Cases of all kinds in turns until the time is over; what was tried, and what did not hold.

    Args:
        seed: A case is a function of seed, kind and number.
        minutes: How long.
        most: At most so many cases of each kind.
        only: The kinds; all if empty.
        say: Is told of each fault.
    """
    counts: Counter[str] = Counter()
    faults: list[str] = []
    end = time.monotonic() + 60 * minutes
    for number in range(most):
        for kind in only or ATTACKS:
            if time.monotonic() > end:
                return counts, faults
            fault = one_case(seed, kind, number)
            counts[kind] += 1
            if fault:
                faults.append(f"--seed {seed} --only {kind} --case {number}: {fault}")
                say(faults[-1])
    return counts, faults


def one_case(seed: int, kind: str, number: int) -> str | None:
    """What did not hold in one case; None if all did."""
    return ATTACKS[kind](random.Random(f"{seed} {kind} {number}"))


def main(arguments: list[str] | None = None) -> None:
    """Attacks, and ends with an error if anything did not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--most", type=int, default=10**9, help="at most so many cases of each kind")
    parser.add_argument("--only", choices=list(ATTACKS), action="append", default=[])
    parser.add_argument("--case", type=int, help="this case alone")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    console = Console()
    say = partial(console.print, highlight=False, markup=False)
    if options.case is not None:
        say(str([one_case(options.seed, kind, options.case) for kind in options.only]))
        return
    counts, faults = attack(options.seed, options.minutes, options.most, options.only, say)
    console.print_json(json.dumps({"seed": options.seed, "cases": dict(counts), "faults": len(faults)}))
    if faults:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
