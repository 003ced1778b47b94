"""Standing: where one rank stands when it comes to a meeting, and what it is about to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from orderdp.clock import Clock
    from orderdp.epochs import Epoch
    from orderdp.sampling import View
    from orderdp.team import Tally

__all__ = ["Standing"]


class Standing(NamedTuple):
    """Where one rank stands when it comes to a meeting; the fields are those of `Header`."""

    epoch: int
    is_open: bool = False
    trained: int = 0
    arranging: bool = False
    batch_size: int = 0
    drop_last: bool = False
    fed: int = 0
    expected: int = 0
    got: int = 0
    ran_dry: bool = False
    rewound: bool = False

    @classmethod
    def now(cls, clock: Clock, tally: Tally, is_open: bool) -> Standing:
        """Of a rank that stays where it is.

        Args:
            clock: Where training stands.
            tally: What the rank has done since ranks met.
            is_open: Whether somebody goes through the current epoch.
        """
        return cls(clock.epoch, is_open=is_open, trained=clock.trained, fed=tally.fed)

    @classmethod
    def before(
        cls, wanted: int, view: View, epoch: Epoch | None, clock: Clock, tally: Tally, *, rewound: bool
    ) -> Standing:
        """Of a rank that is about to go through the data.

        Args:
            wanted: The number of the epoch that it wants.
            view: How it goes through it.
            epoch: The open epoch, if there is one.
            clock: Where training stands.
            tally: What the rank has done since ranks met.
            rewound: Whether the open epoch is served from its start.
        """
        is_open = epoch is not None and wanted == clock.epoch
        is_left = clock.end is not None and clock.moved and not is_open
        return cls(
            epoch=wanted,
            is_open=is_open,
            trained=clock.trained if is_open else 0,
            arranging=epoch is None or not is_open or epoch.arrangement not in (None, view.arrangement),
            batch_size=int(getattr(view, "batch_size", None) or 0),
            drop_last=bool(getattr(view, "drop_last", False)),
            fed=tally.fed,
            expected=(clock.end or 0) - tally.start if is_left else 0,
            got=tally.got,
            ran_dry=tally.ran_dry,
            rewound=rewound,
        )
