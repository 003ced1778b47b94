"""Plans from a proxy: a small network marks the hard part of every batch, and the main training replays the marks."""

from __future__ import annotations

import json
import os
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, Sampler

from orderdp._draw import generator, key64, visiting_order
from orderdp._epochs import check_length
from orderdp._files import flushed
from orderdp._training import outside_graphs
from orderdp._validation import check_batch_size, check_ratio, checked_seed, is_count
from orderdp.dataset import Indexed, IndexedCollate, length_of
from orderdp.errors import ConfigError, FeedbackError, NonFiniteLossError, StateError
from orderdp.losses import checked_index, checked_losses
from orderdp.policy import Selection

__all__ = ["Plan", "PlanCost", "PlanRecorder", "check_shape", "recorded_order"]


_FORMAT = "orderdp.Plan"


# Increase it with any change of `recorded_order` or of the meaning of the marks: a plan holds positions, not samples.
_VERSION = 1


class PlanCost(NamedTuple):
    """The cost of the proxy.

    Attributes:
        forwarded: Samples that went through it.
        backpropagated: Samples whose gradients were computed.
        seconds: Time from the first batch of each epoch to its last loss.
    """

    forwarded: int = 0
    backpropagated: int = 0
    seconds: float = 0.0

    @property
    def equivalents(self) -> float:
        """The cost in trained samples: a forward pass is one third of a step, a backward pass two thirds.

        >>> PlanCost(forwarded=1200, backpropagated=300).equivalents
        600.0
        """
        return (self.forwarded + 2 * self.backpropagated) / 3


@dataclass(frozen=True, eq=False)
class Plan:
    """The marked part of every batch of a training.

    Every epoch visits all samples in an order that is a function of (seed, epoch), in batches of `batch_size`; an
    incomplete last batch is dropped. In each batch `kept` samples are marked.

    Attributes:
        n: Samples in the data set.
        epochs: Number of epochs.
        batch_size: Samples per recorded batch.
        keep: Fraction of a batch that is marked, in (0, 1].
        seed: Seed of the order.
        marks: One bit for each position of an epoch's order, as from ``np.packbits``; one row per epoch.
        cost: The cost of the proxy.
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
        marks = np.array(self.marks)  # a copy, so that the caller's array is not shared
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
        """Number of marked samples per batch: the batch size to train with."""
        return round(self.keep * self.batch_size)

    @property
    def batches(self) -> int:
        """Number of batches per epoch."""
        return self.n // self.batch_size

    @property
    def size(self) -> int:
        """Number of samples an epoch trains on."""
        return self.kept * self.batches

    @cached_property
    def fingerprint(self) -> str:
        """Digest of the order and the marks, which identifies the plan. The cost is not part of it."""
        digest = blake2b(digest_size=8)
        digest.update(repr((_VERSION, self.n, self.epochs, self.batch_size, self.kept, self.seed)).encode())
        digest.update(self.marks.tobytes())
        return digest.hexdigest()

    def selection(self, epoch: int) -> Selection:
        """Return what an epoch trains on: the marked samples, in the order of the recording.

        Args:
            epoch: The epoch, from 0.
        """
        if not is_count(epoch, least=0) or epoch >= self.epochs:
            raise ConfigError(
                f"the plan has {self.epochs} epochs, counted from 0, got epoch {epoch}. Record a plan with as many "
                "epochs as are trained."
            )
        return Selection(recorded_order(self.n, self.seed, epoch)[self._marked(epoch)])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan to an .npz file, under a temporary name that is then renamed.

        Args:
            path: The file. Its folder must exist.
        """
        path = Path(path)
        if path.suffix != ".npz":
            raise ConfigError(f"a plan is written to a file that ends in .npz, got {os.fspath(path)!r}.")
        header = json.dumps({"format": _FORMAT, "version": _VERSION, **self._facts(), "cost": self.cost._asdict()})
        with flushed(path) as file:
            np.savez(file, header=header, marks=self.marks, digest=_digest(header, self.marks))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Plan:
        """Read a plan that `save` wrote. Nothing in the file is executed, and a damaged file is rejected.

        Args:
            path: The file.
        """
        where = os.fspath(path)
        if not Path(path).exists():
            raise StateError(f"there is no plan at {where!r}.")
        try:
            with open(path, "rb") as opened, np.load(opened, allow_pickle=False) as found:
                header, marks, digest = str(found["header"]), found["marks"], str(found["digest"])
            facts: dict[str, Any] = json.loads(header)
            if facts.pop("format") != _FORMAT:
                raise ValueError("it is not a plan")  # noqa: TRY301
        except (OSError, ValueError, LookupError, TypeError, AttributeError, EOFError, zipfile.BadZipFile) as error:
            raise StateError(f"{where!r} is not a readable plan ({error}). Record it again.") from error
        version = facts.pop("version", None)
        if version != _VERSION:
            raise StateError(
                f"{where!r} must be a plan of version {_VERSION}, got {version!r}. Load it with the version of orderdp "
                "that wrote it, or record it again."
            )
        if digest != _digest(header, marks):
            raise StateError(f"the plan in {where!r} is damaged: its digest does not match. Record it again.")
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
    """Raise if no plan can have this shape: `n` samples, `epochs`, `batch_size`, and the fraction `keep` of a batch."""
    check_batch_size(batch_size)
    check_ratio("keep", keep, zero_allowed=False, one_allowed=True)
    if not is_count(epochs):
        raise ConfigError(f"epochs must be a whole number, at least 1, got {epochs!r}.")
    if not is_count(n) or batch_size > n:
        raise ConfigError(
            f"a plan has full batches only, and {n} samples make none of {batch_size}. Use smaller batches."
        )
    if round(keep * batch_size) < 1:
        raise ConfigError(f"keep={keep} marks none of {batch_size} samples. Use larger batches, or keep more.")


