"""ScoreTable: what is stored per sample, as columns."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch

from orderdp._validation import stored_count
from orderdp.errors import ConfigError, FeedbackError, IndexRangeError, StateError
from orderdp.policy import Column

__all__ = [
    "SCORE",
    "SEEN",
    "USAGE",
    "BatchRows",
    "ComputeColumns",
    "ScoreTable",
    "allocated",
    "by_name",
    "check_ages",
    "check_columns",
    "lengthened",
    "mean_age",
]


SCORE = Column("score", initial=float("inf"))


USAGE = Column("usage", initial=0, dtype="int16", merge="sum")


#: The epoch in which the sample was last trained on or observed; -1 for never.
SEEN = Column("seen", initial=-1, dtype="int16")


def by_name(built_in: Iterable[Column], columns: Iterable[Column]) -> dict[str, Column]:
    """Return all columns of a table by name, the built-in ones first.

    Args:
        built_in: The columns that every table of that kind has.
        columns: The columns that a policy declares. A column with a known name must equal the known one.
    """
    declared = {column.name: column for column in built_in}
    for column in columns:
        if column.name in declared and column != declared[column.name]:
            raise ConfigError(
                f"column {column.name!r} is declared twice, as {declared[column.name]} and {column}. "
                "Give one of them another name."
            )
        declared[column.name] = column
    return declared


def allocated(declared: Mapping[str, Column], rows: int) -> dict[str, torch.Tensor]:
    """Allocate rows of unseen samples on the CPU."""
    return {
        name: torch.full((rows,), column.initial, dtype=_torch_dtype(column.dtype)) for name, column in declared.items()
    }


def lengthened(values: torch.Tensor, kept: int, rows: int, initial: float) -> tuple[torch.Tensor, int]:
    """Return a column with more rows, and how many values were copied for it.

    If its memory is too small, the new memory has half as much again.

    Args:
        values: The column.
        kept: Number of its rows that stay.
        rows: New number of rows.
        initial: Value of the new rows.
    """
    moved = 0
    if values.storage_offset() + rows > values.untyped_storage().nbytes() // values.element_size():
        larger = torch.empty(max(rows, (kept + 1) * 3 // 2), dtype=values.dtype, device=values.device)
        larger[:kept] = values[:kept]
        values, moved = larger, kept
    values = values.as_strided((rows,), (1,))
    values[kept:] = initial
    return values, moved


def check_columns(stored: Mapping[str, Any], columns: Mapping[str, torch.Tensor], size: int) -> None:
    """Raise if columns from a checkpoint cannot replace the current ones.

    Args:
        stored: The columns of the checkpoint.
        columns: The current columns.
        size: Number of values that each must have.
    """
    if set(stored) != set(columns):
        raise StateError(
            f"the checkpoint must have the columns {sorted(columns)}, it has {sorted(stored)}. "
            "It was written with another policy or by another version."
        )
    for name, values in stored.items():
        wanted = columns[name]
        if not isinstance(values, torch.Tensor) or values.shape != (size,):
            came = tuple(values.shape) if isinstance(values, torch.Tensor) else type(values).__name__
            raise StateError(
                f"column {name!r} of the checkpoint must hold {size} values, got {came}. Use a complete checkpoint of "
                "this data set."
            )
        alike = values.is_floating_point() == wanted.is_floating_point() and not values.is_complex()
        if not alike or values.isnan().any() or (name == "score" and torch.isneginf(values).any()):
            raise StateError(
                f"column {name!r} of the checkpoint must hold numbers like {wanted.dtype}, "
                f"got {values.dtype} or NaN. Use another checkpoint."
            )
        least = {"usage": 0, "seen": -1}.get(name)
        if least is not None and len(values) and int(values.min()) < least:
            raise StateError(f"column {name!r} of the checkpoint must be at least {least}. Use another checkpoint.")


def check_ages(columns: Mapping[str, torch.Tensor], epoch: int) -> None:
    """Raise if a sample of a checkpoint was seen after the checkpoint's epoch."""
    seen = columns.get("seen")
    if seen is not None and len(seen) and int(seen.max()) > epoch:
        raise StateError(
            f"column 'seen' of the checkpoint must not exceed its epoch {epoch}, got {int(seen.max())}. Use another "
            "checkpoint."
        )


def _torch_dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ConfigError(f"a column's dtype must be one that torch has, got {name!r}. Use 'float32', for example.")
    return dtype


# Counts start with two bytes and are widened to four long before they could overflow.
_WIDEN_AT = 1 << 14


