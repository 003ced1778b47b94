"""The table of keys and the decisions of a filter, against the rule restated with dicts."""

from __future__ import annotations

import math
import pickle
from hashlib import blake2b

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import orderdp
from orderdp import theory
from orderdp._draw import fair_hash, key64
from orderdp.errors import ConfigError, DatasetError
from orderdp.policies import UCB, DynamicRandom, InfoBatch, Mixed
from orderdp.policy import Context
from orderdp.streaming import KeyFilter
from orderdp.streaming.key_filter import draw_keys, expected_kept
from orderdp.streaming.key_table import KeyTable
from orderdp.streaming.worker_channel import (
    KeepMask,
    collision_bound,
    fingerprint,
    fingerprints,
    is_drawn,
    share_threshold,
)
from tests.support import table_with

KEYS = [f"shard-{i // 10}/{i:04d}" for i in range(60)]
PRUNED = orderdp.OrderDP(prune_ratio=0.4)


def own_fingerprint(key: str) -> int:
    return int.from_bytes(blake2b(b"s" + key.encode(), digest_size=8).digest(), "little")


def own_loss(key: str, epoch: int) -> float:
    return math.sin(own_fingerprint(key) % 1000 + 3.0 * epoch) + 1.5


class Restated:
    """The rule in words: members of the last pass are the policy's data set, a hash decides about all others."""

    def __init__(self, policy: orderdp.Policy, share: float, seed: int) -> None:
        self.policy, self.share, self.seed = policy, share, seed
        self.scores: dict[str, float] = {}
        self.members: set[str] = set()

    def epoch(self, number: int, stream: list[str]) -> list[str]:
        ordered = sorted(self.members, key=own_fingerprint)
        kept: set[str] = set()
        if ordered:
            table = table_with(np.array([self.scores.get(key, np.inf) for key in ordered], dtype=np.float32))
            chosen = self.policy.select(table, Context(n=len(ordered), epoch=number, seed=self.seed)).indices
            kept = {ordered[i] for i in chosen}
        hash_key = key64(self.seed, "new keys", number)
        passed = []
        for key in stream:
            if key in self.members:
                keeps = key in kept
            else:
                word = int(fair_hash(np.array([own_fingerprint(key)], dtype=np.uint64), hash_key)[0])
                keeps = word / 2**64 < self.share
            if keeps:
                passed.append(key)
                self.scores[key] = np.float32(own_loss(key, number))
        self.members = set(stream)
        return passed


def filter_epoch(keys: KeyFilter, stream: list[str], batch: int = 4) -> list[str]:
    """Goes through an epoch as a training loop does."""
    passed: list[str] = []
    loader = torch.utils.data.DataLoader(keys.only([(key, 0) for key in stream]), batch_size=batch)
    for names, _ in keys.one_epoch(loader):
        keys.update(names, torch.tensor([own_loss(name, keys.epoch) for name in names]))
        passed += names
    return passed


# -- the rule ----------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(data=st.data(), seed=st.integers(0, 2**40), ratio=st.sampled_from([0.0, 0.25, 0.4, 0.7]))
def test_a_filter_keeps_what_the_rule_in_words_keeps(data: st.DataObject, seed: int, ratio: float) -> None:
    policy = orderdp.OrderDP(prune_ratio=ratio)
    keys, restated = KeyFilter(policy, seed=seed, key=0), Restated(policy, 1 - ratio, seed)
    for epoch in range(4):
        stream = data.draw(st.lists(st.sampled_from(KEYS), min_size=8, unique=True))
        assert filter_epoch(keys, stream) == restated.epoch(epoch, stream)
        assert keys.epoch == epoch + 1
    known = [float(restated.scores.get(key, np.inf)) for key in KEYS]
    assert keys.scores_of(KEYS).tolist() == known


def test_keeping_the_easiest_would_not_pass() -> None:
    """The comparison can fail."""
    keys = KeyFilter(orderdp.OrderDP(prune_ratio=0.4, select="bottom"), key=0)
    restated = Restated(PRUNED, 0.6, 0)
    assert [filter_epoch(keys, KEYS) == restated.epoch(epoch, KEYS) for epoch in range(4)] != [True] * 4


