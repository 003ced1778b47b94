"""KeyFilter: drops samples of a stream by key, before they are decoded."""

from __future__ import annotations

import math
import os
import shutil
import tempfile
import warnings
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from orderdp._draw import key64
from orderdp._process_group import checked_group
from orderdp._validation import checked_epochs, checked_seed, is_count
from orderdp._warnings import warn_nonfinite
from orderdp.errors import ConfigError, DatasetError, NoFeedbackWarning, StateError, UnsyncedStateWarning
from orderdp.policies.wrappers import refuse_budget
from orderdp.policy import Context, Policy, describe, nominal_ratio
from orderdp.pruner import checked_losses, checked_policy, checked_scores
from orderdp.streaming.fingerprints import fingerprints, is_drawn, share_threshold
from orderdp.streaming.key_sync import ITER, SYNC, Setup, exchange_parts, same_everywhere
from orderdp.streaming.key_table import BY_RULE, KeyStats, KeyTable, named, raise_for_repeats
from orderdp.streaming.worker_channel import (
    NO_DECISIONS,
    FilteredIterableDataset,
    KeepMask,
    KeyFilterStage,
    KeyOf,
    ScannedKeys,
    WorkerChannel,
    check_nothing_is_skipped,
)

__all__ = ["Expected", "KeyFilter", "KeyState", "checked_for_keys", "draw_keys", "expected_kept", "kept_share"]


# Large enough that rounding to whole samples does not show in a share.
_MANY = 10**9


_COLUMNS = ("score", "usage", "seen")


class Expected(NamedTuple):
    """How many samples an epoch keeps: on average, and with what standard deviation."""

    mean: float
    deviation: float


class KeyView:
    """What a policy may read of a key table: some of its rows.

    Args:
        table: The table.
        rows: Which of its rows are the policy's samples.
    """

    def __init__(self, table: KeyTable, rows: np.ndarray) -> None:
        self.n = len(rows)
        self._table, self._rows = table, rows

    def __getitem__(self, name: str) -> np.ndarray:
        """The column called `name`, read-only."""
        if name not in _COLUMNS:
            raise ConfigError(f"there is no column {name!r} in a table of keys; there are {', '.join(_COLUMNS)}.")
        values: np.ndarray = self._table[name][self._rows]
        values.flags.writeable = False
        return values


def checked_for_keys(policy: Policy) -> Policy:
    """A policy that can draw from keys, or an error."""
    checked_policy(policy)
    refuse_budget(policy, "how many samples a stream has is not known before it has passed")
    if getattr(policy, "every", "epoch") == "batch":
        raise ConfigError(
            f"{describe(policy)} chooses at every step, and a stream is filtered before there are steps. "
            'Use every="epoch".'
        )
    extra: Sequence[object] = tuple(getattr(policy, "columns", ()))
    if extra or getattr(policy, "compute_columns", None) is not None:
        raise ConfigError(
            f"a table of keys remembers the last loss and nothing else, and {type(policy).__name__} wants more. Use "
            "OrderDP, or a Pruner over data that have an index."
        )
    return policy


def kept_share(policy: Policy, context: Context) -> float:
    """The share of a large data set that the policy keeps in this epoch; all of it where it does not say."""
    ratio = nominal_ratio(policy, _MANY, Context(_MANY, context.epoch, context.seed, context.epochs))
    return 1.0 if ratio is None else 1 - ratio


def draw_keys(table: KeyTable, rows: np.ndarray, policy: Policy, context: Context, hash_key: int) -> bool:
    """Decides about every key in the table, in its column "kept", and in "weight" where the policy weights.

    Args:
        table: Where the keys are.
        rows: Those known to be in the stream, in the order of their fingerprints; the policy draws among them.
        policy: Who decides.
        context: The epoch's; its n is that of `rows`.
        hash_key: Key of the hash that decides about all others.

    Returns:
        Whether the policy gave weights.
    """
    threshold = share_threshold(kept_share(policy, context))
    kept = table["kept"]
    kept[:] = is_drawn(table["key"], hash_key, threshold)
    if table.has("weight"):
        table["weight"][:] = 1.0
    if not _can_draw(policy, context):
        return False
    selection = policy.select(KeyView(table, rows), context)
    kept[rows] = 0
    kept[rows[selection.indices]] = 1
    if selection.weights is not None:
        table["weight"][rows[selection.indices]] = selection.weights
    return selection.weights is not None


