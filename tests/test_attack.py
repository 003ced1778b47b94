"""A short attack finds nothing, and each of its checks can fail."""

from __future__ import annotations

import random

import pytest
from tools.attack import states


@pytest.mark.parametrize("kind", states.KINDS)
def test_a_damaged_state_is_refused_whole_or_a_bounded_epoch_runs(kind: str) -> None:
    faults = [states.fault_of(kind, random.Random(f"{kind} {case}")) for case in range(60)]
    assert [fault for fault in faults if fault] == []
