"""Ranks that are threads of one process and exchange through memory."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch


class ThreadRank:
    """What ``Pruner(process_group=...)`` takes instead of a process group."""

    def __init__(self, rank: int, world: int, slots: list[Any], barrier: threading.Barrier) -> None:
        self.rank, self.world = rank, world
        self.asked: list[tuple[str, int]] = []
        self._slots, self._barrier = slots, barrier

    def gather_all(self, values: torch.Tensor) -> list[torch.Tensor]:
        """What every rank handed in."""
        self.asked.append(("gather", values.nbytes))
        return self._exchanged(values.clone(), list)

    def sum_all(self, values: torch.Tensor) -> torch.Tensor:
        """The sum of what every rank handed in."""
        self.asked.append(("sum", values.nbytes))
        return self._exchanged(values.clone(), lambda slots: sum(slots[1:], slots[0].clone()))

    def swap_all(self, parts: list[torch.Tensor], sizes: list[int]) -> list[torch.Tensor]:
        """What every rank has for this one."""
        self.asked.append(("swap", sum(part.nbytes for part in parts)))
        return self._exchanged(parts, lambda slots: [given[self.rank] for given in slots])

    def _exchanged(self, mine: Any, read: Callable[[list[Any]], Any]) -> Any:
        self._slots[self.rank] = mine
        self._barrier.wait()
        result = read(self._slots)
        self._barrier.wait()
        return result


def in_threads(world: int, work: Callable[[ThreadRank], Any]) -> list[Any]:
    """What `work` returns on each rank."""
    slots, results = [None] * world, [None] * world
    barrier = threading.Barrier(world, timeout=3600)

    def run(rank: int) -> None:
        try:
            results[rank] = work(ThreadRank(rank, world, slots, barrier))
        except BaseException:
            barrier.abort()
            raise

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if None in results:
        raise RuntimeError("a rank failed; its own error says why")
    return results
