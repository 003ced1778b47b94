"""Meeting: ranks come together, tell each other what has happened, and go on from the same place.

At most three collectives: a header of fixed size, from which every rank draws the same conclusions; the rows that have
changed, where an epoch is drawn or somebody asked for it; and, after a draw, a fingerprint of it. Whatever is wrong is
raised by all ranks in the same place, so that none is left waiting for another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from orderdp.distributed.exchange import Exchange
from orderdp.distributed.header import ITER, SYNC, Header, differences, digest
from orderdp.distributed.ledger import Agreements, Changes, Ledger
from orderdp.distributed.places import check_places, check_sharding
from orderdp.distributed.standing import Standing
from orderdp.errors import GroupError
from orderdp.scores import ScoreTable

__all__ = ["Decision", "Meeting", "Setup", "Standing"]


@dataclass(frozen=True)
class Setup:
    """What every process of a job must be given alike.

    Attributes:
        policy: The policy in words.
        epochs: How many are planned, or None.
        labels: One class for each sample, or None.
        shard: Whether this library deals out the samples.
        pad: Whether shares are filled up.
        strict: Whether losses that are not finite are an error.
    """

    policy: str
    epochs: int | None
    labels: np.ndarray | None
    shard: bool
    pad: bool
    strict: bool


class Decision(NamedTuple):
    """What all ranks have decided: where they go on; and, if they exchanged, how many samples were trained on."""

    epoch: int
    trained: int
    kept: int | None


class Meeting:
    """The meetings of one pruner with those of the other ranks.

    Args:
        table: What is remembered here.
        setup: What must be the same everywhere.
        kept: How many samples all ranks have trained on until now.
        as_it_is: Whether the table came out of a checkpoint, the same for all.
        ledger: What has been agreed on; by default all of the table.
    """

    def __init__(
        self, table: ScoreTable, setup: Setup, kept: int, as_it_is: bool, ledger: Agreements | None = None
    ) -> None:
        self.exchange: Exchange | None = None
        self.exchanged_bytes = 0
        self.drawing = False  # whether, by the last decision, samples are put in order
        self._table = table
        self._setup = setup
        self._kept = kept
        self._ledger: Agreements = Ledger(table, as_it_is) if ledger is None else ledger
        columns = repr(sorted(table.declared.items())).encode()
        self._policy = digest(setup.policy.encode(), columns)
        labels = setup.labels
        self._labels = 0 if labels is None else digest(np.ascontiguousarray(labels, dtype=np.int64).tobytes())

    def decide(self, syncing: bool, epoch: int, seed: int, find: Callable[[], Standing]) -> Decision:
        """Hears all ranks, takes over what they have learnt, and says where to go on. Two collectives at most.

        Args:
            syncing: Whether somebody called ``sync()``; otherwise an epoch is about to be gone through.
            epoch: The current epoch, for messages.
            seed: The pruner's seed.
            find: Finds out where this rank stands. Where it raises, so do the other ranks.
        """
        self.exchanged_bytes = 0
        failure, here = None, Standing(epoch)
        try:
            here = find()
        except Exception as error:
            failure = error
        changes = self._ledger.changes()
        header = self._header(SYNC if syncing else ITER, seed, here, len(changes), failed=failure is not None)
        headers = [Header.decode(values) for values in self._gather(header.encode(), epoch)]
        if failure is not None:
            raise failure
        self._check(headers, epoch)
        target = max(heard.epoch for heard in headers)
        settling = syncing or not all(heard.is_open for heard in headers)
        if settling:
            self._settle(headers, changes, epoch)
        self.drawing = any(heard.arranging for heard in headers)
        trained = max(heard.trained for heard in headers if heard.epoch == target)
        return Decision(target, trained, self._kept if settling else None)

    def agree(self, epoch: int, draw: Callable[[], int]) -> None:
        """Draws, and makes sure that all ranks have drawn the same. One collective.

        Args:
            epoch: The epoch that is drawn.
            draw: Draws, and returns a digest of what it has drawn. Where it raises, so do the other ranks.
        """
        failure, mine = None, 0
        try:
            mine = draw()
        except Exception as error:
            failure = error
        self._ledger.note_counters()
        answers = [values.tolist() for values in self._gather(torch.tensor([failure is not None, mine]), epoch)]
        if failure is not None:
            raise failure
        _raise_for_failed([bool(failed) for failed, _ in answers], epoch)
        if len({drawn for _, drawn in answers}) > 1:
            raise GroupError(
                f"all processes must draw the same samples for epoch {epoch}, and they have not. A policy may use "
                "nothing but the table and its context, and a sampler given to filter must be seeded alike everywhere."
            )

    def agreed_scores(self) -> np.ndarray:
        """The scores that all ranks know, a copy."""
        return self._ledger.agreed("score")

    def unsynced(self, fed: int) -> dict[str, Any] | None:
        """What this rank knows and the others do not, for a checkpoint; None where there is nothing."""
        changes = self._ledger.changes()
        if self.exchange is None or not (len(changes) or fed or any(self._ledger.counted())):
            return None
        before = self._ledger.before(changes.index)
        return {
            "rank": self.exchange.rank,
            "world_size": self.exchange.world,
            "index": torch.from_numpy(changes.index),
            "before": {name: torch.from_numpy(values) for name, values in before.items()},
            "counters": list(self._ledger.counters),
            "fed": fed,
            "kept": self._kept,
        }

    # -- inside --------------------------------------------------------------------------------------------------

    def _header(self, action: int, seed: int, here: Standing, rows: int, *, failed: bool) -> Header:
        setup = self._setup
        nonfinite, outside, writes = self._ledger.counted()
        return Header(
            action=action,
            failed=failed,
            seed=seed if seed < 1 << 62 else (1 << 62) + digest(str(seed).encode()),
            n=self._table.n,
            epochs=-1 if setup.epochs is None else setup.epochs,
            policy=self._policy,
            labels=self._labels,
            shard=setup.shard,
            pad=setup.pad,
            strict=setup.strict,
            table=self._ledger.fingerprint(),
            rows=rows,
            nonfinite=nonfinite,
            outside=outside,
            writes=writes,
            policy_text=setup.policy,
            **here._asdict(),
        )

    def _check(self, headers: Sequence[Header], epoch: int) -> None:
        _raise_for_failed([bool(heard.failed) for heard in headers], epoch)
        different = differences(headers)
        if different is not None:
            raise GroupError(
                f"all processes must be set up alike, and at epoch {epoch} they differ in {different}. "
                "Give every process the same."
            )
        self._ledger.compared()
        check_places(headers)
        check_sharding(headers)

    def _settle(self, headers: Sequence[Header], changes: Changes, epoch: int) -> None:
        parts: list[Changes] = []
        most = max(heard.rows for heard in headers)
        if most:
            gathered = self._gather(torch.from_numpy(changes.encode(most)), epoch)
            parts = [
                Changes.decode(data.numpy(), most, heard.rows, self._table.declared)
                for data, heard in zip(gathered, headers, strict=True)
            ]
        self._ledger.settle(parts, [(heard.nonfinite, heard.outside, heard.writes) for heard in headers])
        self._kept += sum(heard.fed for heard in headers)

    def _gather(self, values: torch.Tensor, epoch: int) -> list[torch.Tensor]:
        exchange = self.exchange
        assert exchange is not None
        try:
            gathered = exchange.gather_all(values)
        except RuntimeError as error:
            raise GroupError(
                f"rank {exchange.rank} of {exchange.world} has not heard from all others at epoch {epoch}: {error}. "
                "Another process has failed, or does not call iter(loader) or sync() where this one does."
            ) from error
        self.exchanged_bytes += sum(part.nbytes for part in gathered)
        return gathered


def _raise_for_failed(failed: Sequence[bool], epoch: int) -> None:
    if any(failed):
        ranks = ", ".join(str(rank) for rank, has in enumerate(failed) if has)
        raise GroupError(f"epoch {epoch} cannot begin, because rank {ranks} failed. Its own error says why.")