def test_the_order_in_which_keys_come_changes_nothing_but_the_order() -> None:
    straight, reverse = KeyFilter(PRUNED, key=0, seed=3), KeyFilter(PRUNED, key=0, seed=3)
    for _ in range(4):
        assert filter_epoch(straight, KEYS) == filter_epoch(reverse, KEYS[::-1])[::-1]


def test_from_the_second_epoch_on_counts_are_exact() -> None:
    keys = KeyFilter(PRUNED, key=0)
    filter_epoch(keys, KEYS)
    for _ in range(3):
        assert len(filter_epoch(keys, KEYS)) == 36
        assert keys.expected_kept() == (36.0, 0.0)


def test_after_scores_were_observed_for_all_the_first_epoch_is_exact_too() -> None:
    keys = KeyFilter(PRUNED, key=0)
    keys.observe(KEYS, torch.rand(60, generator=torch.Generator().manual_seed(0)))
    assert len(filter_epoch(keys, KEYS)) == 36


def test_every_sample_comes_up_before_long() -> None:
    keys = KeyFilter(orderdp.OrderDP(prune_ratio=0.7), key=0)
    for _ in range(12):
        filter_epoch(keys, KEYS)
    assert keys.report()["coverage"] == 1.0


def test_pruning_nothing_lets_everything_through() -> None:
    keys = KeyFilter(orderdp.OrderDP(prune_ratio=0.0), key=0)
    assert [filter_epoch(keys, KEYS) for _ in range(3)] == [KEYS] * 3


def test_keys_that_left_the_stream_are_not_counted_and_may_come_back() -> None:
    keys = KeyFilter(PRUNED, key=0)
    for _ in range(3):
        filter_epoch(keys, KEYS)
    filter_epoch(keys, KEYS[:30])
    assert keys.report()["samples"] == 30
    assert len(filter_epoch(keys, KEYS[:30])) == 18
    back = filter_epoch(keys, KEYS)
    assert sum(key in KEYS[:30] for key in back) == 18
    assert keys.report()["samples"] == keys.report()["keys"] == 60


# -- expectation and spread --------------------------------------------------------------------------------------


def test_the_first_epoch_keeps_the_share_on_average_with_a_binomial_spread() -> None:
    n, rounds = 400, 3000
    marks = fingerprints([f"sample {i}" for i in range(n)])
    kept = np.array([is_drawn(marks, key64(seed, "new keys", 0), share_threshold(0.6)).sum() for seed in range(rounds)])
    stated = expected_kept(PRUNED, Context(n=0, epoch=0), n)
    assert stated.mean == pytest.approx(0.6 * n)
    assert stated.deviation == pytest.approx(math.sqrt(n * 0.6 * 0.4))
    assert abs(kept.mean() - stated.mean) < 5 * stated.deviation / math.sqrt(rounds)
    variance = stated.deviation**2
    assert abs(kept.var(ddof=1) - variance) < 5 * variance * math.sqrt(2 / (rounds - 1))


def test_new_keys_add_their_binomial_spread_to_an_exact_number_of_known_ones() -> None:
    known, new, rounds = 100, 150, 1500
    marks = fingerprints([f"sample {i}" for i in range(known + new)])
    table = KeyTable()
    rows = table.add(marks[:known])
    table["score"][rows] = np.random.default_rng(0).random(known)
    rows = rows[np.argsort(marks[:known])]
    counts = []
    for seed in range(rounds):
        hash_key = key64(seed, "new keys", 1)
        draw_keys(table, rows, PRUNED, Context(n=known, epoch=1, seed=seed), hash_key)
        order = np.argsort(table["key"])
        decisions = KeepMask(1, hash_key, share_threshold(0.6), table["key"][order], table["kept"][order])
        answers = decisions.keep_all_of(marks)
        assert answers[:known].sum() == 60
        counts.append(int(answers.sum()))
    stated = expected_kept(PRUNED, Context(n=known, epoch=1), new)
    assert stated == pytest.approx((60 + 90, math.sqrt(150 * 0.24)))
    assert abs(np.mean(counts) - stated.mean) < 5 * stated.deviation / math.sqrt(rounds)
    variance = stated.deviation**2
    assert abs(np.var(counts, ddof=1) - variance) < 5 * variance * math.sqrt(2 / (rounds - 1))


