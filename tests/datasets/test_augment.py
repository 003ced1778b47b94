"""Augmentation: compared, bit for bit, with a slow restatement; the image of a sample depends on nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from orderdp import OrderDP, Pruner, alternate_flip
from orderdp._draw import fair_hash, key64
from orderdp.datasets import Augment, ImageBatches, ImageData, Split, normalize
from orderdp.datasets import images as augment
from orderdp.errors import ConfigError, FeedbackError, IndexRangeError
from orderdp.experiments.config import Settings
from orderdp.experiments.records import read_run
from orderdp.experiments.tasks import FolderTask, ImageTask
from orderdp.experiments.trainer import Training
from orderdp.policies import DynamicRandom
from tests.ranks import all_fine, in_threads
from tests.support import fake_losses
from tests.test_no_sync import Spy

SHAPES = st.tuples(st.integers(1, 12), st.sampled_from([1, 3]), st.integers(3, 9), st.integers(3, 9))


def images(shape: tuple[int, ...], seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8))


def split(shape: tuple[int, ...]) -> Split:
    return Split(images(shape), torch.zeros(shape[0], dtype=torch.int64))


def slowly(image: np.ndarray, index: int, padding: int, flip: bool, seed: int, epoch: int) -> np.ndarray:
    """One image, as the documentation says."""
    bits = int(fair_hash(np.array([index]), key64(seed, "augment", epoch))[0])
    top = (bits % 2**32) % (2 * padding + 1)
    left = ((bits // 2**32) % 2**31) % (2 * padding + 1)
    padded = np.pad(image, ((0, 0), (padding, padding), (padding, padding)), mode="reflect")
    crop = padded[:, top : top + image.shape[1], left : left + image.shape[2]]
    return np.flip(crop, 2) if flip and bits >= 2**63 else crop


@settings(max_examples=60, deadline=None)
@given(SHAPES, st.integers(0, 2), st.booleans(), st.integers(0, 5), st.integers(0, 300))
def test_a_batch_is_what_a_loop_over_its_samples_makes(shape, padding, flip, seed, epoch) -> None:
    own = images(shape, seed)
    index = torch.from_numpy(np.random.default_rng(seed).permutation(1000)[: shape[0]])
    expected = [slowly(own[k].numpy(), int(i), padding, flip, seed, epoch) for k, i in enumerate(index)]
    found = Augment(padding, flip).batch(own, index, seed=seed, epoch=epoch)
    assert found.dtype == torch.uint8
    assert np.array_equal(found.numpy(), np.stack(expected))


@pytest.mark.parametrize("padded_at_once", [True, False])
def test_images_are_the_augmented_and_normalized_samples(padded_at_once: bool, monkeypatch) -> None:
    if not padded_at_once:
        monkeypatch.setattr(augment, "_LARGEST_COPY", 0)
    own = split((20, 3, 8, 6))
    image_batches = ImageBatches(own, Augment(2, True), (0.4, 0.5, 0.6), (0.2, 0.3, 0.4))
    index = torch.tensor([7, 0, 19, 7])
    expected = np.stack([slowly(own.images[i].numpy(), int(i), 2, True, 3, 11) for i in index])
    found = image_batches.train_batch(index, epoch=11, seed=3)
    assert torch.equal(found, normalize(torch.from_numpy(expected), (0.4, 0.5, 0.6), (0.2, 0.3, 0.4)))
    assert found.is_contiguous()
    plain = image_batches.eval_batch(index)
    assert torch.equal(plain, normalize(own.images[index], (0.4, 0.5, 0.6), (0.2, 0.3, 0.4)))


def test_a_sample_looks_the_same_in_whatever_batch_and_order() -> None:
    image_batches = ImageBatches(split((50, 1, 9, 9)), Augment(3, True), [0.5], [0.25])
    whole = image_batches.train_batch(torch.arange(50), epoch=4, seed=1)
    order = torch.from_numpy(np.random.default_rng(0).permutation(50))
    for part in order.split(7):
        assert torch.equal(image_batches.train_batch(part, epoch=4, seed=1), whole[part])


def test_epochs_seeds_and_samples_look_different() -> None:
    same = Split(images((1, 1, 9, 9)).expand(200, 1, 9, 9).contiguous(), torch.zeros(200, dtype=torch.int64))
    image_batches = ImageBatches(same, Augment(4, True), [0.5], [0.25])
    index = torch.arange(200)
    first = image_batches.train_batch(index, epoch=0, seed=0)
    assert len(torch.unique(first, dim=0)) > 80  # of 162 possible crops of this image
    for epoch, seed in ((1, 0), (0, 1)):
        other = image_batches.train_batch(index, epoch=epoch, seed=seed)
        assert (first != other).flatten(1).any(1).float().mean() > 0.95


def test_every_crop_is_equally_likely_mirrored_or_not() -> None:
    n = 81_000
    top, left, mirrored = Augment(4, True).draws(np.arange(n), seed=0, epoch=0)
    counts = np.bincount(top * 18 + left * 2 + mirrored, minlength=162)
    expected = n / 162
    statistic = ((counts - expected) ** 2 / expected).sum()
    assert abs(statistic - 161) < 5 * np.sqrt(2 * 161)  # chi squared, five standard deviations


def test_without_padding_and_mirroring_images_stay_as_they_are() -> None:
    own = images((4, 1, 5, 5))
    assert torch.equal(Augment(0, False).batch(own, torch.arange(4), seed=0, epoch=0), own)
    mirrored = Augment(0, True).batch(own, torch.arange(4), seed=0, epoch=0)
    for before, after in zip(own, mirrored, strict=True):
        assert torch.equal(before, after) or torch.equal(before.flip(2), after)


def test_the_images_themselves_are_not_written_to() -> None:
    own = split((10, 1, 6, 6))
    before = own.images.clone()
    image_batches = ImageBatches(own, Augment(1, True), [0.5], [0.5])
    image_batches.train_batch(torch.arange(10), 0, 0)
    image_batches.eval_batch(torch.arange(10))
    floats = torch.ones(3, 2)
    normalize(floats, [1.0, 1.0], [2.0, 2.0])
    assert torch.equal(own.images, before)
    assert torch.equal(floats, torch.ones(3, 2))


@pytest.mark.parametrize("shape", [(5, 3, 4, 4), (5, 3), (5, 3, 7)])
def test_normalizing_is_subtracting_and_dividing_channel_by_channel(shape: tuple[int, ...]) -> None:
    mean, std = [0.1, 0.2, 0.3], [0.5, 1.5, 2.5]
    values = torch.from_numpy(np.random.default_rng(0).normal(size=shape).astype(np.float32))
    for channel in range(3):
        expected = (values[:, channel].double() - mean[channel]) / std[channel]
        assert torch.allclose(normalize(values, mean, std)[:, channel].double(), expected, atol=1e-6)
    if len(shape) == 4:
        pixels = images(shape)
        for channel in range(3):
            expected = (pixels[:, channel].double() / 255 - mean[channel]) / std[channel]
            assert torch.allclose(normalize(pixels, mean, std)[:, channel].double(), expected, atol=1e-6)


def test_large_floats_keep_their_digits() -> None:
    values = torch.tensor([[1_000_001.0], [1_000_003.0]])
    assert normalize(values, [1_000_002.0], [1.0]).tolist() == [[-1.0], [1.0]]


def test_bad_settings_are_errors() -> None:
    with pytest.raises(ConfigError, match='flip must be True, False, "random" or "alternate", got'):
        Augment(2, "mirror")
    for padding in (-1, 1.5, True):
        with pytest.raises(ConfigError, match="padding must be a whole number of pixels"):
            Augment(padding)
    with pytest.raises(ConfigError, match="padding must be smaller than the image, got 5 for 5 x 9"):
        ImageBatches(split((2, 1, 5, 9)), Augment(5), [0.5], [0.5])
    rows = Split(torch.ones(4, 3), torch.zeros(4, dtype=torch.int64))
    with pytest.raises(ConfigError, match=r"only images \(n, channels, height, width\) can be augmented"):
        ImageBatches(rows, Augment(1), [0.5], [0.5])


# -- flips that alternate -----------------------------------------------------------------------------------------


def is_mirrored(index: int, visits: int, seed: int) -> bool:
    """One sample, as the documentation says."""
    first = int(fair_hash(np.array([index]), key64(seed, "flip"))[0]) >= 2**63
    return first if visits % 2 == 0 else not first


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 2**40))), st.integers(0, 2**64))
def test_alternating_flips_are_what_a_loop_over_the_samples_makes(samples, seed) -> None:
    index = torch.tensor([i for i, _ in samples], dtype=torch.int64)
    visits = torch.tensor([v for _, v in samples], dtype=torch.int64)
    assert alternate_flip(index, visits, seed).tolist() == [is_mirrored(i, v, seed) for i, v in samples]


def test_half_of_the_first_images_are_mirrored_and_others_by_another_seed() -> None:
    index, zero = torch.arange(100_000), torch.zeros(100_000, dtype=torch.int64)
    first, second = alternate_flip(index, zero, 0), alternate_flip(index, zero, 1)
    for share in (first.double().mean(), second.double().mean(), (first ^ second).double().mean()):
        assert abs(float(share) - 0.5) < 5 * 0.5 / 100_000**0.5


@settings(max_examples=30, deadline=None)
@given(SHAPES, st.integers(0, 1), st.integers(0, 3), st.integers(0, 9))
def test_a_batch_with_alternating_flips_has_the_crops_of_random_ones(shape, padding, seed, epoch) -> None:
    own = images(shape, seed)
    rng = np.random.default_rng(seed)
    index, visits = torch.from_numpy(rng.permutation(1000)[: shape[0]]), torch.from_numpy(rng.integers(0, 9, shape[0]))
    crops = Augment(padding, False).batch(own, index, seed=seed, epoch=epoch)
    found = Augment(padding, "alternate").batch(own, index, seed=seed, epoch=epoch, visits=visits)
    for k, (i, v) in enumerate(zip(index.tolist(), visits.tolist(), strict=True)):
        assert torch.equal(found[k], crops[k].flip(-1) if is_mirrored(i, v, seed) else crops[k])
    image_batches = ImageBatches(Split(own, torch.zeros(shape[0])), Augment(padding, "alternate"), [0.0], [1 / 255])
    rows = torch.arange(shape[0])
    expected = Augment(padding, "alternate").batch(own, rows, seed=seed, epoch=epoch, visits=visits)
    assert torch.equal(image_batches.train_batch(rows, epoch, seed, visits), normalize(expected, [0.0], [1 / 255]))


def test_random_flips_are_the_same_by_both_of_their_names() -> None:
    own, index = images((20, 1, 6, 6)), torch.arange(20)
    expected = Augment(2, True).batch(own, index, seed=1, epoch=2)
    assert torch.equal(Augment(2, "random").batch(own, index, seed=1, epoch=2), expected)


def test_alternating_flips_need_visits_one_whole_number_for_each_sample() -> None:
    with pytest.raises(ConfigError, match=r"needs the visits of each sample. Pass visits=pruner.visits\(index\)"):
        Augment(0, "alternate").batch(images((2, 1, 3, 3)), torch.arange(2), seed=0, epoch=0)
    for wrong in (torch.zeros(3, dtype=torch.int64), torch.zeros(2)):
        with pytest.raises(FeedbackError, match="visits must be one whole number for each of the 2 indices"):
            alternate_flip(torch.arange(2), wrong)


@pytest.mark.parametrize("policy", [OrderDP(0.4), OrderDP(0.6, every="batch"), DynamicRandom(0.5)], ids=str)
@pytest.mark.parametrize("stop", [None, 5, 12])
def test_every_sample_alternates_strictly_however_often_it_is_left_out_and_where_training_was_cut(policy, stop) -> None:
    pruner = Pruner(policy, 60, seed=2)
    seen: dict[int, list[bool]] = {}
    steps = 0
    while pruner.epoch < 8:
        for batch in pruner.batch_sampler(7):
            index = torch.tensor(batch)
            visits = pruner.visits(index)
            assert visits.tolist() == [len(seen.get(i, [])) for i in batch]
            for i, mirrored in zip(batch, alternate_flip(index, visits, 4).tolist(), strict=True):
                seen.setdefault(i, []).append(mirrored)
            pruner.update(index, fake_losses(index, steps))
            steps += 1
            if steps == stop:
                state, pruner = pruner.state_dict(), Pruner(policy, 60)
                pruner.load_state_dict(state)
                break
    assert len({len(flips) for flips in seen.values()}) > 1  # by epochs they would not alternate
    for i, flips in seen.items():
        assert flips == [is_mirrored(i, visit, 4) for visit in range(len(flips))]
        assert all(now != then for now, then in zip(flips[1:], flips, strict=False))


def test_every_sample_alternates_whichever_rank_trains_on_it() -> None:
    def work(rank):
        pruner = Pruner(OrderDP(0.4), 60, seed=2, process_group=rank)
        told = []
        for epoch in range(6):
            for batch in pruner.batch_sampler(5):
                told += [(epoch, i, v) for i, v in zip(batch, pruner.visits(batch).tolist(), strict=True)]
                pruner.update(batch, fake_losses(torch.tensor(batch), epoch))
        return told

    first, second = all_fine(in_threads(2, work))
    visits: dict[int, int] = {}
    for _, i, before in sorted(first + second):
        assert before == visits.get(i, 0)
        visits[i] = before + 1
    assert {i for _, i, _ in first} & {i for _, i, _ in second}


def test_visits_count_what_was_trained_on_in_this_epoch_and_not_what_was_observed() -> None:
    pruner = Pruner(OrderDP(0.4), 10)
    pruner.observe(torch.arange(10), torch.rand(10))
    next(iter(pruner.batch_sampler(4)))
    pruner.update([1, 2, 2], torch.rand(3))
    assert pruner.visits([0, 1, 2]).tolist() == [0, 1, 2]
    assert pruner.visits(torch.arange(10)).dtype == torch.int64
    assert torch.equal(pruner.visits(torch.arange(10)), pruner.usage)
    with pytest.raises(IndexRangeError, match=r"indices must be in \[0, 10\)"):
        pruner.visits([10])
    with pytest.raises(ConfigError, match='Use table="replicated" for the visits of any batch'):
        Pruner(OrderDP(0.4), 10, table="sharded").visits([0])


@pytest.mark.parametrize("index_device", ["cpu", "meta"])
def test_asking_for_visits_and_flips_does_not_wait_for_the_device(index_device: str) -> None:
    pruner = Pruner(OrderDP(0.4), 100)
    next(iter(pruner.batch_sampler(8)))
    index = torch.arange(8)
    pruner.update(index, torch.rand(8, device="meta"))
    with Spy() as spy:
        flips = alternate_flip(index.to(index_device), pruner.visits(index.to(index_device)))
        pruner.update(index.to(index_device), torch.rand(8, device="meta"))
    assert flips.device.type == "meta"
    assert not spy.waits


def pictures_of_pairs(n: int = 80) -> ImageData:
    rng = np.random.default_rng(0)
    pixels = torch.from_numpy(rng.integers(0, 256, (n, 1, 6, 6), dtype=np.uint8))
    whole = Split(pixels, torch.from_numpy(rng.integers(0, 2, n)))
    return ImageData("pairs", whole, whole, 2, None, (0.5,), (0.25,), Augment(1, True))


RUN = Settings(data="pairs", model="mlp", width=4, prune_ratio=0.5, epochs=5, batch_size=16, flip="alternate")
CPU = torch.device("cpu")


class Noted(ImageTask):
    """Notes whether each image that is trained on is a mirrored one."""

    def __init__(self, *arguments) -> None:
        super().__init__(*arguments)
        self.seen: dict[int, list[bool]] = {}

    def batches(self, pruner, batch_size, seed, *, drop_last=False):
        for index, batch in super().batches(pruner, batch_size, seed, drop_last=drop_last):
            straight = replace(self._train._augment, flip=False)
            for i, image in zip(index.tolist(), batch[0], strict=True):
                plain = straight.batch(
                    self.data.train.images[i : i + 1], torch.tensor([i]), seed=seed, epoch=pruner.epoch
                )
                is_plain = torch.equal(normalize(plain, (0.5,), (0.25,))[0], image)
                self.seen.setdefault(i, []).append(not is_plain)
            yield index, batch


def test_a_run_alternates_each_sample_and_an_interrupted_one_ends_with_the_same_weights(tmp_path: Path) -> None:
    data = pictures_of_pairs()
    task = Noted(data, RUN, CPU)
    Training(RUN, task, tmp_path / "straight", device=CPU).run()
    for i, flips in task.seen.items():
        assert flips == [is_mirrored(i, visit, 0) for visit in range(len(flips))]
    assert len({len(flips) for flips in task.seen.values()}) > 1

    left = 7

    def stop(done: float, epochs: int, metric: float | None) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Training(RUN, ImageTask(data, RUN, CPU), tmp_path / "cut", device=CPU, watch=stop).run()
    Training(RUN, ImageTask(data, RUN, CPU), tmp_path / "cut", device=CPU).run()
    first, second = (
        torch.load(tmp_path / name / "model.pt", weights_only=True)["model"] for name in ("straight", "cut")
    )
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert read_run(tmp_path / "cut").config["flip"] == "alternate"


def test_the_setting_changes_no_other_run_and_is_refused_where_it_would_do_nothing() -> None:
    plain = replace(RUN, flip="random")
    before = {name: value for name, value in plain.as_dict().items() if name != "flip"}  # as records without it are
    assert plain.differences(before) == []
    assert RUN.differences(before) == ["flip: was 'random', is 'alternate'"]
    assert RUN.run_id != plain.run_id
    for wrong in ({"augment": False}, {"task": "own:task"}):
        with pytest.raises(ConfigError, match="flip='alternate' needs training images that are mirrored"):
            replace(RUN, **wrong)
    with pytest.raises(ConfigError, match=r"there is no flip 'alternating'\. Did you mean 'alternate'"):
        replace(RUN, flip="alternating")
    unmirrored = replace(pictures_of_pairs(), augment=Augment(1, False))
    with pytest.raises(ConfigError, match="needs images that are mirrored, those of 'pairs' are not"):
        ImageTask(unmirrored, RUN, CPU)
    with pytest.raises(ConfigError, match="images of a folder are mirrored while they are read"):
        FolderTask(None, RUN, CPU)
