"""Pruners whose table is in parts, on ranks that are threads: as one process with all of it."""

from __future__ import annotations

import re
from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch

from orderdp import OrderDP, Pruner, Unlearned
from orderdp.distributed.collectives import Exchange
from orderdp.distributed.sharded import transfer_plan
from orderdp.distributed.sharded_table import MOST_USES
from orderdp.errors import ConfigError, GroupError, IndexRangeError, NonFiniteLossError
from orderdp.policies import UCB, DynamicRandom
from orderdp.policies.orderdp import Mixed, PoolRule, Trimmed
from tests.ranks import FullRank, MemoryRank, all_fine, in_threads
from tests.support import KeepAll, fake_losses, toy_dataset

N, EPOCHS = 90, 5  # 54 of 90 are kept: 1, 2 and 3 ranks share them evenly
POLICIES = [OrderDP(0.4), OrderDP(0.4, select=Trimmed(0.1)), OrderDP(0.4, select=Mixed(top=0.5, uniform=0.5)),
            OrderDP(0.4, select="bottom"), OrderDP(0.4, exploitation=1), OrderDP(0)]  # fmt: skip


def pruner_on(rank: Exchange | None, policy: Any = None, n: int = N, **options: Any) -> Pruner:
    return Pruner(policy or OrderDP(0.4), n, seed=3, process_group=rank, table="sharded", **options)


def train_epoch(pruner: Pruner, batch_size: int = 4) -> list[int]:
    visited, step = [], pruner.epoch
    for batch in pruner.batch_sampler(batch_size):
        index = torch.tensor(batch)
        pruner.update(index, skewed_losses(index, step))
        visited += batch
    return visited


def skewed_losses(index: torch.Tensor, step: int = 0) -> torch.Tensor:
    """Larger for late samples, so that the last ranks have most of the hard ones."""
    return fake_losses(index, step) + index / 20


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("policy", POLICIES, ids=repr)
def test_ranks_with_a_part_each_train_on_what_one_process_would_and_remember_the_same(policy: Any, world: int) -> None:
    whole, expected = Pruner(policy, N, seed=3), []
    for _ in range(EPOCHS):
        expected.append(train_epoch(whole))

    def work(rank: MemoryRank) -> Any:
        pruner = pruner_on(rank, policy)
        visited = [train_epoch(pruner) for _ in range(EPOCHS)]
        pruner.sync()
        return visited, pruner.scores, pruner.usage, pruner.report(), pruner.local_indices

    ranks = all_fine(in_threads(world, work, kind=FullRank))
    for epoch in range(EPOCHS):
        shares = [visited[epoch] for visited, *_ in ranks]
        assert len({len(share) for share in shares}) == 1
        assert sorted(chain(*shares)) == sorted(expected[epoch])
    assert torch.equal(torch.cat([scores for _, scores, *_ in ranks]), whole.scores)
    assert torch.equal(torch.cat([usage for _, _, usage, *_ in ranks]), whole.usage)
    assert [i for *_, local_indices in ranks for i in local_indices] == list(range(N))
    for name in ("epoch", "samples", "kept", "pruned", "saved", "nominal_saved"):
        assert {report[name] for *_, report, _ in ranks} == {whole.report()[name]}
    assert "staleness" not in ranks[0][3]


