"""Models and optimizers of the workbench."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from orderdp._training import SCHEDULES, IterateAverage, build_optimizer, onecycle
from orderdp.errors import ConfigError
from orderdp.experiments.config import Settings
from orderdp.experiments.models import build_model, resnet18, resnet50
from orderdp.experiments.tasks import FolderTask, Losses, cutmix, mixed_losses, mixup
from orderdp.testing import global_generators_untouched


@pytest.mark.parametrize("name", ["mlp", "cnn", "vit", "resnet18"])
@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 32, 32)])
def test_a_model_maps_images_to_logits(name: str, shape: tuple[int, ...]) -> None:
    model = build_model(name, shape=shape, classes=7, seed=0, width=16)
    assert model(torch.randn(3, *shape, generator=torch.Generator().manual_seed(0))).shape == (3, 7)


def test_the_resnets_have_as_many_parameters_as_published_ones_with_this_stem() -> None:
    def size(model: torch.nn.Module) -> int:
        return sum(parameter.numel() for parameter in model.parameters())

    assert size(resnet18((3, 32, 32), 10)) == 11_173_962
    assert size(resnet50((3, 32, 32), 10)) == 23_520_842


def test_images_from_a_folder_are_blended_too_and_keep_a_score_of_their_own() -> None:
    generator = torch.Generator().manual_seed(0)
    samples = [(torch.randn(1, 8, 8, generator=generator), label % 3) for label in range(6)]
    data = SimpleNamespace(train=samples, test=samples, classes=3)
    batch = (torch.stack([image for image, _ in samples]), torch.tensor([label for _, label in samples]))

    def losses(**blending: float) -> Losses:
        task = FolderTask(data, Settings(model="mlp", width=8, **blending), torch.device("cpu"))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            return task.losses(task.build_model(0), batch)

    assert losses().scores is None
    blended = losses(mixup=1.0, cutmix=1.0)
    assert torch.equal(blended.losses, losses(mixup=1.0, cutmix=1.0).losses)  # the run's own generator decides
    assert not torch.allclose(blended.losses, losses().losses)
    assert blended.scores is not None
    assert not torch.allclose(blended.losses, blended.scores)
    assert blended.scores.requires_grad is False


def test_images_from_a_folder_are_stored_as_the_settings_say() -> None:
    samples = [(torch.randn(3, 8, 8, generator=torch.Generator().manual_seed(label)), label % 3) for label in range(6)]
    data = SimpleNamespace(train=samples, plain=samples, test=samples, classes=3)
    batch = (torch.stack([image for image, _ in samples]), torch.tensor([label for _, label in samples]))
    for last in (True, False):
        task = FolderTask(data, Settings(model="cnn", width=4, channels_last=last), torch.device("cpu"))
        model, shown = task.build_model(0), []
        model.register_forward_pre_hook(lambda module, images, shown=shown: shown.append(images[0]))
        filters = [each for each in model.parameters() if each.ndim == 4 and each.shape[1] > 1 < each.shape[2]]
        assert filters
        task.losses(model, batch)
        task.metric(model, batch)
        assert len(shown) == 2
        for each in (*filters, *shown):
            assert each.is_contiguous(memory_format=torch.channels_last) == last


def test_without_augmentation_the_images_of_a_folder_are_read_as_for_testing() -> None:
    changed, plain = [(torch.ones(1, 8, 8), 0)], [(torch.zeros(1, 8, 8), 0)]
    data = SimpleNamespace(train=changed, plain=plain, test=plain, classes=3)
    for augment, expected in ((True, changed), (False, plain)):
        assert FolderTask(data, Settings(model="mlp", augment=augment), torch.device("cpu")).train_set is expected


def test_a_transformer_needs_images_and_whole_heads() -> None:
    with pytest.raises(ConfigError, match=r"needs images .* got samples of shape \(5,\)"):
        build_model("vit", shape=(5,), classes=3, seed=0)
    with pytest.raises(ConfigError, match="multiple of 16, got 20"):
        build_model("vit", shape=(1, 8, 8), classes=3, seed=0, width=20)


def test_weights_depend_on_the_seed_alone() -> None:
    with global_generators_untouched():
        first, again, other = (build_model("cnn", shape=(1, 8, 8), classes=3, seed=seed) for seed in (1, 1, 2))
    pairs = list(zip(first.parameters(), again.parameters(), other.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b, _ in pairs)
    assert not all(torch.equal(a, c) for a, _, c in pairs)


def test_a_model_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "own_model_for_test.py").write_text(
        "import torch\n"
        "def make(shape, classes): return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.LazyLinear(classes))\n"
        "def wrong(shape, classes): return 3\n"
    )
    file = tmp_path / "own_model_for_test.py"
    assert build_model(f"{file}:make", shape=(1, 2, 2), classes=5, seed=0)(torch.ones(1, 1, 2, 2)).shape == (1, 5)
    with pytest.raises(ConfigError, match=r"must be a torch\.nn\.Module, got int"):
        build_model(f"{file}:wrong", shape=(1, 2, 2), classes=5, seed=0)
    with pytest.raises(ConfigError, match=r"has no function 'mak'\. Did you mean 'make'\?"):
        build_model(f"{file}:mak", shape=(1, 2, 2), classes=5, seed=0)
    with pytest.raises(ConfigError, match="of the model does not exist"):
        build_model(f"{tmp_path}/nowhere.py:make", shape=(1, 2, 2), classes=5, seed=0)
    with pytest.raises(ConfigError, match="cannot be imported"):
        build_model("no_such_module_here:make", shape=(1, 2, 2), classes=5, seed=0)


def test_what_cannot_be_made_is_said() -> None:
    with pytest.raises(ConfigError, match=r"there is no model 'resnet81'\. Did you mean 'resnet18'\?"):
        build_model("resnet81", shape=(3, 8, 8), classes=2, seed=0)
    with pytest.raises(ConfigError, match="needs images"):
        build_model("cnn", shape=(64,), classes=2, seed=0)
    with pytest.raises(ConfigError, match=r"pip install '\.\[vision\]'"):
        build_model("timm:resnet18", shape=(3, 8, 8), classes=2, seed=0)


@pytest.mark.parametrize(("name", "lr"), [("sgd", 0.005), ("adamw", 0.01), ("lars", 0.5), ("lamb", 0.01)])
def test_an_optimizer_makes_the_loss_smaller(name: str, lr: float) -> None:
    x = torch.randn(64, 5, generator=torch.Generator().manual_seed(0))
    y = x @ torch.arange(5.0)
    model = build_model("mlp", shape=(5,), classes=1, seed=0, width=16)
    optimizer = build_optimizer(name, model, lr=lr, weight_decay=1e-4)
    losses = []
    for _ in range(60):
        loss = (model(x).squeeze(1) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]


def test_optimizers_say_what_is_wrong() -> None:
    model = torch.nn.Linear(2, 2)
    with pytest.raises(ConfigError, match=r"Did you mean 'adamw'\?"):
        build_optimizer("adam", model, lr=0.1)
    with pytest.raises(ConfigError, match="nesterov is an option of sgd"):
        build_optimizer("lars", model, lr=0.1, nesterov=True)
    assert build_optimizer("sgd", model, lr=0.1, nesterov=True).param_groups[0]["nesterov"]


def test_onecycle_is_torchs_but_for_the_place_of_its_peak_within_a_step() -> None:
    total = 2000
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1.0, total_steps=total, cycle_momentum=False)
    for step in range(total - 1):
        assert onecycle(step / (total - 1)) == pytest.approx(optimizer.param_groups[0]["lr"], abs=3e-3)
        optimizer.step()
        schedule.step()
    assert onecycle(1.0) == pytest.approx(1 / 25 / 1e4)
    assert onecycle(0.0) == pytest.approx(1 / 25)


def test_the_other_schedules_by_hand() -> None:
    assert [SCHEDULES["cosine"](done) for done in (0, 0.5, 1)] == pytest.approx([1, 0.5, 0])
    assert [SCHEDULES["step"](done) for done in (0, 0.49, 0.5, 0.75, 1)] == pytest.approx([1, 1, 0.1, 0.01, 0.01])
    assert SCHEDULES["constant"](0.7) == 1


# -- MixUp and CutMix ---------------------------------------------------------------------------------------------


def numpy_rng(seed: int):
    import numpy as np

    return np.random.default_rng(seed)


@pytest.mark.parametrize("mix", [mixup, cutmix])
def test_the_score_of_a_mixed_sample_is_its_own(mix) -> None:
    generator = torch.Generator().manual_seed(0)
    images, logits = torch.rand(6, 1, 8, 8, generator=generator), torch.randn(6, 4, generator=generator)
    targets = torch.tensor([0, 1, 2, 3, 0, 1])
    mixture = mix(images, 1.0, numpy_rng(3))
    losses, scores = mixed_losses(logits, targets, mixture)
    # Other labels for all other samples change the loss of a blend, but not its score.
    for own in range(6):
        others = (targets + 1) % 4
        others[own] = targets[own]
        changed, scored = mixed_losses(logits, others, mixture)
        assert scored[own] == scores[own]
        if mixture.partner[own] != own:
            assert changed[own] != losses[own]
    plain = torch.nn.functional.cross_entropy(logits, targets, reduction="none")
    assert torch.equal(scores, plain)
    assert torch.allclose(
        losses,
        mixture.share * plain
        + (1 - mixture.share) * torch.nn.functional.cross_entropy(logits, targets[mixture.partner], reduction="none"),
    )


def test_the_larger_part_of_a_blend_is_the_sample_itself() -> None:
    images = torch.arange(4.0).reshape(4, 1, 1, 1).expand(4, 1, 8, 8)
    for seed in range(50):
        blend = mixup(images, 0.4, numpy_rng(seed))
        assert 0.5 <= blend.share <= 1
        wanted = blend.share * images + (1 - blend.share) * images[blend.partner]
        assert torch.allclose(blend.images, wanted)
        pasted = cutmix(images, 1.0, numpy_rng(seed))
        assert 0.5 <= pasted.share <= 1
        for own in range(4):
            if pasted.partner[own] != own:
                kept = (pasted.images[own] == own).float().mean().item()
                assert kept == pytest.approx(pasted.share)
    assert torch.equal(images, torch.arange(4.0).reshape(4, 1, 1, 1).expand(4, 1, 8, 8))


# -- the average of the iterates ------------------------------------------------------------------------------------


def test_the_average_is_that_of_the_theorem() -> None:
    model = torch.nn.Linear(2, 1)
    average = IterateAverage(model)
    iterates, rates = [], [0.1, 0.5, 0.3, 0.0]
    for step, lr in enumerate(rates):
        with torch.no_grad():
            model.weight.fill_(float(step + 1))
        iterates.append(float(step + 1))
        average.add(model, lr)
    wanted = math.fsum(lr * theta for lr, theta in zip(rates, iterates, strict=True)) / math.fsum(rates)
    assert average.model.module.weight[0, 0].item() == pytest.approx(wanted)
    again = IterateAverage(torch.nn.Linear(2, 1))
    again.load_state_dict(average.state_dict())
    again.add(model, 0.2)
    average.add(model, 0.2)
    assert torch.equal(again.model.module.weight, average.model.module.weight)
