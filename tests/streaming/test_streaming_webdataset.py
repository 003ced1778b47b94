"""Real tar shards, read by webdataset, through the example."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import webdataset
from examples import webdataset_stream
from torch.utils.data import DataLoader

import orderdp
from orderdp.errors import DatasetError
from orderdp.streaming import KeyFilter

PRUNED = orderdp.OrderDP(prune_ratio=0.4)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    folder = tmp_path_factory.mktemp("shards")
    return folder, webdataset_stream.write_shards(folder, every=4)


@pytest.mark.parametrize("workers", [0, 2])
def test_the_example_learns_from_an_exact_share_of_the_stream(shards: tuple[Path, int], workers: int) -> None:
    folder, n = shards
    with torch.random.fork_rng():
        result = webdataset_stream.train(folder, PRUNED, epochs=6, workers=workers)
    assert n == 337
    assert result.kept[1:] == [round(0.6 * n)] * 5
    assert abs(result.kept[0] - 0.6 * n) < 5 * (n * 0.24) ** 0.5
    assert result.accuracy > 0.4  # a tenth would be chance
    report = result.keys.report()
    assert (report["samples"], report["offered"], report["coverage"]) == (n, 6 * n, 1.0)


def test_what_is_left_out_is_never_decoded(shards: tuple[Path, int]) -> None:
    folder, n = shards
    decoded: list[str] = []

    def decode(sample: dict[str, Any]) -> dict[str, Any]:
        decoded.append(sample["__key__"])
        return sample

    keys = KeyFilter(PRUNED)
    pattern = str(folder / "train-{0..7}.tar")
    samples = (
        webdataset.WebDataset(pattern, shardshuffle=False).compose(keys.gate).map(decode).to_tuple("__key__", "cls")
    )
    for epoch in range(3):
        decoded.clear()
        trained: list[str] = []
        for key, _ in keys.one_epoch(DataLoader(samples, batch_size=16)):
            keys.update(key, torch.rand(len(key)))
            trained += key
        assert decoded == trained
        assert epoch == 0 or len(decoded) == round(0.6 * n)


def test_keys_that_are_unique_only_within_a_shard_are_noticed(tmp_path: Path) -> None:
    for shard in range(2):
        with webdataset.TarWriter(str(tmp_path / f"{shard}.tar"), mtime=0) as writer:
            for number in range(4):
                writer.write({"__key__": f"{number}", "cls": number})
    keys = KeyFilter(orderdp.OrderDP(prune_ratio=0.0))

    def epoch(samples: webdataset.WebDataset, keys: KeyFilter) -> int:
        for key, _ in keys.one_epoch(DataLoader(samples.to_tuple("__key__", "cls"), batch_size=2)):
            keys.update(key, torch.rand(len(key)))
        return int(keys.report()["samples"])

    stream = webdataset.WebDataset(str(tmp_path / "{0..1}.tar"), shardshuffle=False)
    with pytest.raises(DatasetError, match="more than once"):
        epoch(stream.compose(keys.gate), keys)

    def with_shard(samples: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for sample in samples:
            yield {**sample, "__key__": f"{sample['__url__']}/{sample['__key__']}"}

    keys = KeyFilter(orderdp.OrderDP(prune_ratio=0.0))
    assert epoch(stream.compose(with_shard, keys.gate), keys) == 8


def test_the_example_prints_what_it_saved(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    original = webdataset_stream.write_shards
    monkeypatch.setattr(webdataset_stream, "write_shards", lambda folder: original(folder, every=8))
    with torch.random.fork_rng():
        webdataset_stream.main(["--epochs", "2", "--workers", "0"])
    first, full, pruned = capsys.readouterr().out.splitlines()
    assert first.startswith("168 digits in 8 tar shards")
    assert "336 samples decoded, 0.0% fewer" in full
    assert "40% pruned" in pruned