def recorded_order(n: int, seed: int, epoch: int) -> np.ndarray:
    """Return all `n` samples in the order in which a recorded `epoch` visits them under `seed`, int64."""
    return visiting_order(np.arange(n, dtype=np.int64), n, generator(seed, "plan", epoch))


def _digest(header: str, marks: np.ndarray) -> str:
    return blake2b(header.encode() + marks.tobytes(), digest_size=16).hexdigest()


_IN_TURN = "Record every batch once, in the order in which it was served, with its index unchanged."


class PlanRecorder:
    """Serves all data to a proxy in batches, and marks the largest losses of each batch.

    ::

        recorder = PlanRecorder(train_set, epochs=20, batch_size=1024, keep=0.5, seed=0)
        loader = recorder.loader(train_set, num_workers=4)
        for epoch in range(20):
            for step, (index, (x, y)) in enumerate(loader):
                with torch.set_grad_enabled(step % 4 == 0):
                    losses = criterion(proxy(x), y)  # criterion has reduction="none"
                marked = recorder.record(index, losses)
                if step % 4 == 0:
                    optimizer.zero_grad(); losses[marked].mean().backward(); optimizer.step()
        recorder.plan.save("plan.npz")

    Only `record` advances the recording: every iterator over the loader gets the epoch that is being recorded, from the
    first batch without losses on. Nothing waits for the device before an epoch ends.

    Args:
        dataset_or_length: The data set, or its number of samples.
        epochs: Number of epochs of the main training.
        batch_size: Samples per batch of the proxy. An incomplete last batch is dropped.
        keep: Fraction of a batch that is marked, in (0, 1].
        seed: Seed of the order.
    """

    def __init__(
        self, dataset_or_length: Any, *, epochs: int, batch_size: int, keep: float = 0.5, seed: int = 0
    ) -> None:
        n = length_of(dataset_or_length)
        check_shape(n, epochs, batch_size, keep)
        self.n, self.epochs, self.batch_size, self.keep = n, int(epochs), int(batch_size), float(keep)
        self.seed = checked_seed(seed)
        self.kept, self.batches = round(keep * batch_size), n // batch_size
        self._packed: list[np.ndarray] = []  # one per recorded epoch
        self._epoch = _OpenEpoch(self, 0)
        self._forwarded = self._backpropagated = 0
        self._seconds = 0.0

    @property
    def epoch(self) -> int:
        """Number of recorded epochs; the number of the epoch that is served."""
        return len(self._packed)

    @property
    def batch_sampler(self) -> Sampler[list[int]]:
        """The batches of the epoch that is being recorded, for ``DataLoader(Indexed(dataset), batch_sampler=...)``."""
        return _RecordedBatches(self)

    def loader(self, dataset: Any, **dataloader_kwargs: Any) -> DataLoader[Any]:
        """Return a stock DataLoader over the epoch that is being recorded, yielding ``(index, batch)``.

        Args:
            dataset: The data set the recorder was made for.
            **dataloader_kwargs: Arguments of the DataLoader, except those that set another order or other batches.
        """
        options = dict(dataloader_kwargs)
        for name in ("batch_size", "sampler", "batch_sampler", "shuffle", "drop_last"):
            if name in options:
                raise ConfigError(
                    f"a recording has its own order and full batches of {self.batch_size}, so its loader takes no "
                    f"{name}. Leave it out."
                )
        if options.get("in_order") is False:
            raise ConfigError("losses are recorded in the order of the batches, got in_order=False. Leave it out.")
        length_of(dataset)
        check_length(dataset, self.n)
        own_generator = None
        if options.get("generator") is None:
            # Without a generator, a DataLoader draws its workers' seeds from the global generator and so advances it.
            own_generator = options["generator"] = torch.Generator()
        if not (type(dataset) is Indexed and dataset.key is None):
            dataset = Indexed(dataset)
        collate = IndexedCollate(options.pop("collate_fn", None))
        return DataLoader(dataset, batch_sampler=_RecordedBatches(self, own_generator), collate_fn=collate, **options)

    @outside_graphs
    def record(self, index: Any, losses: torch.Tensor, *, backward: int | None = None) -> torch.Tensor:
        """Mark the largest losses of a batch. Of equal losses, those first in the random order are marked.

        Args:
            index: The indices that came with the batch. Batches are recorded in the order in which they are served.
            losses: One loss per index; not modified.
            backward: Number of samples on which the proxy runs backward, for `PlanCost`. If not given, all if the
                losses require a gradient, and none if they were computed under ``torch.no_grad()``.

        Returns:
            Which samples of the batch are marked, on the device of the losses: those that a proxy may train on.
        """
        if self.epoch == self.epochs:
            raise StateError(f"all {self.epochs} epochs are recorded. Use the plan, or create another recorder.")
        index = checked_index(index)
        losses = checked_losses(losses, index, reduced=False)
        if backward is None:
            backward = len(index) if losses.requires_grad else 0
        elif not is_count(backward, least=0):
            raise FeedbackError(f"backward must be a number of samples, at least 0, got {backward!r}.")
        marked = self._epoch.mark(index, losses.detach())
        self._forwarded += len(index)
        self._backpropagated += backward
        if self._epoch.done == self.batches:
            self._close()
        return marked

    @property
    def plan(self) -> Plan:
        """The plan, once all epochs are recorded."""
        if self.epoch < self.epochs:
            raise StateError(
                f"the plan is not complete: {self.epoch} of {self.epochs} epochs and {self._epoch.done} of the "
                f"{self.batches} batches of the next are recorded. Call record(index, losses) for every batch."
            )
        cost = PlanCost(self._forwarded, self._backpropagated, self._seconds)
        return Plan(self.n, self.epochs, self.batch_size, self.keep, self.seed, np.stack(self._packed), cost)

    def _begin(self) -> _OpenEpoch:
        """Return the epoch that is served, with its timer running."""
        if self.epoch == self.epochs:
            raise StateError(f"all {self.epochs} epochs are recorded: there is none left to serve. Use the plan.")
        self._epoch.start()
        return self._epoch

    def _close(self) -> None:
        epoch = self._epoch
        # If `packed` raises, the epoch is not recorded: it is served again.
        self._epoch = _OpenEpoch(self, epoch.number)
        self._packed.append(epoch.packed())
        self._seconds += epoch.seconds
        self._epoch = _OpenEpoch(self, epoch.number + 1)


