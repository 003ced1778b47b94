"""ScoreTable: what is stored about each sample, as columns."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch

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
    "check_columns",
    "lengthened",
    "mean_age",
]


SCORE = Column("score", initial=float("inf"))


USAGE = Column("usage", initial=0, dtype="int16", merge="sum")


#: The epoch in which it was last trained on or observed; -1 for never.
SEEN = Column("seen", initial=-1, dtype="int16")


def by_name(built_in: Iterable[Column], columns: Iterable[Column]) -> dict[str, Column]:
    """All columns of a table, those that every table has first.

    Args:
        built_in: What every table of that kind has.
        columns: What a policy declares besides. One of the same name must be the same.
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
    """Memory for so many rows that nobody has seen, on the CPU."""
    return {
        name: torch.full((rows,), column.initial, dtype=_torch_dtype(column.dtype)) for name, column in declared.items()
    }


def lengthened(values: torch.Tensor, kept: int, rows: int, initial: float) -> tuple[torch.Tensor, int]:
    """A column with more rows, and how many values were moved for it.

    Where its memory has no room for them, new memory has half as much again.

    Args:
        values: The column as it is.
        kept: How many of its rows stay.
        rows: How many there are to be.
        initial: What the others are set to.
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
    """Raises where columns out of a checkpoint could not take the place of those that are there.

    Args:
        stored: The columns of the checkpoint.
        columns: Those that are there.
        size: How many values each must have.
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
                f"column {name!r} of the checkpoint must hold {size} values, got {came}. "
                "Use a checkpoint of this data set that was written to its end."
            )
        if values.is_floating_point() != wanted.is_floating_point() or values.isnan().any():
            raise StateError(
                f"column {name!r} of the checkpoint must hold numbers like {wanted.dtype}, "
                f"got {values.dtype} or NaN. Use another checkpoint."
            )


def _torch_dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ConfigError(f"a column's dtype must be one that torch has, got {name!r}. Use 'float32', for example.")
    return dtype


# Counts start in two bytes and move to four long before they could overflow.
_WIDEN_AT = 1 << 14


_FLUSH_EVERY = 64


ComputeColumns = Callable[..., Mapping[str, torch.Tensor]]


class BatchRows:
    """The rows of one batch as they were before it, gathered only if asked for."""

    def __init__(self, table: ScoreTable, index: torch.Tensor, epoch: int) -> None:
        self.epoch = epoch
        self._table = table
        self._index = index

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._table.column(name).index_select(0, self._index)


