"""Images of handwritten digits, as a folder of images."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three classes, twelve images of each to train on and four to test on."""
    root = tmp_path_factory.mktemp("digits")
    images, labels = load_digits(return_X_y=True)
    for digit in range(3):
        members = images[labels == digit][:16].reshape(-1, 8, 8) * 15.9
        for number, pixels in enumerate(members):
            place = root / ("train" if number < 12 else "val") / f"digit {digit}"
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels.astype("uint8")).resize((40, 40)).convert("RGB").save(place / f"{number}.png")
    return root