@pytest.mark.parametrize("sharding", ["exact", "stratified"])
@pytest.mark.parametrize("pad", [False, True])
@pytest.mark.parametrize(("n", "world"), [(91, 4), (20, 3), (10, 5), (1000, 4)])
def test_shares_are_equal_and_counts_exact(sharding: Any, pad: bool, n: int, world: int) -> None:
    q = round(0.6 * n)

    def work(rank: MemoryRank) -> Any:
        pruner = pruner_on(rank, n=n, sharding=sharding, pad=pad)
        assert len(pruner.batch_sampler(4)) == -(-len(pruner.sampler) // 4)
        return [train_epoch(pruner) for _ in range(4)], pruner.report(), len(pruner.sampler)

    ranks = all_fine(in_threads(world, work, kind=FullRank))
    each = -(-q // world) if pad else q // world
    for epoch in range(4):
        shares = [visited[epoch] for visited, *_ in ranks]
        assert [len(share) for share in shares] == [each] * world
        different = len(set(chain(*shares)))
        assert different == (q if pad else each * world)
    assert {length for *_, length in ranks} == {each}
    assert {report["kept"] for _, report, _ in ranks} == {4 * each * world}
    assert {report["repeated"] for _, report, _ in ranks} == {4 * (each * world - q) if pad else 0}


def test_no_sample_is_left_out_for_ever() -> None:
    def work(rank: MemoryRank) -> torch.Tensor:
        pruner = pruner_on(rank, n=50)
        for _ in range(12):
            train_epoch(pruner)
        pruner.sync()
        return pruner.usage

    for usage in all_fine(in_threads(4, work, kind=FullRank)):
        assert (usage > 0).all()


def test_where_chance_deals_evenly_little_moves_and_all_of_it_is_counted() -> None:
    n, world = 4000, 4

    def work(rank: FullRank) -> Any:
        pruner = pruner_on(rank, n=n)
        for _ in range(3):
            for batch in pruner.batch_sampler(64):
                index = torch.tensor(batch)
                pruner.update(index, fake_losses(index, pruner.epoch))
        iter(pruner.sampler)
        swapped = sum(size for what, size in rank.asked if what == "swap")
        return pruner.report(), swapped, rank.asked

    for report, swapped, asked in all_fine(in_threads(world, work, kind=FullRank)):
        assert 0 < swapped < 4 * 200 * 13, "far fewer than the 2,400 samples of an epoch travel"
        assert report["moved_picks"] < 200
        assert report["moved_bytes"] == 12 * report["moved_picks"] + 8 * world
        assert report["selection_bytes"] <= 9 * 8 * 4096
        assert report["exchanged_bytes"] >= report["selection_bytes"] + report["moved_bytes"]
        assert report["returned_bytes"] <= 13 * 2 * 200 + 16 * world
        assert max(size for what, size in asked if what == "gather") < 500


def test_picks_and_losses_that_travel_take_a_few_bytes_each_even_if_all_hard_samples_are_on_one_rank() -> None:
    n, world = 400, 4

    def work(rank: FullRank) -> Any:
        pruner = pruner_on(rank, OrderDP(0.6, exploration=1.0), n=n)
        seen = pruner.local_indices
        pruner.observe(torch.arange(seen.start, seen.stop), torch.arange(seen.start, seen.stop) / 10)
        first = train_epoch(pruner)
        pruner.sync()
        return first, pruner.report(), pruner.scores, rank.asked

    ranks = all_fine(in_threads(world, work, kind=FullRank))
    assert sorted(chain(*(first for first, *_ in ranks))) == list(range(240, 400))
    assert sum(report["moved_picks"] for _, report, *_ in ranks) == 40 + 40
    for _, report, _, asked in ranks:
        picks, counts, losses = (size for what, size in asked if what == "swap")
        assert counts == 8 * world
        assert picks <= 12 * 60
        assert losses <= 13 * 40
        assert report["returned_bytes"] <= 13 * 100 + 16 * world
    scores = torch.cat([scores for *_, scores, _ in ranks])
    assert torch.allclose(scores[:240], torch.arange(240) / 10)
    assert torch.equal(scores[240:], skewed_losses(torch.arange(240, 400), 0))


def test_drawing_in_strata_exchanges_nothing_but_notes_of_fixed_size() -> None:
    def work(rank: FullRank) -> Any:
        pruner = pruner_on(rank, n=1000, sharding="stratified")
        for _ in range(3):
            train_epoch(pruner, 32)
        return rank.asked, pruner.report()

    for asked, report in all_fine(in_threads(3, work, kind=FullRank)):
        assert {what for what, _ in asked} == {"gather"}
        assert max(size for _, size in asked) < 500
        assert len(asked) == 6, "a header and an answer for each epoch"
        assert (report["selection_bytes"], report["moved_picks"], report["moved_bytes"]) == (0, 0, 0)


def test_losses_of_remote_samples_reach_the_rank_that_holds_them_by_sync_and_by_the_next_epoch() -> None:
    def work(rank: FullRank) -> Any:
        pruner = pruner_on(rank)
        train_epoch(pruner)
        visited, batches = [], iter(pruner.batch_sampler(4))
        for _ in range(2):
            index = torch.tensor(next(batches))
            pruner.update(index, skewed_losses(index, 7))
            visited += index.tolist()
        pruner.sync()
        middle = pruner.scores
        for batch in batches:
            index = torch.tensor(batch)
            pruner.update(index, skewed_losses(index, 8))
        iter(pruner.sampler)
        return visited, middle, pruner.scores, pruner.usage

    ranks = all_fine(in_threads(3, work, kind=FullRank))
    early = torch.tensor(sorted(chain(*(visited for visited, *_ in ranks))))
    middle, final = (torch.cat([part[at] for part in ranks]) for at in (1, 2))
    assert torch.equal(middle[early], skewed_losses(early, 7))
    assert torch.equal(final[early], skewed_losses(early, 7))
    assert int((final == skewed_losses(torch.arange(N), 8)).sum()) == 54 - len(early)
    assert int(torch.cat([part[3] for part in ranks]).sum()) == 2 * 54


@pytest.mark.filterwarnings("ignore::orderdp.errors.NonFiniteLossWarning")
@pytest.mark.parametrize("reduced", [False, True])
def test_a_batch_with_remote_samples_is_stored_as_one_without(reduced: bool) -> None:
    """NaN, one loss for the whole batch, scores of their own: all through the same rows."""

    def work(rank: FullRank) -> Any:
        pruner = pruner_on(rank)
        train_epoch(pruner)
        seen = []
        for number, batch in enumerate(pruner.batch_sampler(4)):
            index = torch.tensor(batch)
            losses = skewed_losses(index, 1)
            if number == 1:
                losses[0] = torch.nan
            seen.append((index, losses))
            pruner.update(index, losses.nansum() if reduced else losses, reduced=reduced)
        remote = len(pruner._table.remote)
        pruner.sync()
        iter(pruner.sampler)
        assert pruner.report()["nonfinite"] == (0 if reduced else 3)
        return seen, pruner.scores, remote

    ranks = all_fine(in_threads(3, work, kind=FullRank))
    scores = torch.cat([part[1] for part in ranks])
    assert sum(remote for *_, remote in ranks) > 0
    whole = Pruner(OrderDP(0.4), N, seed=3)
    train_epoch(whole)
    for seen, *_ in ranks:
        for index, losses in seen:
            whole.update(index, losses.nansum() if reduced else losses, reduced=reduced)
    assert torch.allclose(scores, whole.scores)


def test_counts_stop_where_a_byte_would_overflow() -> None:
    pruner = pruner_on(None, OrderDP(0), n=4)
    for _ in range(2 * MOST_USES):
        for batch in pruner.batch_sampler(4):
            pruner.update(torch.tensor(batch), torch.rand(len(batch)))
    assert pruner.usage.tolist() == [MOST_USES + 1] * 4


def test_a_loader_and_its_workers_take_the_same_lines() -> None:
    dataset = toy_dataset(60)
    pruner = Pruner(OrderDP(0.4), dataset, seed=1, table="sharded")
    loader = pruner.loader(dataset, batch_size=8, num_workers=1)
    for _ in range(2):
        seen = []
        for index, (x, _) in loader:
            assert torch.equal(x, dataset.tensors[0][index])
            pruner.update(index, fake_losses(index))
            seen += index.tolist()
        assert len(set(seen)) == len(seen) == 36
    assert pruner.epoch == 2
    hardest = pruner.hardest(3)
    assert torch.equal(pruner.scores[hardest], pruner.scores[pruner.scores.isfinite()].sort().values[-3:].flip(0))


def test_the_hardest_of_a_part_are_named_by_their_place_in_the_data_set() -> None:
    def work(rank: FullRank) -> Any:
        pruner = pruner_on(rank)
        local_indices = torch.arange(pruner.local_indices.start, pruner.local_indices.stop)
        pruner.observe(local_indices, local_indices.float())
        return pruner.hardest(2).tolist()

    assert all_fine(in_threads(3, work, kind=FullRank)) == [[29, 28], [59, 58], [89, 88]]


@pytest.mark.parametrize(("counts", "each"), [([5, 1, 3], 3), ([0, 0, 9], 3), ([4, 4, 2], 3), ([2, 3, 6], 3), ([7], 7)])
def test_moves_even_out_and_nobody_gives_what_it_needs(counts: list[int], each: int) -> None:
    for turn in range(len(counts)):
        targets = np.full(len(counts), each)
        table = transfer_plan(np.array(counts), targets, turn)
        after = np.array(counts) - table.sum(axis=1) + table.sum(axis=0)
        assert after.sum() == sum(counts)
        assert (np.diag(table) == 0).all()
        assert (after >= each).all()
        assert table.sum() == np.maximum(targets - counts, 0).sum(), "no more than must be"


# -- bad input -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "options", "message"),
    [
        (UCB(0.3), {}, "needs orderdp.OrderDP.*got UCB.*other policies read the whole table"),
        (DynamicRandom(0.3), {}, r"OrderDP\(prune_ratio=..., exploitation=1\) draws at random"),
        (KeepAll(), {}, "whole table"),
        (Unlearned(0.4), {}, r"does not store when a sample was last trained on.*Unlearned\(..., in_turn=False\)"),
        (OrderDP(0.4, every="batch"), {}, 'selects once per epoch.*Use every="epoch"'),
        (OrderDP(0.4, select=Mixed(top=0.5, uniform=0.5), unbiased=True), {}, "rank of every kept sample"),
        (OrderDP(0.4), {"shard": False}, "got shard=False"),
        (OrderDP(0.4), {"sharding": "exat"}, "no sharding 'exat'. Did you mean 'exact'"),
        (OrderDP(0.4), {"table": "shraded"}, "no table 'shraded'. Did you mean 'sharded'"),
    ],
)
def test_what_cannot_be_sharded_is_refused_with_a_reason(policy: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Pruner(policy, 40, **{"table": "sharded", **options})


def test_a_rule_of_ones_own_is_refused() -> None:
    class Own(PoolRule):
        def select(self, pooled: Any, q: int, context: Any) -> Any: ...

        def positions(self, s: int, q: int, context: Any) -> Any: ...

    with pytest.raises(ConfigError, match="a custom select needs a whole pool"):
        Pruner(OrderDP(0.4, select=Own()), 40, table="sharded")


def test_filter_is_refused_where_an_epoch_begins() -> None:
    with pytest.raises(ConfigError, match="filter needs the whole selection"):
        iter(pruner_on(None).filter(torch.utils.data.SequentialSampler(range(N))))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (lambda rank: {"n": N + rank}, "length of the data set: 90 on rank 0, 91 on rank 1"),
        (
            lambda rank: {"sharding": ["exact", "stratified"][rank]},
            "exact shards on rank 0, .*stratified shards on rank 1",
        ),
        (lambda rank: {"policy": OrderDP(0.4 + rank / 10)}, "policy"),
        (lambda rank: {"pad": bool(rank)}, "pad: False on rank 0, True on rank 1"),
    ],
)
def test_ranks_that_disagree_are_told_so_and_nobody_waits(options: Any, message: str) -> None:
    results = in_threads(2, lambda rank: iter(pruner_on(rank, **options(rank.rank)).sampler), kind=FullRank)
    for error in results:
        assert isinstance(error, GroupError)
        assert error.args[0].startswith("all processes must have the same settings")
        assert re.search(message, str(error)), error


