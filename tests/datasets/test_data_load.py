"""Loading by name: where it is looked for, what is checked, what the modifiers do."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from orderdp import datasets as package
from orderdp.datasets import (
    Augment,
    ImageData,
    Split,
    cache_root,
    corrupted,
    hold_out,
    list_rows,
    load,
    long_tailed,
    subset,
    where,
    with_label_noise,
)
from orderdp.datasets.catalog import DATASETS
from orderdp.datasets.loading import Modifiers, parse
from orderdp.errors import ConfigError, DatasetError
from tests import data_support as made


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of this test's own, and a data set called "tiny"."""
    monkeypatch.setenv("ORDERDP_DATA", str(tmp_path / "cache"))
    monkeypatch.setitem(DATASETS, "tiny", made.tiny(made.idx_files()))
    return tmp_path / "cache"


def toy(n: int = 60, classes: int = 3, shape: tuple[int, ...] = (1, 6, 6), seed: int = 0) -> ImageData:
    rng = np.random.default_rng(seed)

    def split(size: int) -> Split:
        images = torch.from_numpy(rng.integers(0, 256, (size, *shape), dtype=np.uint8))
        return Split(images, torch.from_numpy(rng.permutation(np.arange(size) % classes)))

    return ImageData("toy", split(n), split(n // 2), classes, None, (0.5,), (0.25,), Augment(0, False))


def rows_of(split: Split) -> list[bytes]:
    return [image.numpy().tobytes() for image in split.images]


def test_the_cache_is_where_the_variables_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    monkeypatch.setenv("ORDERDP_DATA", "/own")
    assert cache_root() == Path("/own")
    monkeypatch.delenv("ORDERDP_DATA")
    assert cache_root() == Path("/xdg/orderdp")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/user")
    assert cache_root() == Path("/home/user/.cache/orderdp")


def test_the_data_directory_comes_before_the_cache_and_the_cache_before_the_system(
    tmp_path, cache, monkeypatch
) -> None:
    system = made.write(tmp_path / "system", made.idx_files())
    monkeypatch.setitem(DATASETS, "tiny", replace(DATASETS["tiny"], system=(str(system),)))
    assert where("tiny", tmp_path / "mine") == system
    made.write(cache / "tiny", made.idx_files())
    assert where("tiny", tmp_path / "mine") == cache / "tiny"
    made.write(tmp_path / "mine", made.zipped(made.idx_files()))
    assert where("tiny", tmp_path / "mine") == tmp_path / "mine"
    assert where("tiny") == cache / "tiny"
    assert load("tiny", tmp_path / "mine").train.images[:, 0].tolist() == made.idx_arrays()[0].tolist()


def test_a_named_data_set_knows_its_classes_and_its_augmentation(cache: Path) -> None:
    made.write(cache / "tiny", made.idx_files())
    data = load("tiny")
    assert (data.name, data.classes, data.class_names, data.augment) == ("tiny", 3, ("a", "b", "c"), Augment(1, True))
    pixels = made.idx_arrays()[0] / 255
    assert data.mean == pytest.approx([pixels.mean()], abs=1e-12)
    assert data.std == pytest.approx([pixels.std()], abs=1e-12)
    data.train.images[0] = 0  # a tensor of its own, not the bytes of a file


def test_known_files_are_recognized_by_path_too(tmp_path: Path) -> None:
    assert load(made.write(tmp_path / "somewhere", made.idx_files())).class_names == ("a", "b", "c")
    assert load(made.write(tmp_path / "elsewhere", made.idx_files(seed=1))).class_names is None


@pytest.mark.parametrize("family", ["cifar10", "cifar100"])
def test_every_form_of_cifar_has_the_checksums_of_the_original(family, tmp_path, monkeypatch) -> None:
    binary = made.cifar10_binary() if family == "cifar10" else made.cifar100_binary()
    forms = [made.cifar10_pickles(2), made.cifar10_pngs()] if family == "cifar10" else [made.cifar100_pickles()]
    monkeypatch.setitem(DATASETS, "tiny", made.tiny(binary, family=family))
    for number, files in enumerate([binary, *forms]):
        folder = made.write(tmp_path / str(number), files)
        assert load("tiny", folder).name == "tiny"


def test_data_that_are_not_there_say_where_was_looked_and_how_to_get_them(tmp_path, cache, monkeypatch) -> None:
    with pytest.raises(DatasetError) as caught:
        load("tiny", tmp_path / "mine")
    message = str(caught.value)
    for text in (str(tmp_path / "mine"), str(cache), f"`orderdp data fetch tiny --data-dir {tmp_path / 'mine'}`"):
        assert text in message
    monkeypatch.setitem(DATASETS, "tiny", replace(DATASETS["tiny"], system=("/no/such/place",)))
    with pytest.raises(DatasetError, match=r"found in .*, /no/such/place\. Download it with `orderdp data fetch tiny`"):
        load("tiny")


def test_an_incomplete_data_set_is_not_there(cache: Path) -> None:
    files = made.idx_files()
    del files["t10k-labels-idx1-ubyte"]
    made.write(cache / "tiny", files)
    with pytest.raises(DatasetError, match="tiny was not found in"):
        load("tiny")


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: data[:-1] + bytes([data[-1] ^ 1])])
def test_a_changed_file_is_named_with_both_checksums(damage, cache: Path) -> None:
    files = made.idx_files()
    files["t10k-images-idx3-ubyte"] = damage(files["t10k-images-idx3-ubyte"])
    found = made.tiny(files).files["t10k-images-idx3-ubyte"]
    expected = DATASETS["tiny"].files["t10k-images-idx3-ubyte"]
    made.write(cache / "tiny", files)
    with pytest.raises(DatasetError) as caught:
        load("tiny")
    message = str(caught.value)
    for text in ("t10k-images-idx3-ubyte", expected, found, str(cache / "tiny"), "`orderdp data fetch tiny`"):
        assert text in message