def test_a_key_is_kept_as_often_as_its_rank_says() -> None:
    n, rounds = 12, 6000
    policy = orderdp.OrderDP(exploration=0.75, exploitation=5 / 9)
    marks = fingerprints(list(range(n)))
    table = KeyTable()
    rows = table.add(marks)
    table["score"][rows] = np.arange(n, 0, -1)  # key 0 is the hardest
    sorted_rows = rows[np.argsort(marks)]
    kept = np.zeros(n)
    for seed in range(rounds):
        draw_keys(table, sorted_rows, policy, Context(n=n, epoch=0, seed=seed), 0)
        kept += table["kept"][rows]
    wanted = theory.weights(n, 9, 5)
    error = np.sqrt(np.maximum(wanted * (1 - wanted), 1e-12) / rounds)
    assert (np.abs(kept / rounds - wanted) <= 5 * error + 1e-9).all()


def test_the_expectation_is_in_the_units_of_the_policy() -> None:
    with pytest.raises(ConfigError, match="whole number"):
        KeyFilter(PRUNED).expected_kept(new=-1)
    assert KeyFilter(orderdp.OrderDP(exploration=0.5, exploitation=0.5)).expected_kept(new=1000).mean == 250


# -- fingerprints ------------------------------------------------------------------------------------------------


def test_kinds_of_keys_do_not_mix_and_forms_of_a_key_do() -> None:
    assert len({fingerprint(key) for key in (1, "1", b"1", -1, 2**70)}) == 5
    same = {fingerprint(key) for key in (7, np.int64(7), np.uint8(7), torch.tensor(7), np.array(7))}
    assert len(same) == 1
    assert fingerprints(torch.tensor([[1, 2], [3, 4]])).tolist() == [fingerprint(i) for i in (1, 2, 3, 4)]
    assert fingerprints(np.array(["a", "b"])).tolist() == [fingerprint("a"), fingerprint("b")]
    assert fingerprints("one key").tolist() == [fingerprint("one key")]


@pytest.mark.parametrize("key", [1.0, None, True, ("a", 1), torch.tensor(1.5), ["a"]])
def test_keys_of_other_kinds_are_refused(key: object) -> None:
    with pytest.raises(DatasetError, match="bytes, a str or an int"):
        fingerprint(key)


def test_fingerprints_do_not_change_between_versions() -> None:
    """Checkpoints hold them."""
    assert (fingerprint("a"), fingerprint(1), fingerprint(b"a")) == (
        0x1393410D2C03E5A4,
        0xACF11BAFF1E2AAE,
        0x7A6C1A99406B3FEE,
    )


def test_collisions_are_bounded_by_pairs() -> None:
    for keys in (0, 1, 2, 10**6, 2**32):
        assert collision_bound(keys) == pytest.approx(math.comb(keys, 2) / 2**64)
    assert collision_bound(2**40) == 1.0
    # With so few bits that they happen, as many pairs collide as the bound says.
    marks = fingerprints(list(range(3000))) & np.uint64(2**16 - 1)
    pairs = sum(math.comb(int(count), 2) for count in np.unique(marks, return_counts=True)[1])
    expected = math.comb(3000, 2) / 2**16
    assert abs(pairs - expected) < 5 * math.sqrt(expected)


def test_keys_with_the_same_fingerprint_share_a_row_and_a_fate() -> None:
    table = KeyTable()
    assert table.add(np.array([5, 9, 5], dtype=np.uint64)).tolist() == [0, 1, 0]


@given(marks=st.lists(st.integers(0, 2**64 - 1), max_size=50), key=st.integers(0, 2**64 - 1))
def test_one_decision_at_a_time_is_as_many_at_once(marks: list[int], key: int) -> None:
    known = np.unique(np.array(marks[::2], dtype=np.uint64))
    decisions = KeepMask(1, key, share_threshold(0.3), known, (known % np.uint64(2)).astype(np.uint8))
    words = np.array(marks, dtype=np.uint64)
    assert [decisions.keeps(mark) for mark in marks] == decisions.keep_all_of(words).tolist()


