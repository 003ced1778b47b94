"""KeyFilter: drops samples of a stream by key, before they are decoded."""

from __future__ import annotations

import math
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch

from orderdp._draw import key64
from orderdp._epochs import LAST_EPOCH, checked_group, find_group
from orderdp._validation import checked_epochs, checked_seed, is_count, stored_count, stored_flag
from orderdp.checkpoint import with_current_keys
from orderdp.errors import (
    ConfigError,
    DatasetError,
    NoFeedbackWarning,
    OrderDPWarning,
    StateError,
    UnsyncedStateWarning,
    warn,
    warn_nonfinite,
)
from orderdp.losses import checked_losses, checked_scores
from orderdp.policies.wrappers import refuse_budget
from orderdp.policy import Context, Policy, describe, nominal_ratio
from orderdp.pruner import checked_policy
from orderdp.streaming.key_table import (
    BY_RULE,
    KeyStats,
    KeyTable,
    check_same_keys,
    exchange_parts,
    named,
    raise_for_repeats,
)
from orderdp.streaming.worker_channel import (
    NO_DECISIONS,
    FilteredIterableDataset,
    KeepMask,
    KeyFilterStage,
    KeyOf,
    ScannedKeys,
    WorkerChannel,
    check_nothing_is_skipped,
    fingerprints,
    is_drawn,
    share_threshold,
)

if TYPE_CHECKING:
    from orderdp.distributed.collectives import Exchange

__all__ = ["Expected", "KeyFilter", "KeyState", "checked_for_keys", "draw_keys", "expected_kept", "kept_share"]


# Large enough that rounding to whole samples does not show in a ratio.
_MANY = 10**9


_COLUMNS = ("score", "usage", "seen")


class Expected(NamedTuple):
    """Number of samples that an epoch keeps: mean and standard deviation."""

    mean: float
    deviation: float


class KeyView:
    """Rows of a key table as a policy reads them.

    Args:
        table: The key table.
        rows: Rows of the policy's samples.
    """

    def __init__(self, table: KeyTable, rows: np.ndarray) -> None:
        self.n = len(rows)
        self._table, self._rows = table, rows

    def __getitem__(self, name: str) -> np.ndarray:
        """The column `name`, read-only."""
        if name not in _COLUMNS:
            raise ConfigError(f"there is no column {name!r} in a table of keys; there are {', '.join(_COLUMNS)}.")
        values: np.ndarray = self._table[name][self._rows]
        values.flags.writeable = False
        return values


def checked_for_keys(policy: Policy) -> Policy:
    """Return a policy that can select keys; raise if it cannot."""
    checked_policy(policy)
    refuse_budget(policy, "the number of samples in a stream is not known in advance")
    if policy.every == "batch":
        raise ConfigError(
            f"{describe(policy)} selects at every step, but a stream is filtered before the first step. Use "
            'every="epoch".'
        )
    if policy.columns or policy.compute_columns is not None:
        raise ConfigError(
            f"a table of keys stores only the last loss, but {type(policy).__name__} needs more. Use OrderDP, or a "
            "Pruner over an indexed data set."
        )
    return policy


def kept_share(policy: Policy, context: Context) -> float:
    """Fraction of a large data set that the policy keeps in this epoch; 1 if the policy does not say."""
    ratio = nominal_ratio(policy, _MANY, Context(_MANY, context.epoch, context.seed, context.epochs))
    return 1.0 if ratio is None else 1 - ratio


