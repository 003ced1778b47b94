"""With timm and torchvision: models by name, blended batches, folders of images."""

from __future__ import annotations

from pathlib import Path

import pytest
import timm
import torch
from examples import timm_recipe
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from torch.nn import functional as F

import orderdp
from orderdp.cli import main
from orderdp.datasets.images import read_image_folder
from orderdp.errors import ConfigError, FeedbackError
from orderdp.experiments.models import build_model
from orderdp.experiments.records import read_runs
from orderdp.integrations.timm import blended_losses


@pytest.mark.parametrize("mode", ["batch", "pair", "elem"])
def test_the_mean_of_the_losses_is_timms_and_the_score_is_the_samples_own(mode: str) -> None:
    generator = torch.Generator().manual_seed(0)
    images, logits = torch.rand(8, 3, 16, 16, generator=generator), torch.randn(8, 5, generator=generator)
    labels = torch.arange(8) % 5
    blend = Mixup(mixup_alpha=0.8, cutmix_alpha=1.0, mode=mode, label_smoothing=0.1, num_classes=5)
    _, targets = blend(images.clone(), labels)
    losses, scores = blended_losses(logits, targets, labels)
    assert losses.mean().item() == pytest.approx(SoftTargetCrossEntropy()(logits, targets).item(), rel=1e-5)
    assert torch.allclose(scores, F.cross_entropy(logits, labels, reduction="none"))
    plain, same = blended_losses(logits, labels, labels)
    assert torch.allclose(plain, same)
    with pytest.raises(FeedbackError, match="before it was blended"):
        blended_losses(logits, targets, targets)


@pytest.mark.parametrize("name", ["swin_tiny_patch4_window7_224", "vit_tiny_patch16_224", "resnet18"])
def test_models_by_name_train_a_few_steps_and_resume(name: str, folder: Path, tmp_path: Path) -> None:
    arguments = [str(folder), "--model", name, "--epochs", "2", "--batch-size", "4", "--workers", "0"]
    arguments += ["--prune-ratio", "0.5", "--checkpoint", str(tmp_path / "checkpoint.pt")]
    arguments += ["--image-size", "64"]
    options = timm_recipe.read_options(arguments)
    first = timm_recipe.train(folder, options, steps=3)
    assert (first["steps"], first["kept"]) == (3, 12)
    second = timm_recipe.train(folder, options)
    # 18 of 36 kept: four whole batches of 4 an epoch. One is left of the first, four of the second.
    assert second["steps"] == 5
    assert second["epoch"] == 2
    assert torch.isfinite(torch.tensor(second["loss"]))


def test_a_resumed_recipe_visits_the_samples_the_straight_one_would(folder: Path, tmp_path: Path) -> None:
    visited: dict[str, list[list[int]]] = {"straight": [], "resumed": []}
    original = orderdp.Pruner.update

    def spy(name: str):
        def update(self, index, *rest, **more):
            visited[name].append(index.tolist())
            # Augmentation draws from global generators; scores that depend on the sample alone make runs comparable.
            return original(self, index, rest[0], index.float() * 0.37 % 1, **more)

        return update

    def options(name: str):
        base = [
            str(folder),
            "--model",
            "resnet10t",
            "--image-size",
            "32",
            "--epochs",
            "3",
            "--batch-size",
            "4",
            "--workers",
            "0",
        ]
        return timm_recipe.read_options([*base, "--prune-ratio", "0.5", "--checkpoint", str(tmp_path / f"{name}.pt")])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(orderdp.Pruner, "update", spy("straight"))
        timm_recipe.train(folder, options("straight"))
        patch.setattr(orderdp.Pruner, "update", spy("resumed"))
        timm_recipe.train(folder, options("resumed"), steps=6)
        timm_recipe.train(folder, options("resumed"))
    assert visited["resumed"] == visited["straight"]


def test_a_folder_of_images_is_trained_by_a_run(folder: Path, tmp_path: Path) -> None:
    options = [
        "--data",
        str(folder),
        "--model",
        "timm:resnet10t",
        "--epochs",
        "1",
        "--batch-size",
        "8",
        "--threads",
        "1",
        "--keep-last",
    ]
    assert main(["train", *options, "--prune-ratio", "0.5", "--quiet", "--out", str(tmp_path)]) == 0
    (run,) = read_runs(tmp_path)
    assert run.summary["samples"] == 18


def test_images_of_a_folder_are_augmented_or_not(folder: Path) -> None:
    data = read_image_folder(folder, size=32)
    assert all(torch.equal(data.plain[i][0], data.plain[i][0]) for i in range(5))
    assert any(not torch.equal(data.train[i][0], data.train[i][0]) for i in range(5))
    assert [data.plain[i][1] for i in range(len(data.plain))] == [data.train[i][1] for i in range(len(data.train))]


def test_timm_models_by_name_in_a_run() -> None:
    model = build_model("timm:vit_tiny_patch16_224", shape=(3, 224, 224), classes=4, seed=0)
    again = build_model("timm:vit_tiny_patch16_224", shape=(3, 224, 224), classes=4, seed=0)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    assert timm.is_model("resnet10t")
    with pytest.raises(ConfigError, match="Did you mean 'resnet50'"):
        build_model("timm:resnet_50", shape=(3, 32, 32), classes=4, seed=0)