def expected_kept(policy: Policy, context: Context, new: int) -> Expected:
    """What is kept where `context.n` known keys come, and so many new ones.

    Of the known ones exactly as many as the policy says. Of the new ones each by itself, with the share as its
    probability: a binomial number, whose variance is new * share * (1 - share).
    """
    share = kept_share(policy, context)
    known = context.n
    exact = policy.size(known, context) if _can_draw(policy, context) else None
    loose = new if exact is not None else new + known
    return Expected((exact or 0) + loose * share, math.sqrt(loose * share * (1 - share)))


def _can_draw(policy: Policy, context: Context) -> bool:
    """Whether there are enough known keys for the policy to keep one of them."""
    if context.n < 1:
        return False
    try:
        policy.size(context.n, context)
    except ConfigError:
        if context.n * kept_share(policy, context) >= 2:
            raise
        return False
    return True


_FORMAT = "orderdp.KeyFilter"


_VERSION = 1


class KeyState(NamedTuple):
    """Everything that a filter must know to go on.

    Args:
        policy: How it describes itself.
        seed: Of everything random.
        epoch: Which one is next or open.
        drawn: Whether it has been decided about it.
        weighted: Whether its samples have weights.
        trained: How many of them have been trained on.
        memory: All keys.
    """

    policy: str
    seed: int
    epoch: int
    drawn: bool
    weighted: bool
    trained: int
    memory: KeyStats

    def as_dict(self, *, unsynced: bool) -> dict[str, Any]:
        """Tensors and plain values.

        Args:
            unsynced: Whether it lacks what other ranks have learnt, and so cannot be loaded.
        """
        plain = {**self._asdict(), "memory": self.memory.state_dict()}
        return {"format": _FORMAT, "version": _VERSION, "unsynced": unsynced, **plain}

    @classmethod
    def read(cls, state: Any, policy: str) -> KeyState:
        """What `state` describes, checked, for a filter with this policy."""
        _check_origin(state, policy)
        try:
            return cls(
                policy=policy,
                seed=int(state["seed"]),
                epoch=int(state["epoch"]),
                drawn=bool(state["drawn"]),
                weighted=bool(state["weighted"]),
                trained=int(state["trained"]),
                memory=KeyStats.from_state(state["memory"]),
            )
        except StateError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StateError(f"the checkpoint is damaged ({error!r}). Use another one.") from error


def _check_origin(state: Any, policy: str) -> None:
    if not isinstance(state, Mapping) or state.get("format") != _FORMAT or state.get("version") != _VERSION:
        raise StateError(
            f"this must be what KeyFilter.state_dict() gave, of version {_VERSION}. Pass that part of the checkpoint."
        )
    if state.get("policy") != policy:
        raise StateError(
            f"the checkpoint was written with {state.get('policy')}, this filter has {policy}. "
            "Make the filter with the same policy."
        )
    if state.get("unsynced"):
        raise StateError(
            "the checkpoint was written by one of several ranks without sync(): it lacks what the others had "
            "learnt. Call keys.sync() on all ranks before state_dict()."
        )


_NONE = np.empty(0, np.uint64)