def draw_keys(table: KeyTable, rows: np.ndarray, policy: Policy, context: Context, hash_key: int) -> bool:
    """Decide on every key of the table: write the column "kept", and "weight" if the policy gives weights.

    Args:
        table: The key table.
        rows: Rows of the keys known to be in the stream, in order of fingerprint; the policy selects among them.
        policy: The policy.
        context: The epoch's context; its n is the length of `rows`.
        hash_key: Key of the hash that decides on all other keys.

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
    """Number of samples kept if `context.n` known keys and `new` new ones come.

    Of the known keys exactly as many as the policy says. Each new key is kept independently with the probability
    share = `kept_share`: a binomial number with variance new * share * (1 - share).
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
    """State from which a filter resumes.

    Args:
        policy: Description of the policy.
        seed: The seed.
        epoch: The next or open epoch.
        drawn: Whether the epoch has been drawn.
        weighted: Whether its samples have weights.
        trained: Number of its samples trained on.
        memory: Statistics of all keys.
    """

    policy: str
    seed: int
    epoch: int
    drawn: bool
    weighted: bool
    trained: int
    memory: KeyStats

    def as_dict(self, *, unsynced: bool) -> dict[str, Any]:
        """Return tensors and plain values.

        Args:
            unsynced: Whether the state lacks data of other ranks, and so cannot be loaded.
        """
        plain = {**self._asdict(), "memory": self.memory.state_dict()}
        return {"format": _FORMAT, "version": _VERSION, "unsynced": unsynced, **plain}

    @classmethod
    def read(cls, state: Any, policy: str) -> KeyState:
        """Build from `state`, after checking it, for a filter with this policy."""
        state = with_current_keys(state)
        _check_origin(state, policy)
        try:
            epoch = stored_count(state, "epoch", most=LAST_EPOCH)
            return cls(
                policy=policy,
                seed=checked_seed(state["seed"]),
                epoch=epoch,
                drawn=stored_flag(state, "drawn"),
                weighted=stored_flag(state, "weighted"),
                trained=stored_count(state, "trained"),
                memory=KeyStats.from_state(state["memory"], epoch),
            )
        except StateError:
            raise
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError) as error:
            raise StateError(f"the checkpoint is damaged ({error!r}). Use another one.") from error


def _check_origin(state: Any, policy: str) -> None:
    if not isinstance(state, Mapping) or state.get("format") != _FORMAT or state.get("version") != _VERSION:
        raise StateError(
            f"the state must come from KeyFilter.state_dict(), with version {_VERSION}. Pass that part of the "
            "checkpoint."
        )
    if state.get("policy") != policy:
        raise StateError(
            f"the checkpoint was written with {state.get('policy')}, this filter has {policy}. Create the filter with "
            "the same policy."
        )
    if state.get("unsynced"):
        raise StateError(
            "the checkpoint was written by one of several ranks without sync(): it lacks the losses of the other "
            "ranks. Call keys.sync() on all ranks before state_dict()."
        )


_NONE = np.empty(0, np.uint64)