_FLUSH_EVERY = 64


# Samples that are looked up together: few enough for the memory of large tables.
_COUNT_AT_ONCE = 1 << 20


ComputeColumns = Callable[..., Mapping[str, torch.Tensor]]


class BatchRows:
    """The rows of one batch as they are before its update, gathered only on access."""

    def __init__(self, table: ScoreTable, index: torch.Tensor, epoch: int) -> None:
        self.epoch = epoch
        self._table = table
        self._index = index

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._table.column(name).index_select(0, self._index)


class ScoreTable:
    """Columns of numbers, one row for each of `n` samples.

    Columns are made outside of inference mode, wherever the caller is: one made inside could not be written outside.

    There is always "score" (float32, +inf for unseen), "usage" (how often trained on) and "seen" (the epoch in
    which the sample was last trained on or observed, -1 for never): eight bytes per sample.

    Args:
        n: Number of samples.
        columns: The columns to store besides these.

    Attributes:
        first: The first sample that has a row; 0 except in a shard of a table.
        size: Number of samples that have a row; all except in a shard.
    """

    built_in: tuple[Column, ...] = (SCORE, USAGE, SEEN)

    def __init__(self, n: int, columns: Iterable[Column] = ()) -> None:
        self._set_up(n, range(n), 0, columns)

    @torch.inference_mode(False)
    def _set_up(self, n: int, held: range, spare: int, columns: Iterable[Column]) -> None:
        self.n, self.first, self.size = n, held.start, len(held)
        self.declared = by_name(self.built_in, columns)
        # One row more than there are samples: feedback with an out-of-range index goes there, because checking for
        # such indices would mean waiting for the device.
        self._columns = allocated(self.declared, self.size + spare + 1)
        self.device = torch.device("cpu")
        self._on_host = True
        self._invalid = torch.zeros(2, dtype=torch.int64)  # non-finite losses, out-of-range indices
        # Indices of steps whose usage and seen have not been written yet: writing a few dozen steps at once costs
        # as much as writing one.
        self._unflushed: list[torch.Tensor] = []
        self._unflushed_epoch = 0
        self._since_look = 0  # samples counted since the counts were last known to be small
        self._writes = 0
        # As long as the data set, without memory of its own: for the range check of indices on the CPU.
        self._rows = torch.zeros(1).expand(n)

    # -- device and size -------------------------------------------------------------------------------------

    @torch.inference_mode(False)
    def move(self, device: torch.device) -> None:
        """Move the table to `device`."""
        self.device = device
        self._on_host = device.type == "cpu"
        self._columns = {name: column.to(device) for name, column in self._columns.items()}
        self._invalid = self._invalid.to(device)
        self._unflushed = [index.to(device, non_blocking=True) for index in self._unflushed]

    @torch.inference_mode(False)
    def grow(self, n: int) -> int:
        """Add rows of unseen samples, up to `n` in all; return how many values were copied for it.

        If memory runs out, half as much again is allocated: so a value is copied a bounded number of times on average,
        however few rows are added at a time.
        """
        self.flush()
        total = 0
        for name, column in self._columns.items():
            self._columns[name], moved = lengthened(column, self.n, n + 1, self.declared[name].initial)
            total += moved
        self.n = self.size = n
        self._rows = torch.zeros(1).expand(n)
        return total

    def reset(self) -> None:
        """Make all samples unseen."""
        self._unflushed, self._writes = [], 0
        self._invalid.zero_()
        for name, column in self._columns.items():
            column.fill_(self.declared[name].initial)

    # -- reading ---------------------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> np.ndarray:
        """Return the column called `name`, read-only, on the host; without a copy if the table is on the host."""
        if self._unflushed:
            self.flush()
        column = self._columns[name] if name in self._columns else self.column(name)
        values: np.ndarray = column[: self.size].cpu().numpy()
        values.flags.writeable = False
        return values

    def column(self, name: str) -> torch.Tensor:
        """Return the column called `name` on the table's device, with one row more than there are samples."""
        self.flush()
        try:
            return self._columns[name]
        except KeyError:
            raise ConfigError(
                f"there is no column {name!r}; there are {', '.join(self._columns)}. "
                "A policy declares what it needs in `columns`."
            ) from None

    def scores_of(self, indices: np.ndarray) -> np.ndarray:
        """Return the scores of some samples, on the host."""
        where = torch.from_numpy(indices).to(self.device)
        scores: np.ndarray = self._columns["score"].index_select(0, where).cpu().numpy()
        return scores

    def uses_of(self, index: torch.Tensor) -> torch.Tensor:
        """Return how often these samples were trained on, int64, on the table's device and without waiting for it."""
        self.check_range(index)
        rows = index.to(self.device, non_blocking=not self._on_host)
        # An index on a device has not been checked; `write` counts the out-of-range ones.
        rows = rows if index.is_cpu else rows.clamp(0, self.n)
        return self.column("usage").index_select(0, rows).to(torch.int64)

    # -- writing ---------------------------------------------------------------------------------------------

    def write(
        self,
        index: torch.Tensor,
        losses: torch.Tensor,
        *,
        epoch: int,
        trained: bool = True,
        mean: torch.Tensor | None = None,
        compute_columns: ComputeColumns | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        """Store the feedback of a batch.

        A score of +inf that is not trained on, as that of an unseen sample in another table, leaves its row unchanged.
        Any other non-finite loss leaves a seen sample unchanged and counts as the batch's finite mean for an unseen
        one, so that the sample does not rank first forever. If no loss of the batch is finite, unseen samples stay
        unseen.

        Args:
            index: The samples, int64.
            losses: One number per sample, detached.
            epoch: The current epoch, for "seen".
            trained: Whether this counts as training ("usage").
            mean: The mean of the losses, if already computed: it shows whether all of them are finite.
            compute_columns: How losses become columns; None writes them to "score".
            extra: Further keyword arguments of `compute_columns`.
        """
        index = self._checked(index)
        if losses.dtype is not torch.float32 or losses.device != self.device:
            if losses.dtype is torch.float64:
                mean, losses = None, _in_range(losses)  # the mean may be finite even if a loss is infinite in the table
            losses = losses.to(device=self.device, dtype=torch.float32, non_blocking=not self._on_host)
        if self._on_host and compute_columns is None and math.isfinite((losses.sum() if mean is None else mean).item()):
            self._columns["score"].index_copy_(0, index, losses)
        else:
            unseen = None if trained else torch.isposinf(losses)
            self._write_carefully(BatchRows(self, index, epoch), index, losses, compute_columns, extra or {}, unseen)
            if unseen is not None:
                index = torch.where(unseen, len(self._columns["score"]) - 1, index)
        if trained:
            self._count(index, epoch)
        else:
            self.flush()
            self._stamp(index, epoch)

    def check_range(self, index: torch.Tensor) -> None:
        """Raise if an index on the host is out of range; an index on a device is not read."""
        if not index.is_cpu:
            return
        try:
            self._rows.index_select(0, index)  # checks the range only, and before any write
        except (IndexError, RuntimeError):
            wrong = index[(index < 0) | (index >= self.n)]
            raise IndexRangeError(
                f"indices must be in [0, {self.n}), the length of the data set; got {int(wrong[0])} "
                f"({len(wrong)} of {len(index)} in this batch are outside). "
                "Pass the index that came with the batch, unchanged."
            ) from None

    def _checked(self, index: torch.Tensor) -> torch.Tensor:
        """Return the index on the table's device, with every entry in range or set to the spare row."""
        if index.is_cpu:
            self.check_range(index)
            return index if self._on_host else index.to(self.device, non_blocking=True)
        index = index.to(self.device)
        outside = (index < 0) | (index >= self.n)
        self._invalid[1] += outside.sum()
        return torch.where(outside, self.n, index)

    def _write_carefully(
        self,
        rows: BatchRows,
        index: torch.Tensor,
        losses: torch.Tensor,
        compute_columns: ComputeColumns | None,
        extra: Mapping[str, Any],
        skipped: torch.Tensor | None = None,
    ) -> None:
        finite = torch.isfinite(losses)
        # The sum of large losses may overflow, though their mean would not.
        mean = torch.nan_to_num(torch.where(finite, losses, 0.0).sum() / finite.sum().clamp(min=1))
        usable = torch.where(finite, losses, mean)
        written = finite | (torch.isinf(rows["score"]) & finite.any())
        invalid = ~finite
        if skipped is not None:
            written, invalid = written & ~skipped, invalid & ~skipped
        here = {name: self._here(value) for name, value in extra.items()}
        new = {"score": usable, **({} if compute_columns is None else compute_columns(rows, usable, **here))}
        for name, values in new.items():
            _check_shape(name, values, losses, here)
        self._invalid[0] += invalid.sum()
        for name, values in new.items():
            self._merge(name, index, values, written)

    def _here(self, value: Any) -> Any:
        # Non-blocking only to a device: a non-blocking copy to the host may be read before it is complete.
        return value.to(self.device, non_blocking=not self._on_host) if isinstance(value, torch.Tensor) else value

    def _merge(self, name: str, index: torch.Tensor, values: torch.Tensor, written: torch.Tensor) -> None:
        column = self.column(name)
        written = written & ~torch.isnan(values)  # NaN that the policy computed from a NaN argument
        values = values.to(device=column.device, dtype=column.dtype)
        if column.is_floating_point() and (name == "score" or math.isfinite(self.declared[name].initial)):
            # What overflows is the largest number there is: an infinite one would stay, or mark the sample as unseen.
            values = values.clamp(torch.finfo(column.dtype).min, torch.finfo(column.dtype).max)
        if self.declared[name].merge == "sum":
            column.index_add_(0, index, torch.where(written, values, torch.zeros_like(values)))
        else:
            # Skipped values go to the spare row, which is never read. Writing back the old value instead would undo
            # the write of the same sample at another position of the batch.
            column.index_copy_(0, torch.where(written, index, len(column) - 1), values)

    def _count(self, index: torch.Tensor, epoch: int) -> None:
        if self._unflushed and (epoch != self._unflushed_epoch or len(self._unflushed) >= _FLUSH_EVERY):
            self.flush()
        self._unflushed_epoch = epoch
        self._unflushed.append(index.clone())  # the caller may reuse the memory
        self._writes += 1

    def flush(self) -> None:
        """Write usage and seen of the last steps."""
        if not self._unflushed:
            return
        index = torch.cat(self._unflushed)
        self._unflushed = []
        for part in torch.split(index, _WIDEN_AT):
            usage = self._columns["usage"]
            self._since_look += len(part)
            # One sample may be all that was counted. Not on a device, which would have to be waited for.
            look = self._since_look > _WIDEN_AT and self._on_host and usage.dtype is torch.int16
            if look and usage.index_select(0, part).max() >= _WIDEN_AT:
                usage = self._columns["usage"] = usage.to(torch.int32)
            usage.index_add_(0, part, torch.ones(len(part), dtype=usage.dtype, device=usage.device))
        self._stamp(index, self._unflushed_epoch)

    def _stamp(self, rows: torch.Tensor, epoch: int) -> None:
        """Write the epoch to "seen"."""
        if epoch > torch.iinfo(self._columns["seen"].dtype).max:  # an epoch from a checkpoint
            self._columns["seen"] = self._columns["seen"].to(torch.int32)
        self._columns["seen"].index_fill_(0, rows, epoch)

    @torch.inference_mode(False)
    def put(self, index: np.ndarray, columns: Mapping[str, np.ndarray]) -> None:
        """Replace some rows by values computed elsewhere."""
        where = torch.from_numpy(index).to(self.device)
        self._since_look = _WIDEN_AT
        for name, values in columns.items():
            column = self.column(name)
            new = torch.from_numpy(values).to(self.device)
            counts = not column.is_floating_point() and column.dtype is not torch.bool
            if counts and len(values) and int(values.max()) > torch.iinfo(column.dtype).max:
                column = self._columns[name] = column.to(torch.int32)
            column.index_copy_(0, where, new.to(column.dtype))

    # -- once per epoch --------------------------------------------------------------------------------------

    def summary(self, epoch: int) -> dict[str, float]:
        """Return the fraction of samples trained on at least once, and the mean age of the seen scores, in epochs."""
        return {"coverage": float((self["usage"] > 0).mean()), "staleness": mean_age(self["seen"], epoch)}

    def count_seen(self, samples: np.ndarray, epoch: int) -> torch.Tensor:
        """Return how many of `samples`, and how many of all samples, were last seen in `epoch`.

        On the table's device, and without waiting for it.
        """
        self.flush()
        seen = self._columns["seen"][: self.size]
        if self._on_host:
            found = seen.numpy() == epoch
            of_samples = found.take(samples, mode="wrap")  # all are in range; looking costs as much again
            return torch.tensor([np.count_nonzero(of_samples), np.count_nonzero(found)])
        is_seen = seen == epoch
        counts = torch.zeros(2, dtype=torch.int64, device=self.device)
        counts[1] = is_seen.sum()
        for part in np.array_split(samples, 1 + len(samples) // _COUNT_AT_ONCE):
            where = torch.from_numpy(part).to(self.device, non_blocking=not self._on_host)
            counts[0] += is_seen.index_select(0, where).sum()
        return counts

    def invalid_counts(self) -> tuple[int, int]:
        """Return the number of non-finite losses and of out-of-range indices. Waits for the device."""
        nonfinite, outside = self._invalid.tolist()
        return nonfinite, outside

    def take_invalid_counts(self) -> tuple[int, int]:
        """Return the same counts, and set them to 0."""
        counts = self.invalid_counts()
        self._invalid.zero_()
        return counts

    def counters(self) -> tuple[int, int, int]:
        """Return the number of non-finite losses, of out-of-range indices, and of writes. Waits for the device."""
        return (*self.invalid_counts(), self._writes)

    @torch.inference_mode(False)
    def set_counters(self, nonfinite: int, outside: int, writes: int) -> None:
        """Set the counters to the totals of all ranks."""
        self._invalid = torch.tensor([nonfinite, outside], dtype=torch.int64, device=self.device)
        self._writes = writes

    @torch.inference_mode(False)
    def begin_epoch(self, epoch: int) -> tuple[int, int]:
        """Widen the counts before they can overflow; return the counts of invalid values and set them to 0."""
        if self._unflushed:
            self.flush()
        if epoch >= _WIDEN_AT:
            self._columns["seen"] = self._columns["seen"].to(torch.int32)
        # If batches repeat samples, a count may exceed the number of writes.
        if self._columns["usage"].dtype is torch.int16 and int(self._columns["usage"].max()) >= _WIDEN_AT:
            self._columns["usage"] = self._columns["usage"].to(torch.int32)
        self._since_look = 0
        nonfinite, outside = self._invalid.tolist()
        self._invalid.zero_()
        return nonfinite, outside

    # -- checkpoints -----------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of all columns on the CPU, and the counters."""
        self.flush()
        columns = {name: column[: self.n].to("cpu", copy=True) for name, column in self._columns.items()}
        return {"columns": columns, "invalid_counts": self._invalid.to("cpu", copy=True), "writes": self._writes}

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Raise if `load_state_dict` would fail; change nothing."""
        check_columns(state["columns"], self._columns, self.size)
        invalid = state["invalid_counts"]
        fits = isinstance(invalid, torch.Tensor) and invalid.shape == (2,) and invalid.dtype == torch.int64
        if not fits or int(invalid.min()) < 0:
            raise StateError("the checkpoint's counters are damaged. Use another checkpoint.")
        stored_count(state, "writes")

    @torch.inference_mode(False)
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned; the table stays on its device."""
        self.check_state(state)
        device = self.device
        self._unflushed, self._since_look = [], _WIDEN_AT
        for name, values in state["columns"].items():
            # Counts may have been widened; scores may have been stored in another precision to save space.
            declared = _torch_dtype(self.declared[name].dtype)
            dtype = declared if values.is_floating_point() else torch.promote_types(values.dtype, declared)
            column = torch.full((self.n + 1,), self.declared[name].initial, dtype=dtype)
            column[: self.n] = values.cpu()
            self._columns[name] = column.to(device)
        self._invalid = state["invalid_counts"].to(device, copy=True)
        self._writes = int(state["writes"])


def _in_range(losses: torch.Tensor) -> torch.Tensor:
    """Return doubles that are finite in single precision if they are finite: too large ones as the largest float."""
    most = torch.finfo(torch.float32).max
    return torch.where(torch.isinf(losses), losses, losses.clamp(-most, most))


def _check_shape(name: str, values: torch.Tensor, losses: torch.Tensor, told: Mapping[str, Any]) -> None:
    """Raise if a policy computes anything but one value per sample of a batch."""
    if values.ndim == 0 or values.shape == losses.shape:
        return
    shapes = {argument: tuple(value.shape) for argument, value in told.items() if isinstance(value, torch.Tensor)}
    other = [argument for argument, shape in shapes.items() if shape != tuple(losses.shape)]
    hint = (
        f"Pass {other[0]} of shape {tuple(losses.shape)}, not {shapes[other[0]]}."
        if other
        else "Check the policy's `compute_columns`."
    )
    raise FeedbackError(
        f"what a policy stores in column {name!r} must be one value for each of the {len(losses)} samples, got shape "
        f"{tuple(values.shape)}. {hint}"
    )


def mean_age(seen: np.ndarray, epoch: int) -> float:
    """Return the mean age of the seen samples' scores, in epochs; 0 if none was seen."""
    seen = seen[seen >= 0]
    return float(epoch - seen.mean()) if len(seen) else 0.0