class KeyFilter:
    """Decides by a sample's key, before it is decoded, whether this epoch trains on it.

    ::

        keys = KeyFilter(orderdp.OrderDP(prune_ratio=0.4), seed=0)
        samples = webdataset.WebDataset(shards).compose(keys.gate).decode().to_tuple("__key__", "png", "cls")
        loader = DataLoader(samples, batch_size=128, num_workers=4)
        for epoch in range(keys.epoch, epochs):
            for key, x, y in keys.one_epoch(loader):
                loss = keys.update(key, criterion(model(x), y))  # criterion has reduction="none"
                optimizer.zero_grad(); loss.backward(); optimizer.step()

    Keys that were there in the last pass through the stream are the policy's data set: exactly as many of them are kept
    as it says. Keys nobody has met, in the first epoch all there are, are kept with the policy's share as their
    probability.

    Args:
        policy: What to keep, for example `OrderDP`.
        seed: Everything random is a function of this, the epoch, the keys and the scores.
        epochs: How many epochs are planned, for policies that need to know.
        key: Where a sample's key is: the name of an entry, a position in a tuple, or a function of the sample.
        duplicates: "raise" where a key may come once an epoch, "allow" where it may come more often.
        exchange: Whether, in a process group, all ranks decide alike, by what all of them have learnt. False where
            every rank reads the same part of the data in every epoch and is to keep to itself.
        process_group: The processes that share the data, where that is not all of them.
        on_nan: "warn" or "raise", once an epoch, when losses were NaN or infinite.
        folder: Where to keep the decisions that workers read; a temporary folder if None.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        seed: int = 0,
        epochs: int | None = None,
        key: KeyOf = "__key__",
        duplicates: Literal["raise", "allow"] = "raise",
        exchange: bool = True,
        process_group: Any = None,
        on_nan: Literal["warn", "raise"] = "warn",
        folder: str | os.PathLike[str] | None = None,
    ) -> None:
        self.policy = checked_for_keys(policy)
        self.seed = checked_seed(seed)
        self.epochs = checked_epochs(epochs)
        for name, value, allowed in (("duplicates", duplicates, "allow"), ("on_nan", on_nan, "warn")):
            if value not in ("raise", allowed):
                raise ConfigError(f'{name} must be "raise" or "{allowed}", got {value!r}.')
        self._strict, self._raise_on_nan = duplicates == "raise", on_nan == "raise"
        self._exchanges, self._group = bool(exchange), checked_group(process_group)
        self.epoch = 0
        self._memory = KeyStats()
        self._drawn = False  # whether it has been decided about this epoch
        self._weighted = False
        self._trained = 0  # samples of this epoch that have been trained on
        self._moved = False  # whether any of them here, since the epoch began or was loaded
        self._between = False  # whether an epoch has ended and the next has not begun
        self._done = _NONE  # what had been trained on when the epoch was loaded
        self._loaded = False  # whether no pass has come to its end since a state was loaded
        self._known = _NONE  # what all ranks knew when the epoch began
        self._looked: ScannedKeys | None = None  # what the last epoch has looked at, until the ranks have met
        self._opening = NO_DECISIONS
        self._said_nonfinite = 0
        self._exchanged_bytes = 0
        self._warned_unsynced = False
        home = Path(tempfile.mkdtemp(prefix="orderdp-", dir=folder))
        weakref.finalize(self, _remove, home, os.getpid())
        self._board = WorkerChannel(home)
        self._board.post(self._decisions())
        #: A stage of a pipeline: ``keys.gate(samples)`` are those that are kept. It goes to workers by itself.
        self.gate = KeyFilterStage(self._board, key)

    def __repr__(self) -> str:
        return f"KeyFilter({describe(self.policy)}, seed={self.seed}, epoch={self.epoch})"

    # -- going through the stream ------------------------------------------------------------------------------

    def only(self, stream: Iterable[Any]) -> FilteredIterableDataset:
        """What is kept of any iterable that can be gone through again, as a data set for a DataLoader."""
        return FilteredIterableDataset(stream, self.gate)

    def one_epoch(self, loader: Iterable[Any]) -> Iterator[Any]:
        """Decides about this epoch, then hands out what `loader` does, to its end. In a process group a collective.

        Args:
            loader: Goes through what `gate` or `only` lets through, in workers or not.
        """
        check_nothing_is_skipped(loader)
        self._begin()
        served = 0
        for batch in loader:
            served += 1
            yield batch
        self._finish(served)

    def end_epoch(self) -> None:
        """Says that the epoch is over, though the stream was left early. Does nothing where nothing was trained on."""
        if self._trained:
            self._advance()
            self._hear_alone()

    def _begin(self) -> None:
        if self._moved:
            self._advance()  # the last one was left early
        exchange = self._exchange()
        if exchange is None:
            self._memory.told()  # there is nobody to tell, and the list of what is new would grow for ever
        else:
            self._meet(exchange, ITER)
        self._hear_complaints()
        if not self._drawn:
            self._draw()
            if exchange is not None:
                table = self._memory.table.arrays()
                same_everywhere(exchange, (table["key"], table["kept"]), self.epoch)
        self._opening += 1
        self._between = False
        self._board.post(self._decisions())

    def _draw(self) -> None:
        memory = self._memory
        memory.table.make_room_for_epoch(self.epoch)
        rows = memory.population()
        self._weighted = draw_keys(memory.table, rows, self.policy, self._context(len(rows)), self._hash_key)
        self._known = np.sort(memory.table["key"])
        memory.kept_before = memory.kept
        self._drawn = True

    def _decisions(self) -> KeepMask:
        """What is kept of the rest of this epoch: what has been trained on is not served again."""
        table = self._memory.table.arrays()
        done = table["seen"] == self.epoch
        told = done | (table["kept"] != BY_RULE)
        kept = (table["kept"] == 1) & ~done
        threshold = share_threshold(kept_share(self.policy, self._context(0)))
        return KeepMask(self._opening, self._hash_key, threshold, table["key"][told], kept[told].astype(np.uint8))

    def _finish(self, served: int) -> None:
        """The loader has come to its end."""
        looked = self._board.collect(self._opening)
        together = self._exchange() is not None
        if not (served or together or len(looked.marks) or len(self._done)):
            raise DatasetError("the stream must have samples, it has none. Look at where its shards are.")
        needs_feedback = getattr(self.policy, "needs_feedback", True)
        if served and not self._trained and needs_feedback and not together:
            warnings.warn(
                "an epoch came to its end and no loss came back, so the same samples are kept again. Call "
                "loss = keys.update(key, losses) in every step.",
                NoFeedbackWarning,
                stacklevel=3,
            )
            return
        self._looked = looked
        if not together:
            self._absorb_own()
        self._advance()
        self._hear_alone()

    def _advance(self) -> None:
        self.epoch += 1
        self._drawn = self._moved = False
        self._between = True
        self._trained = 0

    # -- feedback ----------------------------------------------------------------------------------------------

    def update(self, keys: Any, losses: torch.Tensor, scores: torch.Tensor | None = None) -> torch.Tensor:
        """Remembers a batch's losses and returns the scalar to call ``backward()`` on.

        Args:
            keys: The keys that came with the batch: a list, or a tensor of whole numbers.
            losses: One loss for each of them; it is not modified.
            scores: What to remember instead of the losses, where the two differ.
        """
        marks, losses = self._checked(keys, losses)
        values = losses.detach() if scores is None else checked_scores(scores, _as_index(marks))
        rows = self._memory.table.find(marks)
        # Who fetches a batch ahead comes to the end of the stream before the last losses are back.
        epoch = self.epoch - self._between
        if self._strict:
            repeated = self._memory.repeated(marks, rows, epoch)
            if repeated.any():
                example = f", for example {named(keys, repeated)}"
                raise_for_repeats(int(repeated.sum()), f"in epoch {epoch}", example)
        rows = self._memory.trained_on(marks, rows, values, epoch)
        if not self._between:
            self._trained += len(marks)
            self._moved = True
        return self._weighted_mean(rows, losses)

    def observe(self, keys: Any, scores: torch.Tensor) -> None:
        """Writes scores without counting as training: a warm start. Keys given here are taken to be in the stream."""
        marks = fingerprints(keys)
        self._memory.observed(marks, checked_scores(scores, _as_index(marks)), self.epoch)

    def reduce(self, keys: Any, losses: torch.Tensor) -> torch.Tensor:
        """The weighted mean that `update` returns, and nothing else: for closures and second passes."""
        marks, losses = self._checked(keys, losses)
        return self._weighted_mean(self._memory.table.find(marks), losses)

    def _checked(self, keys: Any, losses: torch.Tensor) -> tuple[np.ndarray, torch.Tensor]:
        marks = fingerprints(keys)
        return marks, checked_losses(losses, _as_index(marks), reduced=False)

    def _weighted_mean(self, rows: np.ndarray, losses: torch.Tensor) -> torch.Tensor:
        if self._weighted:
            weights = np.where(rows >= 0, self._memory.table["weight"][rows], np.float32(1))
            losses = losses * torch.from_numpy(weights).to(losses.device, losses.dtype, non_blocking=True)
        return losses.mean() if losses.numel() else losses.sum()

    def _hear_complaints(self) -> None:
        self._memory.flush()
        new, self._said_nonfinite = self._memory.nonfinite - self._said_nonfinite, self._memory.nonfinite
        warn_nonfinite(new, as_error=self._raise_on_nan)

    def _hear_alone(self) -> None:
        if self._exchange() is None:  # processes complain together, when the next epoch begins
            self._hear_complaints()

    # -- other processes ---------------------------------------------------------------------------------------

    def sync(self) -> None:
        """Exchanges what the processes of a group have learnt.

        A collective: all of them call it, after the same step, before they write a checkpoint.
        """
        exchange = self._exchange()
        if exchange is not None:
            self._meet(exchange, SYNC)

    def _exchange(self) -> Any:
        distributed = torch.distributed
        ready = distributed.is_available() and distributed.is_initialized()
        if not self._exchanges or (self._group is None and not ready):
            return None
        from orderdp.distributed.collectives import find_exchange

        return find_exchange(self._group)

    def _meet(self, exchange: Any, action: int) -> None:
        options = (describe(self.policy), self.seed, self.epochs, self._strict, self._raise_on_nan)
        part = self._memory.part(self._looked, self._known)
        setup = Setup(action, repr(options), self.epoch, self._known)
        parts, self._exchanged_bytes = exchange_parts(exchange, part, setup)
        twice = self._memory.take_over(parts, exchange.rank)
        if any(part.looked for part in parts):
            twice += self._memory.met(parts, self._known, self.epoch - 1, self._done, loaded=self._loaded)
            self._looked, self._done, self._loaded = None, _NONE, False
        self._refuse_repeats(twice, self.epoch - 1)

    def _absorb_own(self) -> None:
        part = self._memory.part(self._looked, self._known)
        self._looked = None
        self._memory.told()
        twice = self._memory.met([part], self._known, self.epoch, self._done, loaded=self._loaded)
        self._done, self._loaded = _NONE, False
        self._refuse_repeats(twice, self.epoch)

    def _refuse_repeats(self, twice: int, epoch: int) -> None:
        if twice and self._strict:
            raise_for_repeats(twice, f"in epoch {epoch}")

    # -- reading -----------------------------------------------------------------------------------------------

    def scores_of(self, keys: Any) -> torch.Tensor:
        """The score of each key; infinite where it has never been trained on."""
        self._memory.flush()
        rows = self._memory.table.find(fingerprints(keys))
        known = np.append(self._memory.table["score"], np.float32(np.inf))
        return torch.from_numpy(known[rows])

    def expected_kept(self, new: int = 0) -> Expected:
        """How many samples the next draw keeps, if all known keys come again and `new` ones besides.

        In the first epoch all keys are new.

        >>> from orderdp import OrderDP
        >>> KeyFilter(OrderDP(prune_ratio=0.4)).expected_kept(new=10_000)
        Expected(mean=6000.0, deviation=48.98979485566356)
        """
        if not is_count(new, least=0):
            raise ConfigError(f"new must be a whole number of samples, at least 0, got {new!r}.")
        return expected_kept(self.policy, self._context(len(self._memory.population())), int(new))

    def report(self) -> dict[str, float]:
        """What has been saved so far, as flat numbers.

        Returns:
            epoch: epochs that came to their end. keys: in the table. samples: keys taken to be in the stream. kept:
            samples trained on. offered: samples in epochs that came to their end. saved: the share of them that was not
            trained on. coverage: share of the samples trained on at least once. nonfinite: losses that were NaN or
            infinite. collision_bound: a bound on the probability that any two keys are taken for one.
            bytes_per_key: memory of the table. exchanged_bytes: what came in when ranks last met.
        """
        return {"epoch": self.epoch, **self._memory.summary(), "exchanged_bytes": self._exchanged_bytes}

    def _context(self, n: int) -> Context:
        return Context(n=n, epoch=self.epoch, seed=self.seed, epochs=self.epochs)

    @property
    def _hash_key(self) -> int:
        return key64(self.seed, "new keys", self.epoch)

    # -- checkpoints -------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Everything, at any moment, as tensors and plain values that ``torch.load(weights_only=True)`` accepts.

        In a process group call `sync` before, unless every rank keeps to itself.
        """
        exchange = self._exchange()
        unsynced = exchange is not None and (self._memory.has_news or self._looked is not None)
        if unsynced and not self._warned_unsynced:
            self._warned_unsynced = True
            warnings.warn(
                f"this is the state of rank {exchange.rank} of {exchange.world} and lacks what the others have learnt; "
                "it cannot be loaded. Call keys.sync() on all ranks before state_dict().",
                UnsyncedStateWarning,
                stacklevel=2,
            )
        return self._state().as_dict(unsynced=unsynced)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Puts everything back as it was. Raises, and changes nothing, where the state does not fit.

        An epoch that was half trained on goes on: what was trained on is not served again, wherever the stream begins.
        """
        _, self.seed, self.epoch, self._drawn, self._weighted, self._trained, memory = KeyState.read(
            state, describe(self.policy)
        )
        self._memory, self._moved, self._between, self._looked, self._loaded = memory, False, False, None, True
        table = memory.table
        self._done = table["key"][table["seen"] == self.epoch].copy()
        self._known = np.sort(table["key"][table["kept"] != BY_RULE]) if self._drawn else np.sort(table["key"])
        self._said_nonfinite = memory.nonfinite

    def _state(self) -> KeyState:
        return KeyState(
            policy=describe(self.policy),
            seed=self.seed,
            epoch=self.epoch,
            drawn=self._drawn,
            weighted=self._weighted,
            trained=self._trained,
            memory=self._memory,
        )


def _as_index(marks: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(marks.view(np.int64))


def _remove(folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # a forked worker has a copy of everything, this included
        shutil.rmtree(folder, ignore_errors=True)
