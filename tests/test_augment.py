"""Augmentation: compared, bit for bit, with a slow restatement; the picture of a sample depends on nothing else."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from orderdp.draw import fair_hash
from orderdp.errors import ConfigError
from orderdp.randomness import key64
from orderdp.workbench.data import Augment, Pictures, Split, augment, normalise

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
def test_pictures_are_the_augmented_and_normalised_samples(padded_at_once: bool, monkeypatch) -> None:
    if not padded_at_once:
        monkeypatch.setattr(augment, "_LARGEST_COPY", 0)
    own = split((20, 3, 8, 6))
    pictures = Pictures(own, Augment(2, True), (0.4, 0.5, 0.6), (0.2, 0.3, 0.4))
    index = torch.tensor([7, 0, 19, 7])
    expected = np.stack([slowly(own.images[i].numpy(), int(i), 2, True, 3, 11) for i in index])
    found = pictures.train_batch(index, epoch=11, seed=3)
    assert torch.equal(found, normalise(torch.from_numpy(expected), (0.4, 0.5, 0.6), (0.2, 0.3, 0.4)))
    assert found.is_contiguous()
    plain = pictures.eval_batch(index)
    assert torch.equal(plain, normalise(own.images[index], (0.4, 0.5, 0.6), (0.2, 0.3, 0.4)))


def test_a_sample_looks_the_same_in_whatever_batch_and_order() -> None:
    pictures = Pictures(split((50, 1, 9, 9)), Augment(3, True), [0.5], [0.25])
    whole = pictures.train_batch(torch.arange(50), epoch=4, seed=1)
    order = torch.from_numpy(np.random.default_rng(0).permutation(50))
    for part in order.split(7):
        assert torch.equal(pictures.train_batch(part, epoch=4, seed=1), whole[part])


def test_epochs_seeds_and_samples_look_different() -> None:
    same = Split(images((1, 1, 9, 9)).expand(200, 1, 9, 9).contiguous(), torch.zeros(200, dtype=torch.int64))
    pictures = Pictures(same, Augment(4, True), [0.5], [0.25])
    index = torch.arange(200)
    first = pictures.train_batch(index, epoch=0, seed=0)
    assert len(torch.unique(first, dim=0)) > 80  # of 162 possible pictures of this image
    for epoch, seed in ((1, 0), (0, 1)):
        other = pictures.train_batch(index, epoch=epoch, seed=seed)
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
    pictures = Pictures(own, Augment(1, True), [0.5], [0.5])
    pictures.train_batch(torch.arange(10), 0, 0)
    pictures.eval_batch(torch.arange(10))
    floats = torch.ones(3, 2)
    normalise(floats, [1.0, 1.0], [2.0, 2.0])
    assert torch.equal(own.images, before)
    assert torch.equal(floats, torch.ones(3, 2))


@pytest.mark.parametrize("shape", [(5, 3, 4, 4), (5, 3), (5, 3, 7)])
def test_normalising_is_subtracting_and_dividing_channel_by_channel(shape: tuple[int, ...]) -> None:
    mean, std = [0.1, 0.2, 0.3], [0.5, 1.5, 2.5]
    values = torch.from_numpy(np.random.default_rng(0).normal(size=shape).astype(np.float32))
    for channel in range(3):
        expected = (values[:, channel].double() - mean[channel]) / std[channel]
        assert torch.allclose(normalise(values, mean, std)[:, channel].double(), expected, atol=1e-6)
    if len(shape) == 4:
        pixels = images(shape)
        for channel in range(3):
            expected = (pixels[:, channel].double() / 255 - mean[channel]) / std[channel]
            assert torch.allclose(normalise(pixels, mean, std)[:, channel].double(), expected, atol=1e-6)


def test_large_floats_keep_their_digits() -> None:
    values = torch.tensor([[1_000_001.0], [1_000_003.0]])
    assert normalise(values, [1_000_002.0], [1.0]).tolist() == [[-1.0], [1.0]]


def test_bad_settings_are_errors() -> None:
    for padding in (-1, 1.5, True):
        with pytest.raises(ConfigError, match="padding must be a whole number of pixels"):
            Augment(padding)
    with pytest.raises(ConfigError, match="padding must be smaller than the image, got 5 for 5 x 9"):
        Pictures(split((2, 1, 5, 9)), Augment(5), [0.5], [0.5])
    rows = Split(torch.ones(4, 3), torch.zeros(4, dtype=torch.int64))
    with pytest.raises(ConfigError, match=r"only images \(n, channels, height, width\) can be augmented"):
        Pictures(rows, Augment(1), [0.5], [0.5])
