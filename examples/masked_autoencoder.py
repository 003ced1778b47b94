"""Self-supervised reconstruction: a masked autoencoder is pretrained with pruning, then fine-tuned with few labels.

In small what the paper does with ViT-B: ViT-MAE from `transformers`, tiny and with random weights, on handwritten
digits. Half of an image's patches are hidden and have to be painted; no labels are used. Then the encoder, with a new
head, learns from 40 labeled images.

The score of an image is its mean squared error on the patches that were hidden; those it was shown do not count. Which
patches are hidden is drawn anew each epoch, so the score is noisy: the same image is easier or harder with other ones.

Pruned is the pretraining, where the cost is; "samples used" are those of pretraining. Fine-tuning is the same for all.
How much pretraining helps depends on labels and fine-tuning: by some three points with 40 labels here, and not at all
with 100 where fine-tuning was as long.

    python -m examples.masked_autoencoder [--epochs 20] [--seeds 0] [--prune-ratio 0.4]
"""

from __future__ import annotations

import statistics
import time
from functools import cache

import torch
from examples.comparing import Result, compare, read_options
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset
from transformers import ViTMAEConfig, ViTMAEForPreTraining, ViTMAEModel

import orderdp

BATCH_SIZE = 32
PATCHES, WIDTH, LABELED = 16, 48, 40  # patches have 2 x 2 pixels


def settings(mask_ratio: float) -> ViTMAEConfig:
    return ViTMAEConfig(
        image_size=8, patch_size=2, num_channels=1, mask_ratio=mask_ratio, initializer_range=0.1, hidden_size=WIDTH,
        num_hidden_layers=2, num_attention_heads=4, intermediate_size=96, decoder_hidden_size=32,
        decoder_num_hidden_layers=1, decoder_num_attention_heads=4, decoder_intermediate_size=64,
    )  # fmt: skip


def build_model() -> ViTMAEForPreTraining:
    model = ViTMAEForPreTraining(settings(mask_ratio=0.5))
    for positions in (model.vit.embeddings.position_embeddings, model.decoder.decoder_pos_embed):
        # Learned, because some versions of transformers leave them all zero, and fixed, without pretrained weights.
        nn.init.normal_(positions.requires_grad_(), std=0.2)
    return model


@cache
def load(train: bool) -> TensorDataset:
    pixels, digits = load_digits(return_X_y=True)
    images = torch.tensor(pixels / 8 - 1, dtype=torch.float32).view(-1, 1, 8, 8)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    own = order[:1300] if train else order[1300:]
    return TensorDataset(images[own], torch.tensor(digits)[own])


def mask_noise(n: int, seed: int, epoch: int) -> torch.Tensor:
    """Which patches are hidden, those with the largest numbers: a function of seed, epoch and sample."""
    luck = torch.Generator().manual_seed(1_000_003 * seed + epoch)
    return torch.rand(n, PATCHES, generator=luck)


def image_losses(model: ViTMAEForPreTraining, images: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """The squared error of each image's hidden patches. The model's own loss is one number for the batch."""
    output = model(images, noise=noise)
    errors = (output.logits - model.patchify(images)).square()
    return orderdp.per_sample(errors, mask=output.mask.unsqueeze(-1))


def pretrain(policy: orderdp.Policy, epochs: int, seed: int, learning_rate: float = 3e-3) -> Result:
    """The metric is the error on hidden patches of test images."""
    torch.manual_seed(seed)
    train_set, model = load(train=True), build_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
    pruner = orderdp.Pruner(policy, train_set, seed=seed, epochs=epochs)
    loader = pruner.loader(train_set, batch_size=BATCH_SIZE)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, pruner.steps(epochs, BATCH_SIZE))

    start = time.process_time()
    for epoch in range(epochs):
        noise = mask_noise(len(train_set), seed, epoch)
        for index, (images, _) in loader:
            loss = pruner.update(index, image_losses(model, images, noise[index]))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    seconds = time.process_time() - start
    return Result(reconstruction_error(model), pruner.report()["kept"], seconds, pruner, model)


@torch.no_grad()
def reconstruction_error(model: ViTMAEForPreTraining) -> float:
    images = load(train=False).tensors[0]
    return image_losses(model, images, mask_noise(len(images), seed=0, epoch=0)).mean().item()


class Classifier(nn.Module):
    """A pretrained encoder, shown everything, and a head."""

    def __init__(self, pretrained: ViTMAEForPreTraining) -> None:
        super().__init__()
        self.encoder, self.head = ViTMAEModel(settings(mask_ratio=0.0)), nn.Linear(WIDTH, 10)
        self.encoder.load_state_dict(pretrained.vit.state_dict())

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(images).last_hidden_state[:, 1:].mean(1))


def fine_tune(pretrained: nn.Module, seed: int, epochs: int = 30) -> float:
    """Learns from few labels; returns the accuracy in percent."""
    torch.manual_seed(seed)
    images, digits = (tensor[:LABELED] for tensor in load(train=True).tensors)
    model = Classifier(pretrained)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for _ in range(epochs):
        for part in torch.randperm(LABELED).split(20):
            optimizer.zero_grad()
            F.cross_entropy(model(images[part]), digits[part]).backward()
            optimizer.step()
    images, digits = load(train=False).tensors
    with torch.no_grad():
        return 100 * (model(images).argmax(1) == digits).float().mean().item()


def from_scratch(seed: int) -> float:
    torch.manual_seed(seed)
    return fine_tune(build_model(), seed)


def train(policy: orderdp.Policy, epochs: int, seed: int) -> Result:
    """Pretrains, fine-tunes and tests."""
    result = pretrain(policy, epochs, seed)
    return result._replace(metric=fine_tune(result.model, seed))


def main(arguments: list[str] | None = None) -> dict[str, list[Result]]:
    options = read_options(__doc__, epochs=20, seeds="0", arguments=arguments)
    results = compare(train, options, "accuracy %")
    print(f"Without pretraining: {statistics.mean(from_scratch(seed) for seed in options.seeds):.2f} %.")
    return results


if __name__ == "__main__":
    main()
