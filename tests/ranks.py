"""Several ranks, as threads of one process or as processes that meet through a file. Every wait is bounded."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

WAIT = 150.0  # for a busy machine; what passes waits for nothing


class MemoryRank:
    """One rank of a group of threads; what Pruner(process_group=...) takes instead of a process group."""

    def __init__(self, rank: int, world: int, slots: list, barrier: threading.Barrier) -> None:
        self.rank, self.world = rank, world
        self.sizes: list[int] = []
        self._slots, self._barrier = slots, barrier

    def gather_all(self, values: torch.Tensor) -> list[torch.Tensor]:
        self.sizes.append(values.nbytes)
        self._slots[self.rank] = values.clone()
        self._barrier.wait()
        gathered = list(self._slots)
        self._barrier.wait()
        assert len({len(part) for part in gathered}) == 1, "a collective needs equal lengths"
        return gathered


class FullRank(MemoryRank):
    """A rank that can sum and swap too, as a process group can; it notes what it was asked to do."""

    def __init__(self, *group: Any) -> None:
        super().__init__(*group)
        self.asked: list[tuple[str, int]] = []

    def gather_all(self, values: torch.Tensor) -> list[torch.Tensor]:
        self.asked.append(("gather", values.nbytes))
        return super().gather_all(values)

    def sum_all(self, values: torch.Tensor) -> torch.Tensor:
        self.asked.append(("sum", values.nbytes))
        return torch.stack(super().gather_all(values)).sum(dim=0)

    def swap_all(self, parts: list[torch.Tensor], sizes: list[int]) -> list[torch.Tensor]:
        self.asked.append(("swap", sum(part.nbytes for part in parts)))
        self._slots[self.rank] = [part.clone() for part in parts]
        self._barrier.wait()
        received = [given[self.rank] for given in self._slots]
        self._barrier.wait()
        assert [len(part) for part in received] == sizes, "a swap needs to know what comes"
        return received


def in_threads(
    world: int, work: Callable[[Any], Any], wait: float = WAIT, kind: type[MemoryRank] = MemoryRank
) -> list[Any]:
    """What `work` returns on each rank; exceptions are returned, not raised."""
    slots, barrier = [None] * world, threading.Barrier(world, timeout=wait)
    results: list[Any] = [None] * world

    def run(rank: int) -> None:
        try:
            results[rank] = work(kind(rank, world, slots, barrier))
        except Exception as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * wait)
        assert not thread.is_alive(), "a rank hangs"
    return results


def all_fine(results: list[Any]) -> list[Any]:
    for result in results:
        if isinstance(result, Exception):
            raise result
    return results


def _process(rank: int, world: int, folder: Path, work: Callable[..., Any], arguments: tuple, seconds: float) -> None:
    torch.set_num_threads(1)
    try:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{folder}/store",
            rank=rank,
            world_size=world,
            timeout=timedelta(seconds=seconds),
        )
        result = work(rank, world, folder, *arguments)
    except Exception:
        result = traceback.format_exc()
    torch.save(result, folder / f"rank{rank}.pt")


def in_processes(
    world: int, folder: Path, work: Callable[..., Any], *arguments: Any, group_timeout: float = WAIT
) -> list[Any]:
    """What ``work(rank, world, folder, *arguments)`` returns in each of `world` processes of a gloo group."""
    folder.mkdir(parents=True, exist_ok=True)
    # The server imports torch once; ranks are forked from it, and it has no group, no threads and no data.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.distributed_work", "tests.ddp_work", "tests.sharded_work"])
    processes = [
        context.Process(target=_process, args=(rank, world, folder, work, arguments, group_timeout), daemon=True)
        for rank in range(world)
    ]
    for process in processes:
        process.start()
    try:
        for process in processes:
            process.join(2 * WAIT)
            assert process.exitcode == 0, f"a rank hangs or died: {process.exitcode}"
    finally:
        for process in processes:
            process.kill()
    results = [torch.load(folder / f"rank{rank}.pt", weights_only=False) for rank in range(world)]
    for result in results:
        assert not (isinstance(result, str) and "Traceback" in result), result
    return results