class _OpenEpoch:
    """An epoch that is being recorded. Marks and error counts stay on the device until it ends."""

    def __init__(self, recorder: PlanRecorder, number: int) -> None:
        self.number = number
        self.done = 0  # batches
        self._n, self._seed = recorder.n, recorder.seed
        self._size, self._kept = recorder.batch_size, recorder.kept
        self._used = recorder.batches * recorder.batch_size
        self._order: np.ndarray | None = None
        self._expected: torch.Tensor | None = None  # the order, on the device of the indices
        self._marks = torch.empty(0, dtype=torch.bool)
        self._complaints = torch.empty(0, dtype=torch.int64)  # non-finite losses, indices of other batches
        self._started: float | None = None

    def start(self) -> None:
        """Start the timer when the first iterator opens the epoch."""
        if self._started is None:
            self._started = time.perf_counter()

    @property
    def order(self) -> np.ndarray:
        """All samples, in the order of the epoch."""
        if self._order is None:
            self._order = recorded_order(self._n, self._seed, self.number)
        return self._order

    @property
    def seconds(self) -> float:
        """Seconds since the first iterator opened the epoch."""
        return 0.0 if self._started is None else time.perf_counter() - self._started

    def batch(self, number: int) -> list[int]:
        """Return the batch of this number; empty if there is none."""
        start = number * self._size
        found: list[int] = self.order[start : min(start + self._size, self._used)].tolist()
        return found

    def mark(self, index: torch.Tensor, losses: torch.Tensor) -> torch.Tensor:
        """Mark the largest losses of the next batch."""
        start, stop = self.done * self._size, (self.done + 1) * self._size
        if self._expected is None or self._expected.device != index.device:
            self._expected = torch.from_numpy(self.order[: self._used]).to(index.device, non_blocking=True)
        expected = self._expected[start:stop]
        if len(index) != self._size or (index.is_cpu and not torch.equal(index, expected)):
            came = f"{len(index)} from {int(index[0])} on" if index.is_cpu and len(index) else f"{len(index)}"
            raise FeedbackError(
                f"batch {self.done} of epoch {self.number} must be recorded next, {self._size} samples from "
                f"{self.order[start]} on; got {came}. {_IN_TURN}"
            )
        if self.done == 0:
            self._marks = torch.zeros(self._used, dtype=torch.bool, device=losses.device)
            self._complaints = torch.zeros(2, dtype=torch.int64, device=losses.device)
        # The order is random, so the first of equal losses is a random one.
        largest = torch.sort(losses, descending=True, stable=True).indices[: self._kept]
        marked = self._marks[start:stop].index_fill_(0, largest, True)
        self._complaints[0] += (~torch.isfinite(losses)).sum()
        if not index.is_cpu:
            self._complaints[1] += (index != expected).sum().to(losses.device)
        self.done += 1
        return marked.clone()

    def packed(self) -> np.ndarray:
        """Return the marks of the whole epoch, in bits. Waits for the device."""
        nonfinite, misplaced = self._complaints.tolist()
        if nonfinite:
            raise NonFiniteLossError(
                f"{nonfinite} of {self._used} losses of epoch {self.number} were NaN or infinite: the proxy has "
                "diverged, and its marks would be meaningless. Lower its learning rate, and record again."
            )
        if misplaced:
            raise FeedbackError(f"{misplaced} indices of epoch {self.number} did not match its batches. {_IN_TURN}")
        bits = np.zeros(self._n, dtype=np.bool_)
        bits[: self._used] = self._marks.cpu().numpy()
        return np.packbits(bits)


class _RecordedBatches(Sampler[list[int]]):
    """Yields the batches of the epoch that is being recorded, from the first without losses on."""

    def __init__(self, recorder: PlanRecorder, generator: torch.Generator | None = None) -> None:
        self._recorder = recorder
        self._generator = generator

    def __iter__(self) -> Iterator[list[int]]:
        epoch = self._recorder._begin()
        if self._generator is not None:
            self._generator.manual_seed(key64(self._recorder.seed, "plan workers", epoch.number) >> 1)
        return (epoch.batch(number) for number in range(epoch.done, self._recorder.batches))

    def __len__(self) -> int:
        """Batches in a whole epoch."""
        return self._recorder.batches
