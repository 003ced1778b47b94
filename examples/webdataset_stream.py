"""A stream of tar shards: webdataset reads them, and a filter drops samples by key before they are decoded.

Writes handwritten digits as PNG files into tar shards, then trains on the stream, all of it and with 40 % left out each
epoch. Shards are read in another order in every epoch, by two worker processes. The lines that pruning adds are marked.

    pip install '.[demo,webdataset]'
    python examples/webdataset_stream.py [--prune-ratio 0.4] [--workers 2] [--epochs 20]
"""

from __future__ import annotations

import argparse
import tempfile
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import torch
import webdataset
from PIL import Image
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader

import orderdp
from orderdp.streaming import KeyFilter

BATCH_SIZE = 32
SHARDS = 8


class Result(NamedTuple):
    """What a training cost and reached."""

    accuracy: float
    kept: list[int]
    keys: KeyFilter


def write_shards(folder: Path, every: int = 1) -> int:
    """Tar files of PNG images and classes, a quarter of them to test on; returns how many there are to train on.

    Args:
        folder: Where to.
        every: Takes every so many-th image; 1 for all of them.
    """
    images, labels = load_digits(return_X_y=True)
    pictures = [Image.fromarray(pixels.reshape(8, 8)) for pixels in (images * 15.9).astype("uint8")]
    samples = [
        {"__key__": f"digit{number:04d}", "png": picture, "cls": cls}
        for number, (picture, cls) in enumerate(zip(pictures, labels.tolist(), strict=True))
    ][::every]
    test, train = samples[::4], [sample for number, sample in enumerate(samples) if number % 4]
    for name, part in [("test", test)] + [(f"train-{shard}", train[shard::SHARDS]) for shard in range(SHARDS)]:
        with webdataset.TarWriter(str(folder / f"{name}.tar"), mtime=0) as writer:
            for sample in part:
                writer.write(sample)
    return len(train)


def stream(pattern: str, *stages: Any, **options: Any) -> webdataset.WebDataset:
    """Samples as (key, image, class); `stages` stand before the images are decoded."""
    samples = webdataset.WebDataset(pattern, **options).compose(*stages)
    return samples.decode("torchl").to_tuple("__key__", "png", "cls")


def train(folder: Path, policy: orderdp.Policy, *, epochs: int = 20, workers: int = 2, seed: int = 0) -> Result:
    """Trains on the stream, on what `policy` leaves of it, and tests."""
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    criterion = torch.nn.CrossEntropyLoss(reduction="none")

    keys = KeyFilter(policy, seed=seed)  # pruning
    pattern = str(folder / f"train-{{0..{SHARDS - 1}}}.tar")
    samples = stream(pattern, keys.gate, shardshuffle=SHARDS)  # pruning: the gate
    loader = DataLoader(samples.shuffle(200), batch_size=BATCH_SIZE, num_workers=workers)

    kept = []
    for _ in range(keys.epoch, epochs):
        before = keys.report()["kept"]
        for key, x, y in keys.one_epoch(loader):  # pruning
            loss = keys.update(key, criterion(model(x), y))  # pruning
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        kept.append(int(keys.report()["kept"] - before))
    return Result(accuracy(model, folder), kept, keys)


def accuracy(model: torch.nn.Module, folder: Path) -> float:
    """Of the test shard."""
    loader = DataLoader(stream(str(folder / "test.tar"), shardshuffle=False), batch_size=500)
    right = total = 0
    with torch.no_grad():
        for _, x, y in loader:
            right += int((model(x).argmax(1) == y).sum())
            total += len(y)
    return right / total


def main(arguments: list[str] | None = None) -> None:
    """Compares and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prune-ratio", type=float, default=0.4, help="share left out each epoch (default 0.4)")
    parser.add_argument("--workers", type=int, default=2, help="processes that read and decode (default 2)")
    parser.add_argument("--epochs", type=int, default=20, help="how many (default 20)")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        n = write_shards(folder)
        print(f"{n} digits in {SHARDS} tar shards, {options.epochs} epochs, {options.workers} workers")
        for ratio in (0.0, options.prune_ratio):
            result = train(folder, orderdp.OrderDP(prune_ratio=ratio), epochs=options.epochs, workers=options.workers)
            report = result.keys.report()
            print(
                f"{ratio:.0%} pruned: accuracy {result.accuracy:.2%}, {sum(result.kept):,} samples decoded, "
                f"{report['saved']:.1%} fewer; first epochs {result.kept[:3]} of {n}"
            )


if __name__ == "__main__":
    warnings.filterwarnings("ignore", module="webdataset")
    main()