# -- the table ---------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    batches=st.lists(
        # Low bits that agree, so that the places of keys in the index clash.
        st.lists(st.integers(0, 300).map(lambda i: (i << 40) + i % 3), max_size=40),
        max_size=12,
    )
)
def test_the_table_is_a_dict_from_fingerprints_to_rows(batches: list[list[int]]) -> None:
    table, rows = KeyTable(), {}
    for step, batch in enumerate(batches):
        marks = np.array(batch, dtype=np.uint64)
        assert table.find(marks).tolist() == [rows.get(mark, -1) for mark in batch]
        given_rows = table.add(marks)
        for mark, row in zip(batch, given_rows.tolist(), strict=True):
            assert rows.setdefault(mark, row) == row
        table["score"][given_rows] = step
    assert sorted(rows.values()) == list(range(len(table)))
    assert all(int(table["key"][row]) == mark for mark, row in rows.items())
    copy = KeyTable.from_arrays(table.arrays())
    marks = np.array(sorted(rows), dtype=np.uint64)
    assert copy["score"][copy.find(marks)].tolist() == table["score"][table.find(marks)].tolist()


@pytest.mark.parametrize("at_a_time", [1, 7, 1000])
def test_a_key_is_moved_a_bounded_number_of_times_on_average(at_a_time: int) -> None:
    table = KeyTable()
    n = 1000 * at_a_time if at_a_time < 10 else 40_000
    marks = fingerprints(list(range(n)))
    for start in range(0, n, at_a_time):
        table.add(marks[start : start + at_a_time])
        # Three for the rows, which grow by half; two for the index, which doubles.
        assert table.copies <= 5 * len(table)
    assert table.copies > 0


def test_a_key_takes_few_bytes() -> None:
    sizes = []
    table = KeyTable()
    marks = fingerprints(list(range(60_000)))
    for start in range(0, 60_000, 1000):
        table.add(marks[start : start + 1000])
        if len(table) > 2000:
            sizes.append(table.nbytes / len(table))
    assert max(sizes) <= 19 * 1.5 + 4 / 0.375 + 1  # the rows with room to grow, the index at its emptiest
    assert min(sizes) >= 19


def test_counts_are_widened_before_they_overflow() -> None:
    table = KeyTable()
    rows = table.add(fingerprints([1, 2]))
    table.make_room_for_epoch(40_000)
    table["seen"][rows] = 40_000
    assert table["seen"].tolist() == [40_000] * 2
    again = KeyTable.from_arrays(table.arrays())
    assert again["seen"].tolist() == [40_000] * 2
    small = KeyTable()
    for _ in range(3):
        small.count_use(small.add(fingerprints([1])), 20_000)
    assert small["usage"].tolist() == [32767]


# -- policies ----------------------------------------------------------------------------------------------------


def test_policies_that_need_more_than_the_last_loss_are_refused() -> None:
    for policy in (UCB(0.3), orderdp.OrderDP(0.4, every="batch")):
        with pytest.raises(ConfigError):
            KeyFilter(policy)
    with pytest.raises(ConfigError, match=r"must subclass orderdp\.Policy"):
        KeyFilter("orderdp")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="duplicates"):
        KeyFilter(PRUNED, duplicates="ignore")  # type: ignore[arg-type]


def test_other_policies_filter_too() -> None:
    for policy, kept in ((DynamicRandom(0.5), 30), (orderdp.OrderDP(0.5, select=Mixed(top=0.5, uniform=0.5)), 30)):
        keys = KeyFilter(policy, key=0)
        filter_epoch(keys, KEYS)
        assert len(filter_epoch(keys, KEYS)) == kept


def test_weights_of_a_policy_reach_the_loss() -> None:
    keys = KeyFilter(InfoBatch(prune_ratio=0.5), key=0, epochs=8)
    for _ in range(2):
        filter_epoch(keys, KEYS)
    loader = torch.utils.data.DataLoader(keys.only([(key, 0) for key in KEYS]), batch_size=5)
    means, ones = set(), 0
    for names, _ in keys.one_epoch(loader):
        losses = torch.ones(len(names), dtype=torch.float64)
        result = keys.reduce(names, losses)
        assert keys.update(names, losses) == result
        means.add(round(result.item(), 6))
        ones += len(names)
    assert max(means) > 1  # easy samples that were kept count for those that were not
    assert ones < 60


def test_the_gate_is_small_enough_to_send_to_workers() -> None:
    keys = KeyFilter(PRUNED, key=0)
    keys.observe(list(range(20_000)), torch.rand(20_000))
    assert len(pickle.dumps(keys.gate)) < 1000
