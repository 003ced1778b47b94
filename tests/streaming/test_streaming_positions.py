"""Streams under loaders that remember their place, and Hugging Face streams, which have one and may decode late."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset
from torchdata.stateful_dataloader import StatefulDataLoader

import datasets
from orderdp.errors import StateError
from orderdp.streaming import KeyFilter
from tests import streaming_work as work
from tests.streaming_work import NAMES, PRUNED, Shards

pytestmark = pytest.mark.filterwarnings("ignore:.*set_vital.*:UserWarning")  # torchdata's own

EPOCHS = 3
STOPS = (3, 14, 21)  # in the first epoch, in the second, after its last batch


class Placed(IterableDataset[Any]):
    """Names one after the other. It goes on where it was in the epoch in which it was, as Hugging Face's do."""

    def __init__(self, names: list[str] = NAMES) -> None:
        self.names = names
        self.epoch = self.place = 0
        self._loaded: dict[str, int] = {}

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[tuple[str, int]]:
        self.place = self._loaded["place"] if self._loaded.get("epoch") == self.epoch else 0
        while self.place < len(self.names):
            self.place += 1
            yield self.names[self.place - 1], 0

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "place": self.place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._loaded = state


def hugging_face() -> datasets.IterableDataset:
    def samples(shards: list[int]) -> Iterator[dict[str, Any]]:
        for shard in shards:
            for name in work.SHARDS[shard]:
                yield {"id": name, "length": len(name)}

    return datasets.IterableDataset.from_generator(samples, gen_kwargs={"shards": list(range(6))})


def names_of(batch: Any) -> list[str]:
    return list(batch["id"] if isinstance(batch, dict) else batch[0])


def train(keys: KeyFilter, loader: Any, *, stop: int | None = None) -> list[list[list[str]]]:
    """The batches of each epoch, up to the step `stop`."""
    visited, step = [], 0
    for epoch in range(keys.epoch, EPOCHS):
        visited.append([])
        if hasattr(stream := loader.dataset.stream, "set_epoch"):
            stream.set_epoch(epoch)
        for batch in keys.one_epoch(loader):
            names = names_of(batch)
            keys.update(names, torch.tensor([work.loss_of(name, epoch) for name in names]))
            visited[-1].append(names)
            step += 1
            if step == stop:
                return visited
    return visited


def made(
    stream: Iterable[Any], key: Any = 0, duplicates: Any = "raise", **options: Any
) -> tuple[KeyFilter, StatefulDataLoader[Any]]:
    keys = KeyFilter(PRUNED, key=key, seed=5, duplicates=duplicates)
    return keys, StatefulDataLoader(keys.only(stream), batch_size=4, **options)


def interrupted(make: Any, stop: int) -> list[list[list[str]]]:
    """The epochs of a training that stopped after a step and went on, with the loader's state and the filter's."""
    keys, loader = make()
    before = train(keys, loader, stop=stop)
    states = copy.deepcopy((keys.state_dict(), loader.state_dict()))
    keys, loader = make()
    keys.load_state_dict(states[0])
    loader.load_state_dict(states[1])
    after = train(keys, loader)
    return [*before[:-1], before[-1] + after[0], *after[1:]]


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_with_a_place_skips_nothing_of_a_stream_without_one(workers: int, stop: int) -> None:
    def make() -> Any:
        return made(Shards(), num_workers=workers)

    assert interrupted(make, stop) == train(*make())


@pytest.mark.parametrize("stop", STOPS[1:])  # what the first epoch has looked at and left out is not known afterwards
def test_a_stream_with_a_place_goes_on_there(stop: int) -> None:
    def make() -> Any:
        return made(Placed())

    assert interrupted(make, stop) == train(*make())


@pytest.mark.parametrize("stop", [13, 20, 24])
@pytest.mark.parametrize("placed", [True, False])
def test_keys_that_repeat_come_again_after_the_place(placed: bool, stop: int) -> None:
    names = NAMES[:20] * 4

    def make() -> Any:
        return made(Placed(names) if placed else [(name, 0) for name in names], duplicates="allow")

    assert interrupted(make, stop) == train(*make())


def test_a_stream_with_a_place_is_not_gone_through_from_its_beginning() -> None:
    keys, loader = made(Placed())
    train(keys, loader, stop=14)
    states = copy.deepcopy((keys.state_dict(), loader.state_dict()))
    place = loader.dataset.stream.place
    looked = []

    def key(sample: tuple[str, int]) -> str:
        looked.append(sample[0])
        return sample[0]

    keys, loader = made(Placed(), key)
    keys.load_state_dict(states[0])
    loader.load_state_dict(states[1])
    train(keys, loader, stop=1)
    assert looked[0] == NAMES[place]


@pytest.mark.parametrize("stop", STOPS[1:])
def test_a_hugging_face_stream_goes_on_where_it_was(stop: int) -> None:
    def make() -> Any:
        return made(hugging_face(), key="id")

    assert interrupted(make, stop) == train(*make())


class Gated(IterableDataset[Any]):
    """A pipeline with the gate inside, as webdataset's are: it has no place."""

    def __init__(self, stream: Shards, keys: KeyFilter) -> None:
        self.stream, self.keys = stream, keys

    def __iter__(self) -> Iterator[Any]:
        return iter(self.keys.gate(self.stream))


def test_a_loader_that_would_skip_batches_is_refused_and_the_filters_state_is_enough() -> None:
    def make() -> Any:
        keys = KeyFilter(PRUNED, key=0, seed=5)
        return keys, StatefulDataLoader(Gated(Shards(), keys), batch_size=4)

    with pytest.raises(StateError, match="Do not load the loader's state"):
        interrupted(make, 3)
    keys, loader = make()
    before = train(keys, loader, stop=3)
    state = copy.deepcopy(keys.state_dict())
    keys, loader = make()
    keys.load_state_dict(state)
    after = train(keys, loader)
    assert [before[0] + after[0], *after[1:]] == train(*make())


def test_an_old_snapshot_of_a_loader_is_refused() -> None:
    def make() -> Any:
        return made(Shards(), num_workers=1, snapshot_every_n_steps=4)

    with pytest.raises(StateError, match=r"3 batches old.*snapshot_every_n_steps=1"):
        interrupted(make, 3)


def test_hugging_face_images_that_are_left_out_are_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    images = [torch.full((4, 4, 3), number, dtype=torch.uint8).numpy() for number in range(20)]
    rows = {"id": [f"picture-{number}" for number in range(20)], "image": images}
    features = datasets.Features({"id": datasets.Value("string"), "image": datasets.Image()})
    stream = datasets.Dataset.from_dict(rows, features=features).to_iterable_dataset()
    decoded, decode = [], datasets.Image.decode_example

    def counted(self: Any, value: Any, *rest: Any, **options: Any) -> Any:
        decoded.append(value)
        return decode(self, value, *rest, **options)

    monkeypatch.setattr(datasets.Image, "decode_example", counted)
    keys = KeyFilter(PRUNED, key="id", seed=0)
    image, kept = datasets.Image(), []
    for sample in keys.one_epoch(keys.only(stream.decode(False))):
        picture = image.decode_example(sample["image"])
        assert f"picture-{picture.getpixel((0, 0))[0]}" == sample["id"]
        keys.update([sample["id"]], torch.tensor([1.0]))
        kept.append(sample["id"])
    assert len(decoded) == len(kept) < 20
