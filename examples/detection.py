"""Detection: several losses an image, and images with different numbers of boxes.

Pictures of one to four handwritten digits; a small network says for each cell of a grid whether a digit is centered
there, which one, and where its box ends.

The score of an image is what it adds to the training loss: the objectness loss, averaged over the cells, plus class
loss and box loss, each averaged over the digits that are there. Averaged and not added up, because a sum would rank
images by how many boxes they have; and empty places of the padded lists of boxes do not count.

    python -m examples.detection [--epochs 20] [--seeds 0,1] [--prune-ratio 0.4]
"""

from __future__ import annotations

import time
from functools import cache

import torch
from examples.comparing import Result, compare, read_options
from examples.digit_scenes import DIGITS, scenes
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import orderdp

CELLS, STRIDE = 6, 4  # a grid of 6 x 6 cells, each 4 pixels wide
BATCH_SIZE = 16
OBJECTNESS = 10.0  # few of the cells hold a digit: without a factor, the mean over cells would hardly count


@cache
def load(train: bool) -> TensorDataset:
    made = scenes(800 if train else 300, train=train)
    return TensorDataset(made.images, made.boxes, made.classes, made.present)


class Detector(nn.Module):
    """Gives (batch, cells, 10): four sides of a box, objectness, and five classes. Sides are in units of 8 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1, stride=2), nn.GroupNorm(4, 16), nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1, stride=2), nn.GroupNorm(4, 32), nn.ReLU(),
            nn.Conv2d(32, 64, 3, padding=1), nn.GroupNorm(4, 64), nn.ReLU(),
            nn.Conv2d(64, 64, 3, padding=1), nn.GroupNorm(4, 64), nn.ReLU(),
            nn.Conv2d(64, 4 + 1 + DIGITS, 1),
        )  # fmt: skip

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.body(images).flatten(2).transpose(1, 2)


def cell_of(boxes: torch.Tensor) -> torch.Tensor:
    """The cell in which a box is centered."""
    column, row = ((boxes[..., :2] + boxes[..., 2:]) / 2 / STRIDE).long().unbind(-1)
    return row * CELLS + column


def sides_of(boxes: torch.Tensor, cells: torch.Tensor) -> torch.Tensor:
    """The sides of boxes as seen from the middle of their cells: what the network has to say."""
    middle = torch.stack((cells % CELLS, cells // CELLS), -1) * STRIDE + STRIDE / 2
    return (boxes - middle.repeat(1, 1, 2)) / 8


def image_losses(
    output: torch.Tensor, boxes: torch.Tensor, classes: torch.Tensor, present: torch.Tensor
) -> torch.Tensor:
    """One number an image: objectness over cells, class and box over the digits that are there."""
    cells = cell_of(boxes)
    taken = torch.zeros(output.shape[:2]).scatter_add(1, cells, present.float())
    objectness = F.binary_cross_entropy_with_logits(output[..., 4], taken, reduction="none")
    found = output.gather(1, cells.unsqueeze(-1).expand(-1, -1, output.shape[-1]))
    naming = F.cross_entropy(found[..., 5:].transpose(1, 2), classes, reduction="none")
    placing = F.l1_loss(found[..., :4], sides_of(boxes, cells), reduction="none").sum(-1)
    return OBJECTNESS * orderdp.per_sample(objectness) + orderdp.per_sample(naming + placing, mask=present)


def train(policy: orderdp.Policy, epochs: int, seed: int, learning_rate: float = 1e-2) -> Result:
    torch.manual_seed(seed)
    train_set, model = load(train=True), Detector()
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
    pruner = orderdp.Pruner(policy, train_set, seed=seed, epochs=epochs)
    loader = pruner.loader(train_set, BATCH_SIZE)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, pruner.steps(epochs, BATCH_SIZE))

    start = time.process_time()
    for _ in range(epochs):
        for index, (images, boxes, classes, present) in loader:
            loss = pruner.update(index, image_losses(model(images), boxes, classes, present))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    seconds = time.process_time() - start
    return Result(found_share(model), pruner.report()["kept"], seconds, pruner, model)


@torch.no_grad()
def found_share(model: nn.Module) -> float:
    """F1 in percent: a find counts if it names its digit and overlaps its box by half or more."""
    images, boxes, classes, present = load(train=False).tensors
    output, cells = model(images), cell_of(boxes)
    found = output.gather(1, cells.unsqueeze(-1).expand(-1, -1, output.shape[-1]))
    named = found[..., 5:].argmax(-1) == classes
    near = overlap(found[..., :4], sides_of(boxes, cells)) >= 0.5
    right = (present & (found[..., 4] > 0) & named & near).sum()
    finds = (output[..., 4] > 0).sum()
    return (200 * right / (finds + present.sum())).item()


def overlap(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Intersection over union."""
    shared = (torch.minimum(a[..., 2:], b[..., 2:]) - torch.maximum(a[..., :2], b[..., :2])).clamp(min=0).prod(-1)
    return shared / ((a[..., 2:] - a[..., :2]).prod(-1) + (b[..., 2:] - b[..., :2]).prod(-1) - shared)


def main(arguments: list[str] | None = None) -> dict[str, list[Result]]:
    options = read_options(__doc__, epochs=20, seeds="0,1", arguments=arguments)
    return compare(train, options, "F1 %")


if __name__ == "__main__":
    main()
