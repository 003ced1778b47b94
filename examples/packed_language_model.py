"""A language model on packed sequences: several short texts in a row, so that little is spent on padding.

The texts are docstrings of the standard library, byte by byte. Texts of a batch are packed into rows of 128 bytes;
attention stays within a text, and so does the loss.

The score of a text is the mean cross-entropy of its bytes: `per_sample` with `segments`, which say to which text of the
batch a place in the packed rows belongs, and to none where a row is filled up. The sample is the text and not the row:
which texts share a row changes from epoch to epoch, so a row's loss would be no text's score.

What is saved is counted in texts, exactly. Texts differ in length, so bytes are saved at a rate of their own; both are
printed.

    python -m examples.packed_language_model [--epochs 10] [--seeds 0] [--prune-ratio 0.4]
"""

from __future__ import annotations

import math
import time
from functools import cache
from typing import NamedTuple

import torch
from examples.comparing import Result, compare, read_options
from examples.docstrings import docstrings
from torch import nn
from torch.nn import functional as F

import orderdp

BATCH_SIZE = 32  # texts
ROW = 128  # bytes
LONGEST = 64  # bytes of a text
PACKAGES = ("_pydecimal", "asyncio", "email", "importlib", "logging", "multiprocessing", "unittest")


@cache
def load(train: bool) -> list[bytes]:
    """Texts of at most 64 bytes; every fifth is for testing."""
    texts = [text.encode()[:LONGEST] for package in PACKAGES for text in docstrings(package)]
    return [text for number, text in enumerate(texts) if (number % 5 != 0) == train]


class Packed(NamedTuple):
    """Texts of a batch in rows. A place belongs to text number `segments` of the batch, -1 to none."""

    inputs: torch.Tensor  # the byte before, 0 at the start of a text
    targets: torch.Tensor  # the byte to predict
    segments: torch.Tensor
    positions: torch.Tensor  # within the text


def pack(texts: list[bytes]) -> Packed:
    """Puts each text into the first row that has room for it."""
    rows: list[list[tuple[int, int, int, int]]] = []
    for number, text in enumerate(texts):
        row = next((row for row in rows if len(row) + len(text) <= ROW), None)
        if row is None:
            rows.append(row := [])
        row += zip(b"\0" + text, text, [number] * len(text), range(len(text)), strict=False)
    filler = (0, 0, -1, 0)
    places = torch.tensor([row + [filler] * (ROW - len(row)) for row in rows])
    return Packed(*places.unbind(-1))


class LanguageModel(nn.Module):
    """A transformer of two layers."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, width), nn.Embedding(LONGEST, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, 256)

    def forward(self, packed: Packed) -> torch.Tensor:
        hidden = self.bytes(packed.inputs) + self.places(packed.positions)
        same_text = packed.segments.unsqueeze(1) == packed.segments.unsqueeze(2)
        allowed = same_text & torch.ones(ROW, ROW, dtype=torch.bool).tril()  # a text, and of it what came before
        return self.head(self.layers(hidden, mask=~allowed.repeat_interleave(4, dim=0)))  # one mask a head


def text_losses(output: torch.Tensor, packed: Packed, texts: int) -> torch.Tensor:
    """The mean loss of each text's bytes."""
    losses = F.cross_entropy(output.transpose(1, 2), packed.targets, reduction="none")
    return orderdp.per_sample(losses, segments=packed.segments, count=texts)


def train(policy: orderdp.Policy, epochs: int, seed: int, learning_rate: float = 5e-3) -> Result:
    torch.manual_seed(seed)
    texts, model = load(train=True), LanguageModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
    pruner = orderdp.Pruner(policy, texts, seed=seed, epochs=epochs)
    loader = pruner.loader(texts, batch_size=BATCH_SIZE, collate_fn=pack)  # index comes in the order of the texts
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, pruner.steps(epochs, BATCH_SIZE))

    start = time.process_time()
    for _ in range(epochs):
        for index, packed in loader:
            loss = pruner.update(index, text_losses(model(packed), packed, len(index)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    seconds = time.process_time() - start
    return Result(bits_a_byte(model), pruner.report()["kept"], seconds, pruner, model)


@torch.no_grad()
def bits_a_byte(model: nn.Module) -> float:
    """How many bits the model needs for a byte of the test texts. Smaller is better; 8 is knowing nothing."""
    packed = pack(load(train=False))
    losses = F.cross_entropy(model(packed).transpose(1, 2), packed.targets, reduction="none")
    return losses[packed.segments >= 0].mean().item() / math.log(2)


def bytes_used(result: Result) -> int:
    """How many bytes were trained on."""
    return int(result.pruner.usage @ torch.tensor([len(text) for text in load(train=True)]))


def main(arguments: list[str] | None = None) -> dict[str, list[Result]]:
    options = read_options(__doc__, epochs=10, seeds="0", arguments=arguments)
    results = compare(train, options, "bits a byte", unit="bits (smaller is better)")
    used = {name: sum(map(bytes_used, runs)) / len(runs) for name, runs in results.items()}
    print("Bytes trained on:", ", ".join(f"{name} {count:,.0f}" for name, count in used.items()))
    return results


if __name__ == "__main__":
    main()
