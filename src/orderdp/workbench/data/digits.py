"""The handwritten digits inside scikit-learn: small, and always there."""

from __future__ import annotations

import numpy as np

from orderdp.workbench.data.extras import extra
from orderdp.workbench.data.forms import Arrays

__all__ = ["read_digits"]


def read_digits() -> Arrays:
    """Training images and labels, test images and labels: a quarter is for testing, the same one always."""
    datasets = extra("sklearn.datasets", "the digits", "demo")
    selection = extra("sklearn.model_selection", "the digits", "demo")
    pixels, labels = datasets.load_digits(return_X_y=True)
    # Sixteen levels of grey, spread over a byte: 17 different numbers stay different.
    images = np.rint(pixels * (255 / 16)).astype(np.uint8).reshape(-1, 1, 8, 8)
    train, test, train_labels, test_labels = selection.train_test_split(
        images, labels, test_size=0.25, random_state=0, stratify=labels
    )
    return train, train_labels, test, test_labels
