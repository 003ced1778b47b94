"""Gradients of the cross-entropy with respect to the last linear layer, in closed form.

That of one sample is (p - y) (x) [h, 1]: p the softmax, y the label as one-hot, h the features. It is kept as its two
factors, so n samples take O(n (classes + width)) and not n * classes * width. Inner products factorise:
<g_i, g_j> = <p_i - y_i, p_j - y_j> * (<h_i, h_j> + 1).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = ["Gradients", "log_softmax", "prediction_errors", "softmax"]


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Logarithms of the probabilities, without overflow."""
    shifted = logits - logits.max(1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(1, keepdims=True)), dtype=np.float32)


def softmax(logits: np.ndarray) -> np.ndarray:
    """The probabilities."""
    return np.asarray(np.exp(log_softmax(logits)))


def prediction_errors(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Softmax minus one-hot label: the gradient of the cross-entropy with respect to the logits."""
    errors = softmax(logits)
    errors[np.arange(len(labels)), labels] -= 1
    return errors


@dataclass(frozen=True, eq=False)
class Gradients:
    """The last-layer gradients of n samples, factorised.

    Attributes:
        errors: p - y, (n, classes).
        inputs: [h, 1], (n, width + 1).
    """

    errors: np.ndarray
    inputs: np.ndarray

    @classmethod
    def of(cls, features: np.ndarray, logits: np.ndarray, labels: np.ndarray) -> Gradients:
        """From what the proxy has recorded."""
        inputs = np.empty((len(features), features.shape[1] + 1), dtype=np.float32)
        inputs[:, :-1] = features
        inputs[:, -1] = 1
        return cls(prediction_errors(logits, labels), inputs)

    def __len__(self) -> int:
        return len(self.errors)

    def __getitem__(self, places: np.ndarray) -> Gradients:
        return Gradients(self.errors[places], self.inputs[places])

    def squared_norms(self) -> np.ndarray:
        """Of each sample's gradient."""
        return np.asarray(_squares(self.errors) * _squares(self.inputs))

    def mean(self, weights: np.ndarray | None = None) -> np.ndarray:
        """The mean gradient, or with weights their weighted sum: (classes, width + 1)."""
        if weights is None:
            return np.asarray(self.errors.T @ self.inputs / np.float32(len(self)))
        return np.asarray((self.errors * weights[:, None]).T @ self.inputs)

    def along(self, direction: np.ndarray) -> np.ndarray:
        """Inner product of each sample's gradient with a direction of shape (classes, width + 1)."""
        return np.asarray(np.einsum("nc,nc->n", self.inputs @ direction.T, self.errors))

    def inner(self, others: Gradients) -> np.ndarray:
        """Inner products of these gradients with `others`, (len(self), len(others))."""
        product = self.inputs @ others.inputs.T
        product *= self.errors @ others.errors.T
        return np.asarray(product)


def _squares(rows: np.ndarray) -> np.ndarray:
    return np.asarray(np.einsum("nd,nd->n", rows, rows))
