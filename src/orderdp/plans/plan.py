"""Plan: which samples of every batch of a training are trained on, written down before it begins."""

from __future__ import annotations

import json
import os
import zipfile
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from orderdp.draw import visiting_order
from orderdp.errors import ConfigError, StateError
from orderdp.planning import check_batch_size, check_ratio, is_count
from orderdp.policy import Selection
from orderdp.randomness import generator
from orderdp.replacing import flushed

__all__ = ["Plan", "PlanCost", "check_shape", "recorded_order"]

_FORMAT = "orderdp.Plan"
# A change of `recorded_order` or of the meaning of the marks must raise it: a plan holds positions, not samples.
_VERSION = 1


class PlanCost(NamedTuple):
    """What the proxy took.

    Attributes:
        forwarded: Samples that went through it.
        backpropagated: Samples whose gradients were computed.
        seconds: From the first batch of each epoch to the last loss of it.
    """

    forwarded: int = 0
    backpropagated: int = 0
    seconds: float = 0.0

    @property
    def equivalents(self) -> float:
        """The same in samples that are trained on: a forward pass is a third of a step, a backward pass two.

        >>> PlanCost(forwarded=1200, backpropagated=300).equivalents
        600.0
        """
        return (self.forwarded + 2 * self.backpropagated) / 3