def test_a_rank_with_a_whole_table_among_ranks_with_parts_is_found_out() -> None:
    def work(rank: FullRank) -> Any:
        table: Any = ["replicated", "sharded"][rank.rank]
        iter(Pruner(OrderDP(0.4), N, process_group=rank, table=table).sampler)

    for error in in_threads(2, work, kind=FullRank):
        assert isinstance(error, GroupError)
        assert "exact shards on rank 1" in str(error)


def test_a_group_that_is_made_after_the_pruner_is_too_late() -> None:
    pruner = pruner_on(None)
    iter(pruner.sampler)

    def work(rank: FullRank) -> Any:
        pruner._manager._options = type(pruner._manager._options)(process_group=rank)
        iter(pruner.sampler)

    for error in in_threads(2, work, kind=FullRank):
        assert isinstance(error, GroupError)
        assert "split when the pruner is made: then this was rank 0 of 1" in str(error)


def test_what_nobody_has_all_of_or_is_not_kept_cannot_be_looked_at() -> None:
    pruner = Pruner(OrderDP(0.4), 20, table="sharded")
    with pytest.raises(ConfigError, match="each process has only its own part"):
        pruner.preview()
    with pytest.raises(ConfigError, match="stores no epochs"):
        _ = pruner.last_seen_epoch