def test_a_file_of_another_data_set_is_recognized(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DATASETS, "other", made.tiny(made.idx_files(seed=1), name="other"))
    made.write(cache / "tiny", made.idx_files(seed=1))
    with pytest.raises(DatasetError, match="It is train-images-idx3-ubyte of other"):
        load("tiny")


def test_names_that_do_not_exist_suggest_one_that_does() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'fashion-mnist'"):
        load("fashion_mnist")
    with pytest.raises(ConfigError, match="Did you mean 'cifar100'"):
        where("cifar-100")
    with pytest.raises(DatasetError, match=r"there is nothing at no/such\.npz"):
        load("no/such.npz")


def test_the_digits_are_always_there() -> None:
    data = load("digits")
    assert (len(data.train), len(data.test), data.classes) == (1347, 450, 10)
    assert tuple(data.train.images.shape[1:]) == (1, 8, 8)
    assert len(torch.unique(data.train.images)) == 17
    assert data.augment.changes_nothing


def test_the_list_has_a_row_for_every_name_and_says_where_it_is(cache: Path) -> None:
    made.write(cache / "tiny", made.idx_files())
    rows = {row[0]: row for row in list_rows()}
    assert set(rows) == set(DATASETS)
    assert rows["tiny"] == ("tiny", "30 + 10", "1 x 5 x 4", str(cache / "tiny"), "orderdp data fetch tiny")
    assert rows["digits"][3] == str(where("digits"))
    assert where("digits").is_dir()
    assert rows["cifar100"][3:] == ("not here", "orderdp data fetch cifar100")


def test_what_is_known_fits_together() -> None:
    for name in package.NAMES:
        known = DATASETS[name]
        assert known.name == name
        assert len(set(known.class_names)) == len(known.class_names) == (100 if name == "cifar100" else 10)
        assert all(len(digest) == 64 and int(digest, 16) for digest in known.files.values())
        assert known.padding < min(known.shape[1:])


def test_listing_loads_no_torch_and_the_package_lists_its_names() -> None:
    code = "import sys; from orderdp.datasets import list_rows; list_rows(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=180)
    assert done.stdout.split() == ["False"]
    assert dir(package) == sorted(package.__all__)
    with pytest.raises(AttributeError, match="fetsch"):
        _ = package.fetsch


# Modifiers.


@settings(max_examples=40, deadline=None)
@given(st.integers(10, 80), st.integers(2, 5), st.fractions(Fraction(1, 10), Fraction(9, 10)), st.integers(0, 9))
def test_holding_out_divides_the_training_split_exactly_and_in_proportion(n, classes, share, seed) -> None:
    data = toy(n, classes)
    held = hold_out(data, float(share), seed)
    assert len(held.test) == round(float(share) * n)
    assert Counter(rows_of(held.train)) + Counter(rows_of(held.test)) == Counter(rows_of(data.train))
    for k in range(classes):
        size = int((data.train.labels == k).sum())
        assert abs(int((held.test.labels == k).sum()) - size * len(held.test) / n) < 1
    again = hold_out(data, float(share), seed)
    assert torch.equal(again.test.images, held.test.images)


def test_holding_out_leaves_the_test_split_unseen_and_keeps_the_order() -> None:
    data = toy()
    held = hold_out(data, 0.25, 0)
    assert not set(rows_of(data.test)) & set(rows_of(held.test))
    places = [rows_of(data.train).index(row) for row in rows_of(held.test)]
    assert places == sorted(places)
    labels = dict(zip(rows_of(data.train), data.train.labels.tolist(), strict=True))
    assert [labels[row] for row in rows_of(held.train)] == held.train.labels.tolist()
    assert rows_of(hold_out(data, 0.25, 1).test) != rows_of(held.test)


