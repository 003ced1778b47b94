"""Two modalities in one batch: one model with two entrances sorts images and texts.

The images are handwritten digits, the texts docstrings of ten packages of the standard library; the model says which
digit, and which package. A batch holds both.

The score of a sample is its own cross-entropy. Texts stay harder than images to the end, so ranked all together they
take a part of the images' share. That may be what you want, or an accident of which loss is larger. `Balanced`, with
the modality as label, gives each its share and ranks inside it. The table has both ways, and the lines below it what
share of the samples used were images.

    python -m examples.two_modalities [--epochs 20] [--seeds 0,1] [--prune-ratio 0.4]
"""

from __future__ import annotations

import time
from functools import cache

import torch
from examples.comparing import Result, compare, read_options
from examples.docstrings import docstrings
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

import orderdp
from orderdp.policies import Balanced

BATCH_SIZE = 32
PACKAGES = (
    "_pydecimal", "asyncio", "email", "http", "importlib", "logging", "multiprocessing", "tarfile", "unittest", "xml",
)  # fmt: skip
IMAGE, TEXT = 0, 1
BUCKETS = 2048  # of words
Sample = tuple[int, torch.Tensor, int]  # modality, pixels or numbers of words, class


@cache
def load(train: bool) -> list[Sample]:
    """Images and texts, about as many of each; every fourth is for testing."""
    pixels, digits = load_digits(return_X_y=True)
    images = [(IMAGE, torch.tensor(x / 16, dtype=torch.float32), int(y)) for x, y in zip(pixels, digits, strict=True)]
    texts = [(TEXT, words_of(text), kind) for kind, name in enumerate(PACKAGES) for text in docstrings(name)[:180]]
    return [sample for number, sample in enumerate(images + texts) if (number % 4 != 0) == train]


def words_of(text: str) -> torch.Tensor:
    """A number for each word; `hash` would give other ones in every process."""
    words = text.lower().split()[:30]
    return torch.tensor([int.from_bytes(word.encode(), "big") % (BUCKETS - 1) for word in words])


def collate(samples: list[Sample]) -> tuple[torch.Tensor, list[torch.Tensor], torch.Tensor]:
    """The modalities of a batch, what is in it, and the classes, in the order of the index."""
    modality, content, kind = zip(*samples, strict=True)
    return torch.tensor(modality), list(content), torch.tensor(kind)


class TwoEntrances(nn.Module):
    """An encoder for each modality, a body for both, and a head for each."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.see, self.read = nn.Linear(64, width), nn.EmbeddingBag(BUCKETS, width)
        self.body = nn.Sequential(nn.LayerNorm(width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.heads = nn.ModuleList([nn.Linear(width, 10), nn.Linear(width, len(PACKAGES))])

    def forward(self, modality: torch.Tensor, content: list[torch.Tensor]) -> torch.Tensor:
        """Logits of ten classes each; what the classes are depends on the modality."""
        images = [x for m, x in zip(modality, content, strict=True) if m == IMAGE]
        texts = [x for m, x in zip(modality, content, strict=True) if m == TEXT]
        logits = torch.empty(len(modality), 10)
        if images:
            logits[modality == IMAGE] = self.heads[IMAGE](self.body(self.see(torch.stack(images))))
        if texts:
            starts = torch.tensor([0] + [len(x) for x in texts[:-1]]).cumsum(0)
            logits[modality == TEXT] = self.heads[TEXT](self.body(self.read(torch.cat(texts), starts)))
        return logits


def train(policy: orderdp.Policy, epochs: int, seed: int, learning_rate: float = 3e-3) -> Result:
    torch.manual_seed(seed)
    train_set, model = load(train=True), TwoEntrances()
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
    modalities = [modality for modality, _, _ in train_set]
    pruner = orderdp.Pruner(policy, train_set, seed=seed, epochs=epochs, labels=modalities)
    loader = pruner.loader(train_set, batch_size=BATCH_SIZE, collate_fn=collate)

    start = time.process_time()
    for _ in range(epochs):
        for index, (modality, content, kind) in loader:
            losses = F.cross_entropy(model(modality, content), kind, reduction="none")
            loss = pruner.update(index, losses)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    seconds = time.process_time() - start
    return Result(sum(accuracies(model)) / 2, pruner.report()["kept"], seconds, pruner, model)


@torch.no_grad()
def accuracies(model: nn.Module) -> tuple[float, float]:
    """Of images and of texts, in percent."""
    modality, content, kind = collate(load(train=False))
    right = 100.0 * (model(modality, content).argmax(1) == kind)
    return right[modality == IMAGE].mean().item(), right[modality == TEXT].mean().item()


def image_share(pruner: orderdp.Pruner) -> float:
    """Share of the samples trained on that were images."""
    images = torch.tensor([modality == IMAGE for modality, _, _ in load(train=True)])
    return (pruner.usage[images].sum() / pruner.usage.sum()).item()


def main(arguments: list[str] | None = None) -> dict[str, list[Result]]:
    options = read_options(__doc__, epochs=20, seeds="0,1", arguments=arguments)
    balanced = Balanced(orderdp.OrderDP(prune_ratio=options.prune_ratio))
    results = compare(train, options, "mean accuracy %", policies=(balanced,))
    for name, runs in results.items():
        images, texts = accuracies(runs[0].model)
        share = image_share(runs[0].pruner)
        print(f"{name:<42} images {images:.1f} %, texts {texts:.1f} %; {share:.0%} of the samples were images")
    return results


if __name__ == "__main__":
    main()