def test_more_processes_than_samples_kept_are_refused() -> None:
    for error in in_threads(4, lambda rank: pruner_on(rank, n=5), kind=FullRank):
        assert isinstance(error, ConfigError)
        assert "keeps 3 of 5 samples, too few for 4 processes" in str(error)


@pytest.mark.parametrize("wrong", [-1, N, 5])
def test_samples_that_others_hold_or_nobody_has_are_refused(wrong: int) -> None:
    def work(rank: FullRank) -> Any:
        pruner = pruner_on(rank)
        if rank.rank == 1:
            pruner.observe(torch.tensor([50, wrong]), torch.rand(2))

    _, error = in_threads(2, work, kind=FullRank)
    assert isinstance(error, IndexRangeError)
    assert ("rank 1 holds the samples from 45 to 89" if wrong == 5 else "must be in [0, 90)") in str(error)


def test_a_nan_on_one_rank_is_raised_by_all() -> None:
    def work(rank: FullRank) -> Any:
        pruner = pruner_on(rank, on_nan="raise")
        for batch in pruner.batch_sampler(4):
            pruner.update(torch.tensor(batch), torch.full((len(batch),), torch.nan if rank.rank else 1.0))
        iter(pruner.sampler)

    for error in in_threads(2, work, kind=FullRank):
        assert isinstance(error, NonFiniteLossError)


@pytest.mark.parametrize("broken", ["sum_all", "swap_all"])
def test_a_rank_that_is_lost_in_the_middle_of_a_draw_is_an_error_that_names_the_epoch(broken: str) -> None:
    class Lost(FullRank):
        pass

    def fail(self: FullRank, *arguments: Any) -> None:
        raise RuntimeError("connection closed by peer")

    def work(rank: FullRank) -> Any:
        pruner = pruner_on(rank)
        train_epoch(pruner)
        setattr(Lost, broken, fail)
        iter(pruner.sampler)

    for error in in_threads(2, work, kind=Lost):
        assert isinstance(error, GroupError)
        assert re.search("failed on rank [01] of 2 at epoch [01]: connection closed", str(error))
