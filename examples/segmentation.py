"""Segmentation: a loss for each pixel, and pixels without a label.

Pictures of one to four handwritten digits; a small network says for each pixel whether it is background or ink, and of
which digit. Faint pixels at the edges of strokes have no label, as the outlines in many real data sets.

The score of an image is the mean cross-entropy of its labeled pixels: `per_sample` with a mask. The mean is taken
image by image. One mean over all labeled pixels of a batch would be another training loss, and would leave no score
for an image.

    python -m examples.segmentation [--epochs 20] [--seeds 0,1] [--prune-ratio 0.4]
"""

from __future__ import annotations

import time
from functools import cache

import torch
from examples.comparing import Result, compare, read_options
from examples.digit_scenes import DIGITS, UNLABELED, scenes
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import orderdp

BATCH_SIZE = 16
KINDS = 1 + DIGITS  # background is a kind, too


@cache
def load(train: bool) -> TensorDataset:
    made = scenes(800 if train else 300, train=train)
    return TensorDataset(made.images, made.pixels)


class Segmenter(nn.Module):
    """Looks at the picture in halves and quarters of its size, and says what each pixel is."""

    def __init__(self) -> None:
        super().__init__()
        self.fine = nn.Conv2d(1, 16, 3, padding=1, stride=2)
        self.coarse = nn.Sequential(
            nn.GroupNorm(4, 16), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1, stride=2),
            nn.GroupNorm(4, 32), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1),
            nn.GroupNorm(4, 64), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1),
            nn.GroupNorm(4, 64), nn.ReLU(), nn.Conv2d(64, 128, 1),
        )  # fmt: skip
        # Each coarse cell speaks for 2 x 2 finer ones, and each of those for 2 x 2 pixels.
        self.pixels = nn.Sequential(nn.ReLU(), nn.Conv2d(48, 4 * KINDS, 1), nn.PixelShuffle(2))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        fine = self.fine(images)
        seen = torch.cat((fine, F.pixel_shuffle(self.coarse(fine), 2)), dim=1)
        return self.pixels(seen)


def image_losses(output: torch.Tensor, pixels: torch.Tensor) -> torch.Tensor:
    """The mean loss of each image's labeled pixels."""
    losses = F.cross_entropy(output, pixels, ignore_index=UNLABELED, reduction="none")
    return orderdp.per_sample(losses, mask=pixels != UNLABELED)


def train(policy: orderdp.Policy, epochs: int, seed: int, learning_rate: float = 5e-3) -> Result:
    torch.manual_seed(seed)
    train_set, model = load(train=True), Segmenter()
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
    pruner = orderdp.Pruner(policy, train_set, seed=seed, epochs=epochs)
    loader = pruner.loader(train_set, batch_size=BATCH_SIZE)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, pruner.steps(epochs, BATCH_SIZE))

    start = time.process_time()
    for _ in range(epochs):
        for index, (images, pixels) in loader:
            loss = pruner.update(index, image_losses(model(images), pixels))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    seconds = time.process_time() - start
    return Result(mean_overlap(model), pruner.report()["kept"], seconds, pruner, model)


@torch.no_grad()
def mean_overlap(model: nn.Module) -> float:
    """Intersection over union in percent: the mean over the kinds of pixel, of those with a label."""
    images, pixels = load(train=False).tensors
    labeled = pixels != UNLABELED
    said, true = model(images).argmax(1)[labeled], pixels[labeled]
    overlaps = [
        ((said == kind) & (true == kind)).sum() / ((said == kind) | (true == kind)).sum() for kind in range(KINDS)
    ]
    return 100 * torch.stack(overlaps).mean().item()


def main(arguments: list[str] | None = None) -> dict[str, list[Result]]:
    return compare(train, read_options(__doc__, epochs=20, seeds="0,1", arguments=arguments), "mean IoU %")


if __name__ == "__main__":
    main()
