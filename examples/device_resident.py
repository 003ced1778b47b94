"""All data on the device: no DataLoader, whole batches by index, as in the speed records on CIFAR-10.

The images are moved to the device once, as bytes, and stay there. A step takes its batch by index, shifts and mirrors
it there, and nothing waits for the device: the epoch's indices are copied at once by ``pruner.index_batches``, and
``pruner.update`` keeps the scores where the losses are. Nesterov momentum, label smoothing, channels last, a learning
rate that rises and falls with ``pruner.steps``. Scores are the losses without smoothing.

By default the digits of scikit-learn, 8 x 8 pixels, which are not mirrored. For your own images give a file with the
arrays x_train, y_train, x_test, y_test: bytes of shape (n, height, width) or (n, height, width, channels), and classes.

    python -m examples.device_resident [--epochs 12] [--seeds 0,1,2] [--prune-ratio 0.4]
    DATA=cifar10.npz python -m examples.device_resident
"""

from __future__ import annotations

import os
import time
from typing import NamedTuple

import numpy as np
import torch
from examples.comparing import Result, compare, read_options
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

import orderdp

BATCH_SIZE = 64
SHIFT = 1  # pixels, in every direction


class Images(NamedTuple):
    """Images as bytes and their classes, on the device."""

    pixels: torch.Tensor
    classes: torch.Tensor


def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def load(path: str | None = None) -> tuple[Images, Images, bool]:
    """Training and test images on the device, and whether they may be mirrored."""
    if path is None:
        rows, classes = load_digits(return_X_y=True)
        pixels = (rows.reshape(-1, 8, 8) * 15).astype(np.uint8)
        order = np.random.default_rng(0).permutation(len(pixels))
        train, test = order[:1400], order[1400:]
        arrays = (pixels[train], classes[train], pixels[test], classes[test])
    else:
        with np.load(path) as file:
            arrays = tuple(file[name] for name in ("x_train", "y_train", "x_test", "y_test"))
    return _images(*arrays[:2]), _images(*arrays[2:]), path is not None


def _images(pixels: np.ndarray, classes: np.ndarray) -> Images:
    planes = pixels[..., None] if pixels.ndim == 3 else pixels
    moved = torch.from_numpy(planes).to(device()).permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last)
    return Images(moved, torch.from_numpy(classes).long().to(device()))


def build_model(images: Images) -> nn.Module:
    channels, n_classes = images.pixels.shape[1], int(images.classes.max()) + 1

    def block(before: int, after: int) -> list[nn.Module]:
        return [nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.GELU()]

    layers = [*block(channels, 16), *block(16, 32), nn.MaxPool2d(2), *block(32, 64)]
    model = nn.Sequential(*layers, nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(64, n_classes))
    return model.to(images.pixels.device, memory_format=torch.channels_last)


def standardized(pixels: torch.Tensor, like: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    mean, spread = like
    return (pixels.float() - mean) / spread


def augmented(batch: torch.Tensor, mirror: bool) -> torch.Tensor:
    """Every image shifted by itself, and half of them mirrored, without leaving the device."""
    size, _, height, width = batch.shape
    padded = F.pad(batch, [SHIFT] * 4)
    down, right = torch.randint(2 * SHIFT + 1, (2, size, 1), device=batch.device)
    rows = down + torch.arange(height, device=batch.device)
    columns = right + torch.arange(width, device=batch.device)
    which = torch.arange(size, device=batch.device)[:, None, None]
    shifted = padded.permute(0, 2, 3, 1)[which, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
    if not mirror:
        return shifted
    flips = torch.rand(size, 1, 1, 1, device=batch.device) < 0.5
    return torch.where(flips, shifted.flip(-1), shifted)


def train(policy: orderdp.Policy, epochs: int, seed: int, learning_rate: float = 0.2) -> Result:
    torch.manual_seed(seed)
    images, test_images, mirror = load(os.environ.get("DATA"))
    x, y = images
    values = x.float()
    like = values.mean((0, 2, 3), keepdim=True), values.std((0, 2, 3), keepdim=True) + 1e-6
    x = standardized(x, like)
    model = build_model(images)
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate, momentum=0.9, nesterov=True, weight_decay=5e-4)
    pruner = orderdp.Pruner(policy, len(x), seed=seed, epochs=epochs)
    steps = pruner.steps(epochs, BATCH_SIZE)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: float(np.interp(step, [0, 0.25 * steps, steps], [0.2, 1.0, 0.01]))
    )

    start = time.process_time()
    for _ in range(epochs):
        for index in pruner.index_batches(BATCH_SIZE, device=x.device):
            logits, classes = model(augmented(x[index], mirror)), y[index]
            losses = F.cross_entropy(logits, classes, reduction="none", label_smoothing=0.1)
            scores = F.cross_entropy(logits.detach(), classes, reduction="none")
            loss = pruner.update(index, losses, scores)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            schedule.step()
    seconds = time.process_time() - start
    test = Images(standardized(test_images.pixels, like), test_images.classes)
    return Result(accuracy(model, test, mirror), pruner.report()["kept"], seconds, pruner, model)


@torch.no_grad()
def accuracy(model: nn.Module, images: Images, mirror: bool) -> float:
    """Percent of the images that are told right; by an image and its mirror image, where those show the same."""
    model.eval()
    right = 0
    for pixels, classes in zip(images.pixels.split(1000), images.classes.split(1000), strict=True):
        logits = model(pixels) + model(pixels.flip(-1)) if mirror else model(pixels)
        right += int((logits.argmax(1) == classes).sum())
    model.train()
    return 100 * right / len(images.classes)


def main(arguments: list[str] | None = None) -> dict[str, list[Result]]:
    options = read_options(__doc__, epochs=12, seeds="0,1,2", arguments=arguments)
    return compare(train, options, "accuracy %")


if __name__ == "__main__":
    main()