class ScoreTable:
    """Columns of numbers, one row for each of `n` samples.

    There is always "score" (float32, +inf for unseen), "usage" (how often trained on) and "seen" (the epoch in
    which it was last trained on or observed, -1 for never): eight bytes a sample.

    Args:
        n: Number of samples.
        columns: What else to remember.

    Attributes:
        first: The first sample it has a row for; 0 but in a part of a table.
        size: For how many it has one; all of them but in a part.
    """

    built_in: tuple[Column, ...] = (SCORE, USAGE, SEEN)

    def __init__(self, n: int, columns: Iterable[Column] = ()) -> None:
        self._set_up(n, range(n), 0, columns)

    def _set_up(self, n: int, held: range, spare: int, columns: Iterable[Column]) -> None:
        self.n, self.first, self.size = n, held.start, len(held)
        self.declared = by_name(self.built_in, columns)
        # One row more than there are samples: feedback with an impossible index goes there, because finding out
        # whether there is any would mean waiting for the device.
        self._columns = allocated(self.declared, self.size + spare + 1)
        self.device = torch.device("cpu")
        self._on_host = True
        self._strays = torch.zeros(2, dtype=torch.int64)  # non-finite losses, impossible indices
        # Indices of steps whose usage and seen have not been written yet: a few dozen steps at once cost as much
        # as one.
        self._unsettled: list[torch.Tensor] = []
        self._unsettled_epoch = 0
        self._writes = 0
        # As long as the data set and without memory of its own: for the range check of indices on the CPU.
        self._rows = torch.zeros(1).expand(n)

    # -- where it lives ------------------------------------------------------------------------------------

    def move(self, device: torch.device) -> None:
        """Moves the table to `device`."""
        self.device = device
        self._on_host = device.type == "cpu"
        self._columns = {name: column.to(device) for name, column in self._columns.items()}
        self._strays = self._strays.to(device)
        self._unsettled = [index.to(device, non_blocking=True) for index in self._unsettled]

    def grow(self, n: int) -> int:
        """Adds rows of samples that nobody has seen, up to `n` in all; returns how many values were moved for it.

        Where there is no room, half as much again is made: so a value is moved a bounded number of times on average,
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

    # -- reading -------------------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> np.ndarray:
        """The column called `name`, read-only, on the host; without a copy where the table is there already."""
        values: np.ndarray = self.column(name)[: self.size].cpu().numpy()
        values.flags.writeable = False
        return values

    def column(self, name: str) -> torch.Tensor:
        """The column called `name` on the table's device, with one row more than there are samples."""
        self.flush()
        try:
            return self._columns[name]
        except KeyError:
            raise ConfigError(
                f"there is no column {name!r}; there are {', '.join(self._columns)}. "
                "A policy declares what it needs in `columns`."
            ) from None

    def scores_of(self, indices: np.ndarray) -> np.ndarray:
        """The scores of some samples, on the host."""
        where = torch.from_numpy(indices).to(self.device)
        scores: np.ndarray = self._columns["score"].index_select(0, where).cpu().numpy()
        return scores

    def uses_of(self, index: torch.Tensor) -> torch.Tensor:
        """How often these samples were trained on, int64, on the table's device and without waiting for it."""
        self.check_range(index)
        rows = index.to(self.device, non_blocking=not self._on_host)
        # Where an index came on a device nobody has looked at it; `write` counts those that are impossible.
        rows = rows if index.is_cpu else rows.clamp(0, self.n)
        return self.column("usage").index_select(0, rows).to(torch.int64)

    # -- writing -------------------------------------------------------------------------------------------

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
        """Remembers what a batch said.

        A loss that is not finite leaves a seen sample alone and counts as the batch's finite mean for an unseen
        one, so that it does not stay first for ever. Where no loss of the batch is finite nothing is known, and unseen
        samples stay unseen.

        Args:
            index: Which samples, int64.
            losses: One number for each, detached.
            epoch: The current epoch, for "seen".
            trained: Whether this counts as training ("usage").
            mean: The mean of the losses, where somebody has it: it tells whether all of them are finite.
            compute_columns: How losses become columns; None writes them to "score".
            extra: More keyword arguments of `compute_columns`.
        """
        index = self._checked(index)
        if losses.dtype is torch.float64:
            mean = None  # it may be finite where a loss is too large for the table
        if losses.dtype is not torch.float32 or losses.device != self.device:
            losses = losses.to(device=self.device, dtype=torch.float32, non_blocking=not self._on_host)
        if self._on_host and compute_columns is None and math.isfinite((losses.sum() if mean is None else mean).item()):
            self._columns["score"].index_copy_(0, index, losses)
        else:
            self._write_carefully(BatchRows(self, index, epoch), index, losses, compute_columns, extra or {})
        if trained:
            self._count(index, epoch)
        else:
            self.flush()
            self._stamp(index, epoch)

    def check_range(self, index: torch.Tensor) -> None:
        """Raises where an index on the host points at no sample; one on a device is not looked at."""
        if not index.is_cpu:
            return
        try:
            self._rows.index_select(0, index)  # looks at nothing but the range, and before any write
        except (IndexError, RuntimeError):
            wrong = index[(index < 0) | (index >= self.n)]
            raise IndexRangeError(
                f"indices must be in [0, {self.n}), the length of the data set; got {int(wrong[0])} "
                f"({len(wrong)} of {len(index)} in this batch are outside). "
                "Pass the index that came with the batch, unchanged."
            ) from None

    def _checked(self, index: torch.Tensor) -> torch.Tensor:
        """The index on the table's device, with every entry pointing at some row."""
        self.check_range(index)
        if index.is_cpu:
            return index if self._on_host else index.to(self.device, non_blocking=True)
        index = index.to(self.device)
        outside = (index < 0) | (index >= self.n)
        self._strays[1] += outside.sum()
        return torch.where(outside, self.n, index)

    def _write_carefully(
        self,
        rows: BatchRows,
        index: torch.Tensor,
        losses: torch.Tensor,
        compute_columns: ComputeColumns | None,
        extra: Mapping[str, Any],
    ) -> None:
        finite = torch.isfinite(losses)
        mean = torch.where(finite, losses, 0.0).sum() / finite.sum().clamp(min=1)
        usable = torch.where(finite, losses, mean)
        written = finite | (torch.isinf(rows["score"]) & finite.any())
        here = {name: self._here(value) for name, value in extra.items()}
        new = {"score": usable, **({} if compute_columns is None else compute_columns(rows, usable, **here))}
        for name, values in new.items():
            _check_shape(name, values, losses, here)
        self._strays[0] += (~finite).sum()
        for name, values in new.items():
            self._merge(name, index, values, written)

    def _here(self, value: Any) -> Any:
        # Not to the host: a copy that nobody waits for may be read before it is there.
        return value.to(self.device, non_blocking=not self._on_host) if isinstance(value, torch.Tensor) else value

    def _merge(self, name: str, index: torch.Tensor, values: torch.Tensor, written: torch.Tensor) -> None:
        column = self.column(name)
        written = written & ~torch.isnan(values)  # what a policy made of a NaN among its arguments
        values = values.to(device=column.device, dtype=column.dtype)
        if self.declared[name].merge == "sum":
            column.index_add_(0, index, torch.where(written, values, torch.zeros_like(values)))
        else:
            # What is not written goes to the row that nobody reads. Writing back the old value instead would undo the
            # write of the same sample at another place of the batch.
            column.index_copy_(0, torch.where(written, index, len(column) - 1), values)

    def _count(self, index: torch.Tensor, epoch: int) -> None:
        if epoch != self._unsettled_epoch or len(self._unsettled) >= _FLUSH_EVERY:
            self.flush()
            self._unsettled_epoch = epoch
        self._unsettled.append(index.clone())  # its owner may use the memory again
        self._writes += 1

    def flush(self) -> None:
        """Writes usage and seen of the last steps."""
        if not self._unsettled:
            return
        index = torch.cat(self._unsettled)
        self._unsettled = []
        usage = self._columns["usage"]
        usage.index_add_(0, index, torch.ones(len(index), dtype=usage.dtype, device=usage.device))
        self._stamp(index, self._unsettled_epoch)

    def _stamp(self, rows: torch.Tensor, epoch: int) -> None:
        """Writes when they were seen."""
        self._columns["seen"].index_fill_(0, rows, epoch)

    def put(self, index: np.ndarray, columns: Mapping[str, np.ndarray]) -> None:
        """Replaces some rows by values that were worked out elsewhere."""
        where = torch.from_numpy(index).to(self.device)
        for name, values in columns.items():
            column = self.column(name)
            new = torch.from_numpy(values).to(self.device)
            counts = not column.is_floating_point() and column.dtype is not torch.bool
            if counts and len(values) and int(values.max()) > torch.iinfo(column.dtype).max:
                column = self._columns[name] = column.to(torch.int32)
            column.index_copy_(0, where, new.to(column.dtype))

    # -- once an epoch ---------------------------------------------------------------------------------------

    def summary(self, epoch: int) -> dict[str, float]:
        """The share of samples trained on at least once, and the mean age of the seen ones' scores, in epochs."""
        return {"coverage": float((self["usage"] > 0).mean()), "staleness": mean_age(self["seen"], epoch)}

    def invalid_counts(self) -> tuple[int, int]:
        """How many losses were not finite and how many indices impossible. Waits for the device."""
        nonfinite, outside = self._strays.tolist()
        return nonfinite, outside

    def clear_invalid_counts(self) -> None:
        """Counts them from 0 again."""
        self._strays.zero_()

    def counters(self) -> tuple[int, int, int]:
        """Losses that were not finite, impossible indices, and writes. Waits for the device."""
        return (*self.invalid_counts(), self._writes)

    def set_counters(self, nonfinite: int, outside: int, writes: int) -> None:
        """Sets the counters to what all ranks have counted together."""
        self._strays = torch.tensor([nonfinite, outside], dtype=torch.int64, device=self.device)
        self._writes = writes

    def widen_counters(self, epoch: int) -> None:
        """Widens the counts before they can overflow. Called once an epoch."""
        self.flush()
        if epoch >= _WIDEN_AT:
            self._columns["seen"] = self._columns["seen"].to(torch.int32)
        # Where batches repeat samples, a count may exceed the number of writes.
        if self._columns["usage"].dtype is torch.int16 and int(self._columns["usage"].max()) >= _WIDEN_AT:
            self._columns["usage"] = self._columns["usage"].to(torch.int32)

    # -- checkpoints -----------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """A copy of all columns on the CPU, and the counters."""
        self.flush()
        columns = {name: column[: self.n].to("cpu", copy=True) for name, column in self._columns.items()}
        return {"columns": columns, "invalid_counts": self._strays.to("cpu", copy=True), "writes": self._writes}

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Raises where `load_state_dict` would not fit, and changes nothing."""
        check_columns(state["columns"], self._columns, self.size)
        if not isinstance(state["invalid_counts"], torch.Tensor) or state["invalid_counts"].shape != (2,):
            raise StateError("the checkpoint's counters are damaged. Use another checkpoint.")
        int(state["writes"])

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Puts back what `state_dict` gave; the table stays on its device."""
        self.check_state(state)
        device = self.device
        self._unsettled = []
        for name, values in state["columns"].items():
            # Counts may have been widened; scores may have been stored in another precision to save space.
            dtype = self._columns[name].dtype if values.is_floating_point() else values.dtype
            column = torch.full((self.n + 1,), self.declared[name].initial, dtype=dtype)
            column[: self.n] = values.cpu()
            self._columns[name] = column.to(device)
        self._strays = state["invalid_counts"].to(device, copy=True)
        self._writes = int(state["writes"])


def _check_shape(name: str, values: torch.Tensor, losses: torch.Tensor, told: Mapping[str, Any]) -> None:
    """Raises where a policy would remember something else than one value for each sample of a batch."""
    if values.ndim == 0 or values.shape == losses.shape:
        return
    shapes = {argument: tuple(value.shape) for argument, value in told.items() if isinstance(value, torch.Tensor)}
    other = [argument for argument, shape in shapes.items() if shape != tuple(losses.shape)]
    hint = (
        f"Pass {other[0]} of shape {tuple(losses.shape)}, not {shapes[other[0]]}."
        if other
        else "Look at the policy's `compute_columns`."
    )
    raise FeedbackError(
        f"what a policy remembers as {name!r} must be one value for each of the {len(losses)} samples, got shape "
        f"{tuple(values.shape)}. {hint}"
    )


def mean_age(seen: np.ndarray, epoch: int) -> float:
    """Mean age of the scores of those that were seen, in epochs, by when that was; 0 where none was."""
    seen = seen[seen >= 0]
    return float(epoch - seen.mean()) if len(seen) else 0.0
