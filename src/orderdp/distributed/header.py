"""Header: the first thing ranks tell each other, of fixed size, so that it needs no agreement beforehand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, fields
from hashlib import blake2b
from typing import Any

import torch

__all__ = ["ITER", "SYNC", "Header", "differences", "digest"]

ITER, SYNC = 1, 2

# Bytes of the policy's description that travel along, so that an error can show both.
_TEXT = 160


@dataclass(frozen=True)
class Header:
    """How a rank was set up, where it stands, and how much it has to tell.

    Attributes:
        action: What it is doing, `ITER` or `SYNC`.
        failed: 1 where it cannot go on; the others must not wait for it.
        seed: Its seed; a digest of it where that is very large.
        n: Length of its data set.
        epochs: Planned epochs, -1 for none.
        policy: Digest of its policy and columns.
        labels: Digest of the labels.
        shard: Whether this library deals out the samples.
        pad: Whether shares are filled up.
        strict: Whether losses that are not finite are an error.
        batch_size: Of whoever goes through the data, 0 where unknown.
        drop_last: The same.
        table: Digest of what its table was before anything of this meeting, 0 where that has been agreed on.
        epoch: Which epoch it would serve.
        is_open: Whether that one has been drawn.
        trained: Its position there.
        arranging: Whether it has to put samples in order.
        rows: How many rows of its table have changed.
        fed: Samples whose losses have come back, since the last meeting.
        nonfinite: Losses that were not finite, since then.
        outside: Indices that were impossible, since then.
        writes: Steps written to the table, since then.
        expected: Samples that the epoch it leaves had for all ranks.
        got: Samples of its own of that epoch whose losses came back.
        ran_dry: Whether that epoch was handed out to its end.
        rewound: Whether it serves the open epoch from its start.
        policy_text: The policy in words.
    """

    action: int
    failed: int
    seed: int
    n: int
    epochs: int
    policy: int
    labels: int
    shard: int
    pad: int
    strict: int
    batch_size: int
    drop_last: int
    table: int
    epoch: int
    is_open: int
    trained: int
    arranging: int
    rows: int
    fed: int
    nonfinite: int
    outside: int
    writes: int
    expected: int
    got: int
    ran_dry: int
    rewound: int
    policy_text: str

    def encode(self) -> torch.Tensor:
        """As int64, always equally many."""
        *numbers, text = astuple(self)
        words = text.encode()[:_TEXT].ljust(_TEXT, b"\0")
        return torch.cat((torch.tensor(numbers), torch.frombuffer(bytearray(words), dtype=torch.int64)))

    @classmethod
    def decode(cls, values: torch.Tensor) -> Header:
        """The header that was encoded."""
        names = [field.name for field in fields(cls)][:-1]
        text = values[len(names) :].numpy().tobytes().rstrip(b"\0").decode(errors="replace")
        given: dict[str, Any] = dict(zip(names, values[: len(names)].tolist(), strict=True))
        return cls(**given, policy_text=text)


# What has to be equal everywhere: what to call it, and what to show of it. The action comes first: while it differs,
# the rest need not be comparable.
_SHARED: tuple[tuple[str, str, Callable[[Header], object]], ...] = (
    ("action", "what they do", lambda h: "sync()" if h.action == SYNC else "iter()"),
    ("seed", "seed", lambda h: h.seed),
    ("n", "length of the data set", lambda h: h.n),
    ("epochs", "epochs", lambda h: None if h.epochs < 0 else h.epochs),
    ("policy", "policy", lambda h: h.policy_text),
    ("labels", "labels", lambda h: f"digest {h.labels:x}"),
    ("shard", "shard", lambda h: bool(h.shard)),
    ("pad", "pad", lambda h: bool(h.pad)),
    ("strict", "on_nan", lambda h: "raise" if h.strict else "warn"),
    ("batch_size", "batch_size", lambda h: h.batch_size or None),
    ("drop_last", "drop_last", lambda h: bool(h.drop_last)),
    ("rewound", "whether rewind() was called", lambda h: bool(h.rewound)),
    ("table", "scores they start from (were different checkpoints loaded?)", lambda h: f"digest {h.table:x}"),
)


def differences(headers: Sequence[Header]) -> str | None:
    """What the ranks were given differently, in words; None where they agree."""
    found = []
    for name, title, show in _SHARED:
        ranks_of: dict[int, list[int]] = {}
        for rank, header in enumerate(headers):
            ranks_of.setdefault(getattr(header, name), []).append(rank)
        if len(ranks_of) > 1:
            parts = [f"{show(headers[ranks[0]])} on {_named(ranks)}" for ranks in ranks_of.values()]
            found.append(f"{title}: {', '.join(parts)}")
            if name == "action":
                break
    return "; ".join(found) or None


def _named(ranks: list[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks[:8]))}{', ...' if len(ranks) > 8 else ''}"


def digest(*parts: bytes) -> int:
    """A fingerprint of 60 bits."""
    state = blake2b(digest_size=8)
    for part in parts:
        state.update(part)
    return int.from_bytes(state.digest(), "little") >> 4