@dataclass(frozen=True, eq=False)
class Plan:
    """The marked part of every batch of a training.

    Every epoch visits all samples in an order that is a function of (seed, epoch), in batches of `batch_size`; an
    incomplete last batch is left out. Of each batch `kept` samples are marked.

    Attributes:
        n: Samples in the data set.
        epochs: How many epochs it has.
        batch_size: Samples in a recorded batch.
        keep: Share of a batch that is marked, in (0, 1].
        seed: Of the order.
        marks: A bit for each position of an epoch's order, as from ``np.packbits``; one row for each epoch.
        cost: What the proxy took.
    """

    n: int
    epochs: int
    batch_size: int
    keep: float
    seed: int
    marks: np.ndarray = field(repr=False)
    cost: PlanCost = field(default_factory=PlanCost)

    def __post_init__(self) -> None:
        check_shape(self.n, self.epochs, self.batch_size, self.keep)
        if not is_count(self.seed, least=0):
            raise ConfigError(f"seed must be a whole number, at least 0, got {self.seed!r}.")
        marks = np.array(self.marks)  # a copy, which nobody else writes to
        shape = (self.epochs, -(-self.n // 8))
        if marks.dtype != np.uint8 or marks.shape != shape:
            raise ConfigError(
                f"the marks of {self.epochs} epochs of {self.n} samples must be uint8 of shape {shape}, got "
                f"{marks.dtype} of shape {marks.shape}. Pack them with np.packbits."
            )
        marks.flags.writeable = False
        object.__setattr__(self, "marks", marks)
        for epoch in range(self.epochs):
            self._check_epoch(epoch)

    @property
    def kept(self) -> int:
        """How many samples of a batch are marked: the batch size to train with."""
        return round(self.keep * self.batch_size)

    @property
    def batches(self) -> int:
        """How many batches an epoch has."""
        return self.n // self.batch_size

    @property
    def size(self) -> int:
        """How many samples an epoch trains on."""
        return self.kept * self.batches

    @cached_property
    def fingerprint(self) -> str:
        """What tells this plan from others: a digest of its order and marks. What it cost is not in it."""
        digest = blake2b(digest_size=8)
        digest.update(repr((_VERSION, self.n, self.epochs, self.batch_size, self.kept, self.seed)).encode())
        digest.update(self.marks.tobytes())
        return digest.hexdigest()

    def selection(self, epoch: int) -> Selection:
        """What an epoch trains on: the marked samples, in the order of the recording."""
        if not is_count(epoch, least=0) or epoch >= self.epochs:
            raise ConfigError(
                f"the plan has {self.epochs} epochs, counted from 0, and epoch {epoch} was asked for. Record a plan "
                "of as many epochs as are trained."
            )
        return Selection(recorded_order(self.n, self.seed, epoch)[self._marked(epoch)])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes an .npz file, under a temporary name that is then renamed. Its folder must exist."""
        path = Path(path)
        if path.suffix != ".npz":
            raise ConfigError(f"a plan is written to a file that ends in .npz, got {os.fspath(path)!r}.")
        header = json.dumps({"format": _FORMAT, "version": _VERSION, **self._facts(), "cost": self.cost._asdict()})
        with flushed(path) as file:
            np.savez(file, header=header, marks=self.marks, digest=_digest(header, self.marks))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Plan:
        """Reads what `save` wrote; nothing in the file is run, and a damaged one is refused."""
        where = os.fspath(path)
        if not Path(path).exists():
            raise StateError(f"there is no plan at {where!r}.")
        try:
            with open(path, "rb") as opened, np.load(opened, allow_pickle=False) as found:
                header, marks, digest = str(found["header"]), found["marks"], str(found["digest"])
            facts: dict[str, Any] = json.loads(header)
            if facts.pop("format") != _FORMAT:
                raise ValueError("it is no plan")  # noqa: TRY301
        except (OSError, ValueError, LookupError, TypeError, AttributeError, EOFError, zipfile.BadZipFile) as error:
            raise StateError(f"{where!r} is no plan that can be read ({error}). Record it again.") from error
        version = facts.pop("version", None)
        if version != _VERSION:
            raise StateError(
                f"{where!r} must be a plan of version {_VERSION}, it is of {version!r}. Load it with the version of "
                "orderdp that wrote it, or record it again."
            )
        if digest != _digest(header, marks):
            raise StateError(f"the plan in {where!r} is damaged: its digest does not fit. Record it again.")
        try:
            return cls(**{**facts, "cost": PlanCost(**facts["cost"])}, marks=marks)
        except (ConfigError, LookupError, TypeError) as error:
            raise StateError(f"the plan in {where!r} is damaged ({error}). Record it again.") from error

    def _facts(self) -> dict[str, Any]:
        return {
            "n": int(self.n),
            "epochs": int(self.epochs),
            "batch_size": int(self.batch_size),
            "keep": float(self.keep),
            "seed": int(self.seed),
        }

    def _marked(self, epoch: int) -> np.ndarray:
        return np.unpackbits(self.marks[epoch], count=self.n).view(np.bool_)

    def _check_epoch(self, epoch: int) -> None:
        bits = np.unpackbits(self.marks[epoch])
        used = self.batches * self.batch_size
        counts = bits[:used].reshape(self.batches, self.batch_size).sum(axis=1, dtype=np.int64)
        wrong = np.flatnonzero(counts != self.kept)
        if len(wrong):
            raise ConfigError(
                f"every batch of a plan must have {self.kept} marks, batch {wrong[0]} of epoch {epoch} has "
                f"{counts[wrong[0]]}."
            )
        if bits[used:].any():
            raise ConfigError(f"a plan has no marks beyond its last full batch, epoch {epoch} has some.")


def check_shape(n: int, epochs: Any, batch_size: Any, keep: Any) -> None:
    """Raises where no plan can have this shape."""
    check_batch_size(batch_size)
    check_ratio("keep", keep, zero_allowed=False, one_allowed=True)
    if not is_count(epochs):
        raise ConfigError(f"epochs must be a whole number, at least 1, got {epochs!r}.")
    if not is_count(n) or batch_size > n:
        raise ConfigError(f"a plan has full batches only, and {n} samples make none of {batch_size}. Use smaller ones.")
    if round(keep * batch_size) < 1:
        raise ConfigError(f"keep={keep} marks none of {batch_size} samples. Use larger batches, or keep more.")


def recorded_order(n: int, seed: int, epoch: int) -> np.ndarray:
    """All samples in the order in which a recorded epoch visits them, int64."""
    return visiting_order(np.arange(n, dtype=np.int64), n, generator(seed, "plan", epoch))


def _digest(header: str, marks: np.ndarray) -> str:
    return blake2b(header.encode() + marks.tobytes(), digest_size=16).hexdigest()