def test_a_subset_is_exact_in_proportion_and_grows_by_samples() -> None:
    data = toy(90, 3)
    small, large = subset(data, 9, 6, 0), subset(data, 30, None, 0)
    assert (len(small.train), len(small.test), len(large.train), len(large.test)) == (9, 6, 30, 45)
    assert torch.bincount(small.train.labels).tolist() == [3, 3, 3]
    assert set(rows_of(small.train)) < set(rows_of(large.train)) < set(rows_of(data.train))


def test_what_rounding_leaves_over_goes_to_the_largest_remainders() -> None:
    labels = torch.tensor([0] * 7 + [1] * 2 + [2])
    data = replace(toy(), train=Split(torch.arange(10, dtype=torch.uint8).reshape(10, 1, 1, 1), labels))
    assert torch.bincount(subset(data, 6, None, 0).train.labels).tolist() == [4, 1, 1]  # of 4.2, 1.2 and 0.6


@settings(max_examples=40, deadline=None)
@given(st.integers(5, 80), st.integers(2, 5), st.floats(0, 0.99), st.integers(0, 9))
def test_label_noise_changes_exactly_its_share_to_other_classes(n, classes, share, seed) -> None:
    data = toy(n, classes)
    noisy = with_label_noise(data, share, seed)
    changed = data.train.labels != noisy.train.labels
    assert int(changed.sum()) == round(share * n)
    assert int(noisy.train.labels.min()) >= 0
    assert int(noisy.train.labels.max()) < classes
    assert torch.equal(noisy.train.images, data.train.images)
    assert torch.equal(noisy.test.labels, data.test.labels)
    assert torch.equal(with_label_noise(data, share, seed).train.labels, noisy.train.labels)


def test_wrong_labels_are_uniform_over_the_other_classes() -> None:
    labels = torch.zeros(8000, dtype=torch.int64)
    split = Split(torch.zeros(8000, 1, 1, 1, dtype=torch.uint8), labels)
    data = ImageData("x", split, split, 5, None, (0.5,), (1.0,), Augment(0, False))
    counts = torch.bincount(with_label_noise(data, 0.5, 3).train.labels, minlength=5)
    assert int(counts[0]) == 4000
    assert all(abs(int(count) - 1000) < 5 * np.sqrt(4000 * 0.25 * 0.75) for count in counts[1:])


def test_a_long_tail_has_the_sizes_of_its_formula() -> None:
    data = toy(500, 5)
    tailed = long_tailed(data, 16, 0)
    assert torch.bincount(tailed.train.labels).tolist() == [100, 50, 25, 12, 6]  # 100 / 2**k, halves to even
    assert set(rows_of(tailed.train)) <= set(rows_of(data.train))
    assert torch.equal(tailed.test.images, data.test.images)
    assert len(long_tailed(data, 1, 0).train) == 500
    assert torch.bincount(long_tailed(data, 1e9, 0).train.labels).tolist() == [100, 1, 1, 1, 1]


@pytest.mark.parametrize("kind", ["noise", "blur", "contrast"])
def test_corruptions_change_test_images_more_with_every_step(kind: str) -> None:
    data = toy(40, shape=(3, 16, 16))
    distances = []
    for severity in range(1, 6):
        worse = corrupted(data, kind, severity, seed=0)
        assert torch.equal(worse.train.images, data.train.images)
        assert torch.equal(worse.test.labels, data.test.labels)
        assert worse.test.images.dtype == torch.uint8
        distances.append(float((worse.test.images.float() - data.test.images.float()).abs().mean()))
    assert distances == sorted(distances)
    assert distances[0] > 1
    again = corrupted(data, kind, 5, seed=0)
    assert torch.equal(again.test.images, worse.test.images)


def test_each_corruption_does_what_it_is_called() -> None:
    data = toy(40, shape=(3, 16, 16))
    grey = replace(data, test=Split(torch.full((4, 1, 9, 9), 128, dtype=torch.uint8), torch.zeros(4).long()))
    assert (corrupted(grey, "blur", 5).test.images == 128).all()
    assert (corrupted(grey, "contrast", 5).test.images == 128).all()
    noise = corrupted(grey, "noise", 2, seed=1).test.images.float() - 128
    assert float(noise.std()) == pytest.approx(0.08 * 255, rel=0.2)
    assert not torch.equal(corrupted(grey, "noise", 2, seed=2).test.images.float() - 128, noise)
    original = data.test.images.double()
    flat = corrupted(data, "contrast", 5).test.images.double()
    assert torch.allclose(flat.mean((2, 3)), original.mean((2, 3)), atol=0.5)
    assert torch.allclose(flat.std((2, 3)), 0.1 * original.std((2, 3)), atol=0.5)
    assert (corrupted(data, "blur", 3).test.images.double().std((2, 3)) < original.std((2, 3))).all()


