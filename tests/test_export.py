"""Scores, counts and kept sets go to files and come back; a dynamic run gives a static subset."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Subset

from orderdp import OrderDP, Pruner, save_checkpoint
from orderdp.cli import main
from orderdp.errors import ConfigError, DatasetError, StateError
from orderdp.export import fingerprint, read_kept, static_subset
from orderdp.streaming import GrowingPruner
from tests.support import fake_losses, toy_dataset

N = 30
ENDINGS = [".npz", ".csv", ".parquet"]


def trained(epochs: int = 3, leave_after: int | None = None, **options: Any) -> Pruner:
    pruner = Pruner(OrderDP(0.5), N, seed=1, **options)
    for epoch in range(epochs):
        for step, batch in enumerate(pruner.batch_sampler(4), 1):
            pruner.update(torch.tensor(batch), fake_losses(torch.tensor(batch), step))
            if epoch == epochs - 1 and step == leave_after:
                break
    return pruner


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("epochs", [1, 3])
def test_scores_that_are_exported_come_back_bit_for_bit(tmp_path: Path, ending: str, epochs: int) -> None:
    pruner, path = trained(epochs), tmp_path / f"samples{ending}"
    assert torch.isinf(pruner.scores).any() == (epochs == 1)
    pruner.export(path)
    again = Pruner(OrderDP(0.5), N, seed=1)
    assert again.import_scores(path) == int(torch.isfinite(pruner.scores).sum())
    assert torch.equal(again.scores, pruner.scores)
    assert again.usage.sum() == 0


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_kept_set_of_a_file_is_the_selection_and_its_fingerprint_tells_it_apart(
    tmp_path: Path, ending: str
) -> None:
    pruner, path = trained(), tmp_path / f"samples{ending}"
    given = pruner.export(path)
    kept = read_kept(path)
    assert kept == sorted(pruner.preview().indices.tolist())
    assert given == fingerprint(np.array(kept[::-1]), N)
    assert given != pruner.export(path, keep=7)
    assert len(Subset(toy_dataset(N), read_kept(path))) == 7


def test_the_fingerprint_is_in_the_file(tmp_path: Path) -> None:
    pruner = trained()
    given = pruner.export(tmp_path / "a.npz", keep=5)
    assert str(np.load(tmp_path / "a.npz")["fingerprint"]) == given
    assert pruner.export(tmp_path / "a.parquet", keep=5) == given
    from pyarrow import parquet

    assert parquet.read_table(tmp_path / "a.parquet").schema.metadata[b"orderdp.fingerprint"].decode() == given


@pytest.mark.parametrize("by", ["usage", "score"])
@pytest.mark.parametrize("keep", [1, 12, 0.4, 1.0])
def test_a_static_subset_is_what_a_sort_in_python_gives(by: Any, keep: float) -> None:
    pruner = trained()
    pruner.exclude([0, 5, 9])
    scores, usage = pruner.scores.numpy(), pruner.usage.numpy()
    offered = ~np.isin(np.arange(N), [0, 5, 9])
    known = [-np.inf if np.isinf(score) else score for score in scores]

    def rank(i: int) -> tuple:
        return (-usage[i], -known[i], i) if by == "usage" else (-known[i], -usage[i], i)

    wanted = sorted(np.flatnonzero(offered).tolist(), key=rank)
    count = keep if isinstance(keep, int) else round(keep * 27)
    assert static_subset(usage, scores, keep, by, offered).tolist() == sorted(wanted[: int(count)])


@pytest.mark.parametrize("keep", [0, -1, 1.5, 0.0, True, "half"])
def test_a_wrong_number_to_keep_is_refused(tmp_path: Path, keep: Any) -> None:
    with pytest.raises(ConfigError, match="keep must be"):
        trained().export(tmp_path / "a.csv", keep=keep)
    assert not list(tmp_path.iterdir())


def test_files_that_cannot_be_are_refused(tmp_path: Path) -> None:
    pruner = trained()
    with pytest.raises(ConfigError, match=r"must end in \.npz, \.csv, \.parquet"):
        pruner.export(tmp_path / "a.txt")
    with pytest.raises(ConfigError, match="folder of the file must exist"):
        pruner.export(tmp_path / "no" / "a.csv")
    with pytest.raises(DatasetError, match="there is no file"):
        pruner.import_scores(tmp_path / "a.csv")
    (tmp_path / "b.npz").write_text("nothing")
    with pytest.raises(DatasetError, match="cannot be read"):
        pruner.import_scores(tmp_path / "b.npz")
    (tmp_path / "c.csv").write_text("index,loss\n0,1.5\n")
    with pytest.raises(DatasetError, match="has no column 'score'"):
        pruner.import_scores(tmp_path / "c.csv")
    with pytest.raises(DatasetError, match="columns index and kept"):
        read_kept(tmp_path / "c.csv")
    with pytest.raises(ConfigError, match='table="sharded"'):
        Pruner(OrderDP(0.5), N, table="sharded").export(tmp_path / "a.csv")


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        (np.zeros(N - 1), "scores must be 30 numbers, one for each sample, got 29"),
        (np.zeros((N, 2)), "flat array of numbers"),
        (["a"] * N, "flat array of numbers"),
    ],
)
def test_wrong_scores_are_refused_and_change_nothing(scores: Any, message: str) -> None:
    pruner = Pruner(OrderDP(0.5), N)
    with pytest.raises(DatasetError, match=message):
        pruner.import_scores(scores)
    assert torch.isinf(pruner.scores).all()


@pytest.mark.parametrize("index", [[0, 0], [0, N], [0, -1], [0, 0.5]])
def test_a_wrong_index_in_a_file_is_refused(tmp_path: Path, index: list[float]) -> None:
    np.savez(tmp_path / "a.npz", score=[1.0, 2.0], index=index)
    with pytest.raises(DatasetError, match="column 'index'"):
        Pruner(OrderDP(0.5), N).import_scores(tmp_path / "a.npz")


def test_an_array_of_another_tool_becomes_the_first_table() -> None:
    quality = np.linspace(0, 1, N)  # small is suspicious, as cleanlab has it
    quality[3] = np.nan
    pruner = Pruner(OrderDP(0.5, exploration=1.0), N)
    assert pruner.import_scores(1 - quality) == N - 1
    assert torch.isinf(pruner.scores[3])
    first = [index for batch in pruner.batch_sampler(5) for index in batch]
    assert sorted(first) == list(range(15))


def test_a_file_may_hold_some_samples_under_another_name(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("index,loss\n4,1.5\n2,\n0,2.5\n")
    pruner = Pruner(OrderDP(0.5), N)
    assert pruner.import_scores(tmp_path / "a.csv", column="loss") == 2
    assert pruner.scores[[0, 2, 4]].tolist() == [2.5, float("inf"), 1.5]


def test_a_sharded_table_takes_the_scores_of_the_samples_it_holds() -> None:
    pruner = Pruner(OrderDP(0.5), N, table="sharded")
    assert pruner.import_scores(torch.arange(N)) == N
    assert pruner.scores.tolist() == list(range(N))


def test_the_command_writes_what_the_pruner_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pruner = trained(leave_after=2)
    pruner.exclude(3)
    save_checkpoint(tmp_path / "run.pt", {"model": {}, "extra": {"pruner": pruner.state_dict()}})
    for extra, keep in (([], None), (["--keep", "0.5"], 0.5), (["--keep", "4", "--by", "score"], 4)):
        assert main(["export", str(tmp_path / "run.pt"), str(tmp_path / "cli.csv"), *extra]) == 0
        by: Any = "score" if "--by" in extra else "usage"
        selection = pruner.export(tmp_path / "own.csv", keep=keep, by=by)
        assert (tmp_path / "cli.csv").read_bytes() == (tmp_path / "own.csv").read_bytes()
        assert selection in capsys.readouterr().out


def test_the_command_says_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_checkpoint(tmp_path / "closed.pt", {"pruner": trained(1).state_dict()})
    save_checkpoint(tmp_path / "none.pt", {"model": {}})
    for name, extra, message in (
        ("closed", [], "no epoch is open"),
        ("none", [], "state of one pruner, it holds 0"),
        ("closed", ["--keep", "many"], "--keep must be"),
    ):
        assert main(["export", str(tmp_path / f"{name}.pt"), str(tmp_path / "out.csv"), *extra]) == 2
        assert message in capsys.readouterr().err
    assert not (tmp_path / "out.csv").exists()


def test_a_growing_pruner_exports_what_is_left(tmp_path: Path) -> None:
    pruner = GrowingPruner(OrderDP(0.5), N)
    pruner.remove([0, 1])
    pruner.export(tmp_path / "a.npz", keep=1.0)
    assert read_kept(tmp_path / "a.npz") == list(range(2, N))


def test_the_state_of_one_rank_is_refused(tmp_path: Path) -> None:
    from orderdp.export import columns_of_state

    with pytest.raises(StateError, match="part of one rank"):
        columns_of_state({**trained().state_dict(), "group": {"rank": 0}}, keep=3)
