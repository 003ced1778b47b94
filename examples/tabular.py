"""A table: measurements of cells, one row a patient, trained with class weights and scored without.

The data come with scikit-learn: 569 rows of 30 numbers, of which 212 are malignant; those weigh more in training.

The score of a row is its plain cross-entropy, not the weighted one that is trained on (``update(..., scores=...)``).
Ranked by weighted losses, a well understood malignant row could go before a badly understood benign one: the weight
would be applied twice, once in the gradient and once in the choice. A row has no other structure: one row, one loss.

    python -m examples.tabular [--epochs 30] [--seeds 0,1,2,3,4] [--prune-ratio 0.4]
"""

from __future__ import annotations

import time

import torch
from examples.comparing import Result, compare, read_options
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import orderdp

BATCH_SIZE = 16


def load(seed: int) -> tuple[TensorDataset, TensorDataset]:
    """Half of the rows to train on and half to test with; the table is small, so each seed splits it anew."""
    rows, benign = load_breast_cancer(return_X_y=True)
    x_train, x_test, y_train, y_test = train_test_split(
        rows, 1 - benign, train_size=285, random_state=seed, stratify=benign
    )
    scaler = StandardScaler().fit(x_train)
    return (
        TensorDataset(torch.tensor(scaler.transform(x_train), dtype=torch.float32), torch.tensor(y_train)),
        TensorDataset(torch.tensor(scaler.transform(x_test), dtype=torch.float32), torch.tensor(y_test)),
    )


def build_model() -> nn.Module:
    return nn.Sequential(nn.Linear(30, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2))


def train(policy: orderdp.Policy, epochs: int, seed: int, learning_rate: float = 2e-3) -> Result:
    torch.manual_seed(seed)
    train_set, test_set = load(seed)
    model = build_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
    pruner = orderdp.Pruner(policy, train_set, seed=seed, epochs=epochs)
    loader = pruner.loader(train_set, batch_size=BATCH_SIZE)
    class_weights = 0.5 / train_set.tensors[1].bincount() * len(train_set)  # each class counts one half

    start = time.process_time()
    for _ in range(epochs):
        for index, (rows, malignant) in loader:
            losses = F.cross_entropy(model(rows), malignant, reduction="none")
            loss = pruner.update(index, class_weights[malignant] * losses, scores=losses.detach())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    seconds = time.process_time() - start
    return Result(balanced_accuracy(model, test_set), pruner.report()["kept"], seconds, pruner, model)


@torch.no_grad()
def balanced_accuracy(model: nn.Module, test_set: TensorDataset) -> float:
    """The mean of the shares of benign and of malignant rows that are told right, in percent."""
    rows, malignant = test_set.tensors
    right = (model(rows).argmax(1) == malignant).float()
    return 50 * (right[malignant == 0].mean() + right[malignant == 1].mean()).item()


def main(arguments: list[str] | None = None) -> dict[str, list[Result]]:
    options = read_options(__doc__, epochs=30, seeds="0,1,2,3,4", arguments=arguments)
    return compare(train, options, "balanced acc. %")


if __name__ == "__main__":
    main()