def test_a_blur_is_a_weighted_mean_of_neighbors() -> None:
    point = torch.zeros(1, 1, 21, 21, dtype=torch.uint8)
    point[0, 0, 10, 10] = 255
    data = replace(toy(), test=Split(point, torch.zeros(1).long()))
    found = corrupted(data, "blur", 2).test.images[0, 0].double()
    steps = torch.arange(-10, 11).double()
    bell = torch.exp(-(steps**2) / (2 * 0.8**2))
    bell /= bell.sum()
    assert torch.allclose(found, 255 * bell[:, None] * bell[None, :], atol=1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda d: hold_out(d, 20, 0), "share must be in [0, 1), got 20. It is a fraction, not a percentage."),
        (lambda d: hold_out(d, 0.001, 0), "share must leave samples on both sides"),
        (
            lambda d: subset(d, 61, None, 0),
            "the train split has 60 samples; train must be a whole number from 1 to that",
        ),
        (lambda d: subset(d, None, 0, 0), "the test split has 30 samples"),
        (lambda d: with_label_noise(d, 1.0, 0), "share must be in [0, 1)"),
        (lambda d: with_label_noise(d, 0.1, -1), "seed must be a whole number"),
        (lambda d: long_tailed(d, 0.5, 0), "imbalance must be a number of at least 1"),
        (lambda d: corrupted(d, "bluur", 1), "Did you mean 'blur'?"),
        (lambda d: corrupted(d, "blur", 6), "severity must be a whole number from 1 to 5, got 6"),
    ],
)
def test_bad_values_are_errors(call, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        call(toy())
    assert message in str(caught.value)


def test_a_specification_is_read() -> None:
    assert parse("a-b?noise=0.2&train=100&corrupt=noise:4&seed=3&holdout=0.1&tail=50&test=5") == (
        "a-b",
        Modifiers(noise=0.2, train=100, corrupt=("noise", 4), seed=3, holdout=0.1, tail=50.0, test=5),
    )
    assert parse("plain") == ("plain", Modifiers())
    assert parse("x?corrupt=blur")[1].corrupt == ("blur", 3)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("x?nois=0.1", "Did you mean 'noise'?"),
        ("x?train", "must be key=value&key=value, got 'train'"),
        ("x?", "must be key=value&key=value, got ''"),
        ("x?train=many", "train must be a number of samples, got 'many'"),
        ("x?corrupt=blur:much", "corrupt must be a kind and a severity, such as blur:3"),
        ("x?train=1&train=2", "each modifier must be given once, got train twice"),
        ("?train=1", "a data set must have a name"),
    ],
)
def test_a_bad_specification_is_an_error(spec: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(spec)
    assert message in str(caught.value)


def test_modifiers_are_applied_in_one_order_whatever_theirs_is() -> None:
    data = load("digits?noise=0.5&train=200&holdout=0.2&corrupt=contrast:2&tail=4&seed=5")
    other = load("digits?seed=5&tail=4&corrupt=contrast:2&holdout=0.2&train=200&noise=0.5")
    assert torch.equal(data.train.images, other.train.images)
    assert torch.equal(data.train.labels, other.train.labels)
    assert torch.equal(data.test.images, other.test.images)
    assert data.name == "digits?noise=0.5&train=200&holdout=0.2&corrupt=contrast:2&tail=4&seed=5"
    straight = subset(long_tailed(hold_out(load("digits"), 0.2, 5), 4, 5), 200, None, 5)
    assert torch.equal(straight.train.images, data.train.images)
    assert int((straight.train.labels != data.train.labels).sum()) == 100
    assert torch.equal(with_label_noise(straight, 0.5, 5).train.labels, data.train.labels)
    assert torch.equal(corrupted(straight, "contrast", 2, 5).test.images, data.test.images)
    assert data.mean == load("digits").mean


def test_modifiers_do_not_fit_a_folder_of_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from orderdp.datasets import loading

    stand_in = package.FolderData("x", [], [], [], 1, ("a",))
    monkeypatch.setattr(loading, "read_image_folder", lambda path: stand_in)
    (tmp_path / "train" / "a").mkdir(parents=True)
    assert load(tmp_path) is stand_in
    with pytest.raises(ConfigError, match="modifiers must be left out for a folder of images"):
        load(f"{tmp_path}?train=5")
