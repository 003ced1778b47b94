"""Pictures with several handwritten digits in them, of which box, class and mask are known exactly.

The digits, 0 to 4, come with scikit-learn. A picture has 24 x 24 pixels; each of its quarters holds a digit, 8 or 9
pixels wide, or nothing. Pictures to test with are made of digits that are in none to train on.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from sklearn.datasets import load_digits
from torch.nn.functional import interpolate

QUARTER = 12  # pixels
SIZE = 2 * QUARTER
DIGITS = 5  # of the ten, so that the examples take seconds
MOST = 4  # digits in a picture
UNLABELED = -1


class Scenes(NamedTuple):
    """Pictures, and what is in them."""

    images: torch.Tensor  # (n, 1, 24, 24), in [0, 1], with some noise
    boxes: torch.Tensor  # (n, 4, 4): left, top, right, bottom
    classes: torch.Tensor  # (n, 4)
    present: torch.Tensor  # (n, 4): False where the quarter is empty
    pixels: torch.Tensor  # (n, 24, 24): 0 is background, 1 to 5 the digits, -1 where it is unclear


def scenes(n: int, *, train: bool, seed: int = 0) -> Scenes:
    """Makes `n` pictures."""
    ink, names = load_digits(n_class=DIGITS, return_X_y=True)
    own = torch.arange(len(ink)) % 4 != 0 if train else torch.arange(len(ink)) % 4 == 0
    ink, names = torch.tensor(ink / 16, dtype=torch.float32)[own].view(-1, 1, 8, 8), torch.tensor(names)[own]
    luck = torch.Generator().manual_seed(2 * seed + train)

    def draw(low: int, high: int) -> int:
        return int(torch.randint(low, high, (), generator=luck))

    images, boxes = torch.zeros(n, 1, SIZE, SIZE), torch.zeros(n, MOST, 4)
    classes, pixels = torch.zeros(n, MOST, dtype=torch.int64), torch.zeros(n, SIZE, SIZE, dtype=torch.int64)
    present = torch.rand(n, MOST, generator=luck) < 0.6
    present[:, 0] |= ~present.any(1)  # at least one
    for picture, quarter in present.nonzero().tolist():
        which, width = draw(0, len(ink)), draw(8, 10)
        left = QUARTER * (quarter % 2) + draw(0, QUARTER + 1 - width)
        top = QUARTER * (quarter // 2) + draw(0, QUARTER + 1 - width)
        digit = interpolate(ink[which : which + 1], size=(width, width), mode="bilinear")[0, 0]
        window = picture, slice(top, top + width), slice(left, left + width)
        images[:, 0][window] = digit
        boxes[picture, quarter] = torch.tensor([left, top, left + width, top + width])
        classes[picture, quarter] = names[which]
        pixels[window] = torch.where(digit > 0.5, names[which] + 1, torch.where(digit > 0.2, UNLABELED, 0))
    images += 0.05 * torch.randn(images.shape, generator=luck)
    return Scenes(images, boxes, classes, present, pixels)
