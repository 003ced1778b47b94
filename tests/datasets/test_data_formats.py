"""The formats data come in: each read, each compared with how it was written, each damaged."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from orderdp.datasets import ImageData, load
from orderdp.datasets.formats import read_idx, unpickled
from orderdp.datasets.images import classes_in, is_image_folder
from orderdp.errors import ConfigError, DatasetError
from tests import data_support as made


def assert_cifar(data: ImageData, names: tuple[str, ...]) -> None:
    arrays = made.cifar_arrays(names)
    for split, own in ((data.train, names[:-1]), (data.test, names[-1:])):
        pixels = np.concatenate([arrays[name][0] for name in own])
        labels = np.concatenate([arrays[name][1][:, 1] for name in own])
        assert split.images.dtype == torch.uint8
        assert split.images.numpy().tolist() == pixels.reshape(-1, 3, 32, 32).tolist()
        assert split.labels.dtype == torch.int64
        assert split.labels.tolist() == labels.tolist()


@pytest.mark.parametrize("shape", [(7,), (2, 3), (4, 5, 6)])
def test_an_idx_file_is_the_array_it_was_made_of(shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    assert read_idx(made.idx_bytes(array), "x").tolist() == array.tolist()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "starts with 00 00 08, got nothing"),
        (b"\0\0\x0d\1\0\0\0\0", "got 00 00 0d 01"),
        (b"\x1f\x8b\x08\0", "got 1f 8b 08 00"),
        (made.idx_bytes(np.zeros((3, 4)))[:-1], "must have 12 bytes after its header, got 11"),
        (made.idx_bytes(np.zeros(3)) + b"x", "must have 3 bytes after its header, got 4"),
        (made.idx_bytes(np.zeros((3, 4)))[:9], "must have a header of 12 bytes, got 9"),
    ],
)
def test_a_damaged_idx_file_is_named_and_described(data: bytes, message: str) -> None:
    with pytest.raises(DatasetError, match=message) as caught:
        read_idx(data, "some-file")
    assert "some-file" in str(caught.value)


@given(st.binary(max_size=60))
def test_no_bytes_make_the_idx_reader_fail_in_another_way(data: bytes) -> None:
    with contextlib.suppress(DatasetError):
        assert read_idx(data, "x").size <= len(data)


@pytest.mark.parametrize("form", ["plain", "gzipped", "dotted", "archive"])
def test_idx_files_are_read_compressed_or_not_from_folders_and_archives(form: str, tmp_path: Path) -> None:
    files = made.idx_files()
    path = tmp_path / "mine"
    if form == "archive":
        path = made.archive(tmp_path / "mine.tar.gz", files)
    elif form == "dotted":
        made.write(path, {name.replace("-idx", ".idx"): data for name, data in files.items()})
    else:
        made.write(path, made.zipped(files) if form == "gzipped" else files)
    data = load(path)
    images, labels, test_images, test_labels = made.idx_arrays()
    assert data.train.images[:, 0].tolist() == images.tolist()
    assert data.test.images[:, 0].tolist() == test_images.tolist()
    assert (data.train.labels.tolist(), data.test.labels.tolist()) == (labels.tolist(), test_labels.tolist())
    assert (data.classes, data.class_names, data.augment.changes_nothing) == (3, None, True)


@pytest.mark.parametrize(
    "files",
    [made.cifar10_binary(), *[made.cifar10_pickles(protocol) for protocol in (2, 3, 4, 5)], made.cifar10_pngs()],
    ids=["binary", "pickle2", "pickle3", "pickle4", "pickle5", "png"],
)
@pytest.mark.parametrize("packed", [False, True], ids=["folder", "archive"])
def test_all_forms_of_cifar10_are_the_same_data(files: dict[str, bytes], packed: bool, tmp_path: Path) -> None:
    path = made.archive(tmp_path / "c.tgz", files) if packed else made.write(tmp_path / "c", files)
    assert_cifar(load(path), made.BATCHES)


@pytest.mark.parametrize("files", [made.cifar100_binary(), made.cifar100_pickles()], ids=["binary", "pickle"])
def test_the_label_of_cifar100_is_the_fine_one(files: dict[str, bytes], tmp_path: Path) -> None:
    assert_cifar(load(made.write(tmp_path / "c", files)), ("train", "test"))


def test_a_cut_binary_batch_is_named(tmp_path: Path) -> None:
    files = made.cifar10_binary()
    files["data_batch_3.bin"] = files["data_batch_3.bin"][:-5]
    with pytest.raises(DatasetError, match=r"data_batch_3\.bin must be records of 3,073 bytes, got 12,287"):
        load(made.write(tmp_path / "c", files))


def test_a_cut_archive_is_named(tmp_path: Path) -> None:
    path = made.archive(tmp_path / "c.tar.gz", made.cifar10_binary())
    path.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(DatasetError, match=r"c\.tar\.gz must be a whole tar archive"):
        load(path)


def test_a_cut_gzip_file_is_named(tmp_path: Path) -> None:
    files = made.zipped(made.idx_files())
    files["train-images-idx3-ubyte.gz"] = files["train-images-idx3-ubyte.gz"][:-9]
    with pytest.raises(DatasetError, match=r"train-images-idx3-ubyte\.gz must be a whole gzip file"):
        load(made.write(tmp_path / "c", files))


@pytest.mark.parametrize("name", ["test_batch.png", "train_lables.json"])
def test_a_damaged_png_or_label_file_is_named(name: str, tmp_path: Path) -> None:
    files = made.cifar10_pngs()
    files[name] = files[name][: len(files[name]) // 2]
    with pytest.raises(DatasetError, match=name):
        load(made.write(tmp_path / "c", files))


def python2_batch(pixels: bytes) -> bytes:
    """Two images as Python 2 and its numpy wrote them: byte strings, and the old names of the modules."""
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01K\x02M\x00\x0c\x86"
        b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89"
    )
    return (
        b"\x80\x02}(U\x04data"
        + array
        + b"T"
        + struct.pack("<I", len(pixels))
        + pixels
        + b"tbU\x06labels](K\x01K\x02eu."
    )


def test_batches_pickled_by_python_2_are_read() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (2, 3072), dtype=np.uint8)
    batch = unpickled(python2_batch(pixels.tobytes()), "data_batch_1")
    assert batch["data"].tolist() == pixels.tolist()
    assert batch["labels"] == [1, 2]


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("order", ["C", "F"])
def test_a_harmless_pickle_reads_as_pickle_itself_reads_it(protocol: int, order: str) -> None:
    array = np.array(np.arange(12, dtype=np.uint8).reshape(3, 4), order=order)
    data = pickle.dumps({"data": array, "labels": [1, 2, 3], "name": "x"}, protocol)
    ours, theirs = unpickled(data, "x"), pickle.loads(data)
    assert ours["data"].tolist() == theirs["data"].tolist()
    assert (ours["labels"], ours["name"]) == (theirs["labels"], theirs["name"])


class Attack:
    def __init__(self, function, *arguments) -> None:
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize(
    ("function", "named"),
    [(os.system, "system"), (eval, "eval"), (exec, "exec"), (np.load, "load"), (np.fromfile, "fromfile")],
    ids=["system", "eval", "exec", "load", "fromfile"],
)
def test_a_pickle_that_asks_for_anything_else_is_refused_and_not_run(function, named, protocol, tmp_path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("alive")
    code = f"rm {victim}" if function is os.system else f"__import__('os').remove({str(victim)!r})"
    files = made.cifar10_pickles(2)
    files["data_batch_1"] = pickle.dumps({"data": Attack(function, code)}, protocol)
    with pytest.raises(DatasetError, match=rf"data_batch_1: the pickle asks for \S*{named}, .* it was not run"):
        load(made.write(tmp_path / "c", files))
    assert victim.read_text() == "alive"


def test_a_pickle_with_an_array_of_objects_is_refused() -> None:
    with pytest.raises(DatasetError, match="arrays must be of uint8, got 'O8'"):
        unpickled(pickle.dumps({"data": np.array([None, "x"], dtype=object)}, 2), "x")


def test_an_array_that_claims_more_than_it_has_is_refused() -> None:
    with pytest.raises(DatasetError, match=r"an array of shape \(2, 3072\) must have as many bytes, got 6,143"):
        unpickled(python2_batch(bytes(6143)), "x")


@given(st.binary(max_size=80))
def test_no_bytes_make_the_unpickler_fail_in_another_way(data: bytes) -> None:
    with contextlib.suppress(DatasetError):
        assert isinstance(unpickled(data, "x"), dict)


def arrays(**changes: np.ndarray) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    own = {
        "x_train": rng.integers(0, 256, (8, 6, 5), dtype=np.uint8),
        "y_train": np.array([0, 1, 2, 0, 1, 2, 0, 1]),
        "x_test": rng.integers(0, 256, (3, 6, 5), dtype=np.uint8),
        "y_test": np.array([2, 1, 0]),
    }
    return own | changes


def saved(path: Path, **own: np.ndarray) -> Path:
    np.savez(path, **own)
    return path


def test_an_npz_file_is_its_arrays(tmp_path: Path) -> None:
    own = arrays(class_names=np.array(["cat", "dog", "bird"]))
    data = load(saved(tmp_path / "mine.npz", **own))
    assert data.name == "mine.npz"
    assert data.train.images[:, 0].tolist() == own["x_train"].tolist()
    assert data.test.labels.tolist() == [2, 1, 0]
    assert data.class_names == ("cat", "dog", "bird")
    scaled = own["x_train"] / 255
    assert data.mean == pytest.approx([scaled.mean()])
    assert data.std == pytest.approx([scaled.std()])


@pytest.mark.parametrize(("place", "shape"), [(3, (8, 6, 5, 3)), (1, (8, 3, 6, 5))])
def test_channels_may_come_first_or_last(place: int, shape: tuple[int, ...], tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    data = load(saved(tmp_path / "x.npz", **arrays(x_train=images, x_test=images[:3])))
    assert data.train.images.tolist() == np.moveaxis(images, place, 1).tolist()
    assert data.train.images.is_contiguous()
    assert data.mean == pytest.approx((images / 255).mean(tuple(d for d in range(4) if d != place)).tolist())


def test_floats_of_any_shape_stay_as_they_are_with_a_mean_for_each_feature(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(1e6, 1.0, (8, 4))  # large and nearly equal: squares would cancel
    rows[:, 3] = 7
    data = load(saved(tmp_path / "x.npz", **arrays(x_train=rows, x_test=rows[:3])))
    assert data.train.images.dtype == torch.float32
    assert data.train.images.tolist() == rows.astype(np.float32).tolist()
    exact = rows.astype(np.float32).astype(np.float64)
    assert data.mean == pytest.approx(exact.mean(0), rel=1e-12)
    assert data.std == pytest.approx([*exact.std(0)[:3], 1.0], rel=1e-6)


def test_an_empty_archive_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "cifar-10-binary.tar.gz").write_bytes(b"")
    with pytest.raises(DatasetError, match="must be a whole tar archive") as caught:
        load(tmp_path / "cifar-10-binary.tar.gz")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y_train": np.zeros(7, int)}, "y_train must have a label for each of the 8 samples of x, got 7"),
        ({"y_train": np.zeros(8)}, "y_train must be whole numbers from 0, one per sample, got float64"),
        ({"y_train": np.full(8, 10**12)}, "y_train must be class numbers, counted from 0, got"),
        ({"y_train": np.full(8, 2**63, np.uint64)}, "y_train must be class numbers"),
        ({"x_train": np.zeros((8, 0)), "x_test": np.zeros((3, 0))}, "x_train must have at least one number per sample"),
        ({"class_names": np.array("cat")}, "there must be .* class names, got 1"),
        ({"y_test": np.array([0, -1, 1])}, "y_test must be whole numbers from 0"),
        ({"y_test": np.zeros((3, 2), int)}, r"got int64 of shape \(3, 2\)"),
        ({"x_test": np.zeros((3, 7, 5), np.uint8)}, "training and test samples must have the same shape and type"),
        ({"x_test": np.zeros((3, 1, 6, 5), np.float32)}, "training and test samples must have the same shape and type"),
        ({"x_train": np.zeros(8)}, r"x_train must be numbers of shape \(n, ...\)"),
        ({"x_train": np.array(["a"] * 8)[:, None]}, "x_train must be numbers"),
        ({"x_train": np.full((8, 2), np.nan), "x_test": np.ones((3, 2))}, "x_train must be finite"),
        ({"x_test": np.zeros((0, 6, 5), np.uint8), "y_test": np.zeros(0, int)}, "both splits must have samples"),
        ({"class_names": np.array(["a", "b"])}, "there must be 3 class names, got 2"),
        ({"x_train": np.array([{}] * 8, dtype=object)[:, None]}, "must hold plain arrays of numbers"),
    ],
)
def test_a_bad_npz_file_is_one_clear_error(changes: dict[str, np.ndarray], message: str, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=message) as caught:
        load(saved(tmp_path / "bad.npz", **arrays(**changes)))
    assert "bad.npz" in str(caught.value)


def test_a_missing_array_is_named_with_those_that_are_there(tmp_path: Path) -> None:
    own = arrays()
    own["X_test"] = own.pop("x_test")
    with pytest.raises(DatasetError, match=r"missing: x_test; there are: .*X_test"):
        load(saved(tmp_path / "x.npz", **own))


def test_damaged_and_single_arrays_are_errors(tmp_path: Path) -> None:
    path = saved(tmp_path / "x.npz", **arrays())
    whole = path.read_bytes()
    path.write_bytes(whole[:200])
    with pytest.raises(DatasetError, match=r"x\.npz must be a whole"):
        load(path)
    path.write_bytes(whole[:300] + b"????" + whole[304:])
    with pytest.raises(DatasetError, match=r"x\.npz must be a whole .npz file, but reading it failed"):
        load(path)
    stream = io.BytesIO()
    np.save(stream, np.zeros(3))
    path.write_bytes(stream.getvalue())
    with pytest.raises(DatasetError, match="it is none"):
        load(path)


def test_a_data_set_saved_by_hugging_face_is_read(tmp_path: Path) -> None:
    from PIL import Image

    import datasets

    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (9, 8, 7, 3), dtype=np.uint8)
    labels = [0, 1, 2, 0, 1, 2, 1, 1, 0]
    features = datasets.Features({"img": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b", "c"])})
    parts = {
        name: datasets.Dataset.from_dict(
            {"img": [Image.fromarray(image) for image in images[part]], "label": labels[part]}, features=features
        )
        for name, part in (("train", slice(0, 6)), ("validation", slice(6, 9)))
    }
    datasets.DatasetDict(parts).save_to_disk(tmp_path / "saved")
    data = load(tmp_path / "saved")
    assert data.train.images.tolist() == images[:6].transpose(0, 3, 1, 2).tolist()
    assert data.test.images.tolist() == images[6:].transpose(0, 3, 1, 2).tolist()
    assert (data.train.labels.tolist(), data.test.labels.tolist()) == (labels[:6], labels[6:])
    assert data.class_names == ("a", "b", "c")


def test_saved_arrays_are_read_and_missing_splits_and_columns_named(tmp_path: Path) -> None:
    import datasets

    rows = np.random.default_rng(0).integers(0, 256, (5, 4, 4), dtype=np.uint8)
    features = datasets.Features({"x": datasets.Array2D((4, 4), "uint8"), "y": datasets.Value("int64")})
    whole = datasets.Dataset.from_dict({"x": list(rows), "y": [0, 1, 0, 1, 1]}, features=features)
    datasets.DatasetDict({"train": whole, "test": whole}).save_to_disk(tmp_path / "arrays")
    data = load(tmp_path / "arrays")
    assert data.train.images[:, 0].tolist() == rows.tolist()
    assert data.test.labels.tolist() == [0, 1, 0, 1, 1]

    whole.save_to_disk(tmp_path / "single")
    with pytest.raises(DatasetError, match="must hold the splits train and test, got a single one"):
        load(tmp_path / "single")
    named = whole.rename_column("y", "species")
    datasets.DatasetDict({"train": named, "test": named}).save_to_disk(tmp_path / "named")
    with pytest.raises(DatasetError, match=r"labels must be called label, .* there are x, species"):
        load(tmp_path / "named")


def image_folder(path: Path, train: str, test: str, second: str = "val") -> Path:
    for split, classes in (("train", train), (second, test)):
        for name in classes:
            (path / split / name).mkdir(parents=True)
    return path


@pytest.mark.parametrize("second", ["val", "validation", "test"])
def test_the_classes_of_an_image_folder_are_its_sorted_folders(second: str, tmp_path: Path) -> None:
    path = image_folder(tmp_path / "net", "cab", "abc", second)
    assert is_image_folder(path)
    assert classes_in(path) == ("a", "b", "c")


def test_an_image_folder_must_have_the_same_classes_twice(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="only in one of them: c, d"):
        load(image_folder(tmp_path / "net", "abc", "abd"))
    with pytest.raises(DatasetError, match="must have a folder val, validation or test beside train"):
        load(image_folder(tmp_path / "other", "abc", "abc", "elsewhere"))


@pytest.mark.parametrize(
    ("module", "line"),
    [("torchvision", r"pip install '\.\[vision\]'"), ("datasets", r"pip install '\.\[datasets\]'")],
)
def test_without_its_library_a_format_says_how_to_get_it(module, line, tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, module, None)
    path = image_folder(tmp_path / "net", "ab", "ab")
    if module == "datasets":
        (path / "dataset_dict.json").write_text("{}")
    with pytest.raises(ConfigError, match=line):
        load(path)


def test_what_is_none_of_the_formats_is_said_to_be_so(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="it is none of these"):
        load(tmp_path)
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(DatasetError, match="it is none of these"):
        load(tmp_path / "notes.txt")