class KeyFilter:
    """Decide by a sample's key, before the sample is decoded, whether this epoch trains on it.

    ::

        keys = KeyFilter(orderdp.OrderDP(prune_ratio=0.4), seed=0)
        samples = webdataset.WebDataset(shards).compose(keys.gate).decode().to_tuple("__key__", "png", "cls")
        loader = DataLoader(samples, batch_size=128, num_workers=4)
        for epoch in range(keys.epoch, epochs):
            for key, x, y in keys.one_epoch(loader):
                loss = keys.update(key, criterion(model(x), y))  # criterion has reduction="none"
                optimizer.zero_grad(); loss.backward(); optimizer.step()

    The keys of the last pass through the stream are the policy's data set: exactly as many of them are kept as the
    policy says. Unknown keys (in the first epoch, all keys) are kept with a probability of one minus the prune ratio.

    Args:
        policy: The policy, for example `OrderDP`.
        seed: Every random decision is a function of the seed, the epoch, the keys and the scores.
        epochs: Planned epochs, for policies that need them.
        key: Where a sample's key is: the name of an entry, a position in a tuple, or a function of the sample.
        duplicates: "raise" if a key comes at most once per epoch, "allow" if it may come more often.
        exchange: Whether, in a process group, all ranks keep the same keys, based on the scores of all ranks. Set to
            False if every rank reads the same part of the data in every epoch and is to decide by itself.
        process_group: The processes that share the data, if not all of them.
        on_nan: "warn" or "raise", once per epoch, if losses were NaN or infinite.
        folder: Folder for the keep masks that workers read; a temporary folder if None.
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
        self._memory = self._counting(KeyStats())
        self._drawn = False  # whether this epoch has been drawn
        self._weighted = False
        self._trained = 0  # samples of this epoch that have been trained on
        self._moved = False  # whether this process has trained on any of them since the epoch began or was loaded
        self._between = False  # whether an epoch has ended and the next has not begun
        self._awaited = False  # whether the stream has ended and none of the epoch's losses have come back
        self._done = _NONE  # fingerprints trained on before the epoch was loaded
        self._loaded = False  # whether no pass has ended since a state was loaded
        self._known = _NONE  # fingerprints that all ranks knew at the start of the epoch
        self._scanned: ScannedKeys | None = None  # keys scanned in the last epoch, until the next sync
        self._opening = NO_DECISIONS
        self._said_nonfinite = 0
        self._exchanged_bytes = 0
        self._warned_unsynced = False
        home = Path(tempfile.mkdtemp(prefix="orderdp-", dir=folder))
        weakref.finalize(self, _remove, home, os.getpid())
        self._channel = WorkerChannel(home)
        self._channel.post(self._decisions())
        #: Filter stage: ``keys.gate(samples)`` yields the kept samples. It can be sent to workers.
        self.gate = KeyFilterStage(self._channel, key)

    def __repr__(self) -> str:
        return f"KeyFilter({describe(self.policy)}, seed={self.seed}, epoch={self.epoch})"

    # -- iteration ---------------------------------------------------------------------------------------------

    def only(self, stream: Iterable[Any]) -> FilteredIterableDataset:
        """Kept samples of any iterable that can be iterated repeatedly, as a data set for a DataLoader.

        Args:
            stream: The iterable, with its samples not yet decoded.
        """
        return FilteredIterableDataset(stream, self.gate)

    def one_epoch(self, loader: Iterable[Any]) -> Iterator[Any]:
        """Draw this epoch, then yield the batches of `loader` to its end. A collective in a process group.

        Args:
            loader: Iterates over the samples that `gate` or `only` keeps, with or without workers.
        """
        check_nothing_is_skipped(loader)
        self._begin()
        served = 0
        for batch in loader:
            served += 1
            yield batch
        self._finish(served)

    def end_epoch(self) -> None:
        """End the epoch although the stream was left early. Does nothing if no sample was trained on."""
        if self._trained:
            self._advance()
            self._report_alone()

    def _begin(self) -> None:
        if self._awaited:
            self._repeat_awaited()
        if self._moved:
            self._advance()  # the last epoch was left early
        exchange = self._exchange()
        if exchange is not None and exchange.world > 1 and not self._strict and len(self._done):
            warn(
                f"epoch {self.epoch} continues after a checkpoint: each rank passes over as many occurrences of a key "
                "as all ranks have trained on, so repeats on other ranks may be left out of this epoch. Write "
                "checkpoints between epochs, keep the repeats of a key on one rank, or use exchange=False.",
                OrderDPWarning,
            )
        if exchange is None:
            self._memory.mark_synced()  # no rank needs the unsynced data, and their list would grow forever
        else:
            self._sync_with(exchange, "one_epoch")
        self._report_nonfinite()
        if not self._drawn:
            self._draw()
            if exchange is not None:
                table = self._memory.table.arrays()
                check_same_keys(exchange, (table["key"], table["kept"]), self.epoch)
        self._opening += 1
        self._between = False
        self._channel.post(self._decisions())

    def _draw(self) -> None:
        memory = self._memory
        memory.table.make_room_for_epoch(self.epoch)
        rows = memory.population()
        self._weighted = draw_keys(memory.table, rows, self.policy, self._context(len(rows)), self._hash_key)
        self._known = np.sort(memory.table["key"])
        memory.kept_before = memory.kept
        self._drawn = True

    def _decisions(self) -> KeepMask:
        """Keep mask for the rest of this epoch: samples already trained on are not served again."""
        table = self._memory.table.arrays()
        done = table["seen"] == self.epoch
        decided = done | (table["kept"] != BY_RULE)
        kept, times = (table["kept"] == 1) & ~done, np.empty(0, np.int32)
        if not self._strict and done.any():  # a key may come again after the occurrences that were trained on
            kept = (table["kept"] == 1) | (done & (table["kept"] == BY_RULE))
            times = np.where(done, table["visits"], 0)[decided]
        threshold = share_threshold(kept_share(self.policy, self._context(0)))
        marks, flags = table["key"][decided], kept[decided].astype(np.uint8)
        return KeepMask(self._opening, self._hash_key, threshold, marks, flags, times)

    def _counting(self, memory: KeyStats, epoch: int = 0) -> KeyStats:
        """Let `memory` count the occurrences of each key, if keys may repeat; an old state counts one."""
        if not self._strict and not memory.table.has("visits"):
            memory.table["visits"][:] = memory.table["seen"] == epoch
        return memory

    def _finish(self, served: int) -> None:
        """End the epoch when the loader is exhausted."""
        scanned = self._channel.collect(self._opening)
        together = self._exchange() is not None
        if not (served or together or len(scanned.marks) or len(self._done)):
            raise DatasetError("the stream must have samples, it has none. Check the paths of its shards.")
        self._scanned = scanned
        if served and not self._trained and self.policy.needs_feedback and not together:
            self._awaited = True  # a loop that fetches ahead may have all its losses still to come
            return
        if not together:
            self._absorb_own()
        self._advance()
        self._report_alone()

    def _end_awaited(self) -> None:
        """End the epoch whose stream had ended before its first losses came back."""
        self._awaited = False
        self._absorb_own()
        self._advance()

    def _repeat_awaited(self) -> None:
        self._awaited, self._scanned = False, None
        warn(
            "an epoch ended and update() received no losses, so the same samples are kept again. Call loss = "
            "keys.update(key, losses) in every step.",
            NoFeedbackWarning,
        )

    def _advance(self) -> None:
        self.epoch += 1
        self._drawn = self._moved = False
        self._between = True
        self._trained = 0

    # -- feedback ----------------------------------------------------------------------------------------------

    def update(self, keys: Any, losses: torch.Tensor, scores: torch.Tensor | None = None) -> torch.Tensor:
        """Store a batch's losses and return the scalar to call ``backward()`` on.

        Args:
            keys: The keys that came with the batch: a list, or a tensor of integers.
            losses: One loss per key; not modified.
            scores: Scores to store instead of the losses, if the two differ.
        """
        marks, losses = self._checked(keys, losses)
        values = losses.detach() if scores is None else checked_scores(scores, _as_index(marks))
        if self._awaited:
            self._end_awaited()
        rows = self._memory.table.find(marks)
        # A loop that prefetches a batch reaches the end of the stream before the last losses are back.
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
        """Store scores without counting as training: a warm start. The keys count as part of the stream.

        Args:
            keys: The keys: a list, or a tensor of integers.
            scores: One score per key.
        """
        marks = fingerprints(keys)
        self._memory.observed(marks, checked_scores(scores, _as_index(marks)), self.epoch)

    def reduce(self, keys: Any, losses: torch.Tensor) -> torch.Tensor:
        """Return the weighted mean that `update` returns and store nothing: for closures and second passes.

        Args:
            keys: The keys that came with the batch.
            losses: One loss per key.
        """
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

    def _report_nonfinite(self) -> None:
        self._memory.flush()
        new, self._said_nonfinite = self._memory.nonfinite - self._said_nonfinite, self._memory.nonfinite
        warn_nonfinite(new, as_error=self._raise_on_nan)

    def _report_alone(self) -> None:
        if self._exchange() is None:  # ranks of a group warn together, when the next epoch begins
            self._report_nonfinite()

    # -- distributed -------------------------------------------------------------------------------------------

    def sync(self) -> None:
        """Exchange scores between the ranks of a process group.

        A collective: every rank must call it after the same step, before a checkpoint is written.
        """
        exchange = self._exchange()
        if exchange is not None:
            self._sync_with(exchange, "sync")

    def _exchange(self) -> Exchange | None:
        return find_group(self._group) if self._exchanges else None

    def _sync_with(self, exchange: Exchange, action: str) -> None:
        from orderdp.distributed.sync import digest

        part = self._memory.part(self._scanned, self._known)
        settings = {
            "the call (one_epoch or sync)": action,
            "policy": describe(self.policy),
            "seed": self.seed,
            "epochs": self.epochs,
            "duplicates": "raise" if self._strict else "allow",
            "on_nan": "raise" if self._raise_on_nan else "warn",
            "epoch": self.epoch,
            "known keys (other checkpoints?)": f"digest {digest(self._known.tobytes()):x}",
        }
        parts, self._exchanged_bytes = exchange_parts(exchange, part, settings, self.epoch)
        twice = self._memory.merge(parts, exchange.rank)
        if any(part.at_end for part in parts):
            twice += self._memory.mark_scanned(parts, self._known, self.epoch - 1, self._done, loaded=self._loaded)
            self._scanned, self._done, self._loaded = None, _NONE, False
        self._refuse_repeats(twice, self.epoch - 1)

    def _absorb_own(self) -> None:
        part = self._memory.part(self._scanned, self._known)
        self._scanned = None
        self._memory.mark_synced()
        twice = self._memory.mark_scanned([part], self._known, self.epoch, self._done, loaded=self._loaded)
        self._done, self._loaded = _NONE, False
        self._refuse_repeats(twice, self.epoch)

    def _refuse_repeats(self, twice: int, epoch: int) -> None:
        if twice and self._strict:
            raise_for_repeats(twice, f"in epoch {epoch}")

    # -- reading -----------------------------------------------------------------------------------------------

    def scores_of(self, keys: Any) -> torch.Tensor:
        """Score of each key; infinite if it has never been trained on.

        Args:
            keys: The keys: a list, or a tensor of integers.
        """
        self._memory.flush()
        rows = self._memory.table.find(fingerprints(keys))
        known = np.append(self._memory.table["score"], np.float32(np.inf))
        return torch.from_numpy(known[rows])

    def expected_kept(self, new: int = 0) -> Expected:
        """Number of samples that the next draw keeps, if all known keys come again together with `new` new ones.

        In the first epoch all keys are new.

        >>> from orderdp import OrderDP
        >>> KeyFilter(OrderDP(prune_ratio=0.4)).expected_kept(new=10_000)
        Expected(mean=6000.0, deviation=48.98979485566356)
        """
        if not is_count(new, least=0):
            raise ConfigError(f"new must be a whole number of samples, at least 0, got {new!r}.")
        return expected_kept(self.policy, self._context(len(self._memory.population())), int(new))

    def report(self) -> dict[str, float]:
        """Savings so far, as flat numbers.

        Returns:
            epoch: finished epochs. keys: keys in the table. samples: keys in the stream. kept: samples
            trained on. offered: samples in finished epochs. saved: fraction of them that was not trained on. coverage:
            fraction of the samples trained on at least once. nonfinite: losses that were NaN or infinite.
            collision_bound: upper bound on the probability that any two keys have the same fingerprint. bytes_per_key:
            memory of the table. exchanged_bytes: bytes received at the last sync.
        """
        return {"epoch": self.epoch, **self._memory.summary(), "exchanged_bytes": self._exchanged_bytes}

    def _context(self, n: int) -> Context:
        return Context(n=n, epoch=self.epoch, seed=self.seed, epochs=self.epochs)

    @property
    def _hash_key(self) -> int:
        return key64(self.seed, "new keys", self.epoch)

    # -- checkpoints -------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the whole state, at any time, as values that ``torch.load(weights_only=True)`` accepts.

        In a process group call `sync` before, unless ``exchange=False``.
        """
        exchange = self._exchange()
        unsynced = exchange is not None and (self._memory.has_news or self._scanned is not None)
        if exchange is not None and unsynced and not self._warned_unsynced:
            self._warned_unsynced = True
            warn(
                f"this is the state of rank {exchange.rank} of {exchange.world} and lacks the losses of the other "
                "ranks; it cannot be loaded. Call keys.sync() on all ranks before state_dict().",
                UnsyncedStateWarning,
            )
        return self._state().as_dict(unsynced=unsynced)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the whole state. Raises, and changes nothing, if the state does not fit.

        A partly trained epoch continues: trained samples are not served again, wherever the stream begins.

        Args:
            state: Result of `state_dict`.
        """
        _, self.seed, self.epoch, self._drawn, self._weighted, self._trained, memory = KeyState.read(
            state, describe(self.policy)
        )
        self._memory = self._counting(memory, self.epoch)
        self._moved, self._between, self._awaited, self._scanned, self._loaded = False, False, False, None, True
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
    if os.getpid() == owner:  # a forked worker has a copy of everything, including this finalizer
        shutil.rmtree(folder, ignore_errors=True)
