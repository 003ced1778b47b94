"""The examples of other tasks: they learn, they save what they say, and the score is what they say it is.

To see scores and weights of one moment together, models are trained for an epoch with a learning rate of zero: then the
scores of the samples seen can be worked out again, one sample at a time, with the model as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import hydra
import numpy as np
import pytest
import torch
from examples import (
    comparing,
    detection,
    device_resident,
    digit_scenes,
    docstrings,
    graph,
    masked_autoencoder,
    packed_language_model,
    prompt_rewards,
    proxy_plan,
    segmentation,
    tabular,
    two_modalities,
    with_hydra,
)
from examples.digits import load as load_digits
from omegaconf import OmegaConf

import orderdp
from orderdp.policies import Balanced, FullData
from tests.support import as_written

PRUNED = orderdp.OrderDP(prune_ratio=0.4)


@cache
def without_learning(train: Callable[..., comparing.Result]) -> comparing.Result:
    """An epoch that scores and changes nothing else."""
    return train(PRUNED, 1, 0, learning_rate=0.0)


def scored_without_learning(train: Callable[..., comparing.Result]) -> tuple[comparing.Result, list[int]]:
    """The same, and some of the samples it has seen."""
    result = without_learning(train)
    return result, result.pruner.usage.nonzero().flatten()[:40].tolist()


def check_scores(result: comparing.Result, seen: list[int], score: Callable[[int], float]) -> None:
    """The scores remembered are those worked out one by one; the unseen have none."""
    assert len(seen) == 40
    with torch.no_grad():
        again = torch.tensor([score(i) for i in seen])
    torch.testing.assert_close(result.pruner.scores[seen], again, rtol=1e-4, atol=1e-5)
    assert again.std() > 0
    assert result.pruner.scores[result.pruner.usage == 0].isposinf().all()


def negative_log_likelihood(logits: torch.Tensor, target: int) -> float:
    return math.log(sum(math.exp(x) for x in logits.double().tolist())) - float(logits[target])


# -- detection ---------------------------------------------------------------------------------------------------


def test_the_score_of_a_picture_is_objectness_over_cells_plus_class_and_box_over_its_digits() -> None:
    result, seen = scored_without_learning(detection.train)

    def score(i: int) -> float:
        image, boxes, classes, present = (tensor[i] for tensor in detection.load(train=True).tensors)
        output = result.model(image.unsqueeze(0))[0]
        full_cells, digits = set(), []
        for (left, top, right, bottom), name, there in zip(boxes.tolist(), classes.tolist(), present, strict=True):
            if not there:
                continue
            column, row = int((left + right) / 2 // 4), int((top + bottom) / 2 // 4)
            cell = row * 6 + column
            full_cells.add(cell)
            x, y = column * 4 + 2, row * 4 + 2
            wanted = [(left - x) / 8, (top - y) / 8, (right - x) / 8, (bottom - y) / 8]
            off = sum(abs(said - true) for said, true in zip(output[cell, :4].tolist(), wanted, strict=True))
            digits.append(off + negative_log_likelihood(output[cell, 5:], name))
        cells = [math.log1p(math.exp(-x if n in full_cells else x)) for n, x in enumerate(output[:, 4].tolist())]
        assert len(digits) == len(full_cells) == int(present.sum())
        return 10 * sum(cells) / 36 + sum(digits) / len(digits)

    check_scores(result, seen, score)


def test_a_perfect_detector_finds_everything_and_a_blind_one_nothing() -> None:
    images, boxes, classes, present = detection.load(train=False).tensors
    cells = detection.cell_of(boxes)
    said = torch.full((len(images), 36, 10), -5.0)
    for i, quarter in present.nonzero().tolist():
        cell = cells[i, quarter]
        said[i, cell, :4] = detection.sides_of(boxes, cells)[i, quarter]
        said[i, cell, 4] = 5.0
        said[i, cell, 5 + classes[i, quarter]] = 5.0
    assert detection.found_share(lambda _: said) == pytest.approx(100)
    assert detection.found_share(lambda _: -said.abs()) == 0


# -- segmentation ------------------------------------------------------------------------------------------------


def test_the_score_of_a_picture_is_the_mean_over_its_labeled_pixels() -> None:
    result, seen = scored_without_learning(segmentation.train)

    def score(i: int) -> float:
        image, pixels = (tensor[i] for tensor in segmentation.load(train=True).tensors)
        logits = result.model(image.unsqueeze(0))[0].flatten(1).T
        labeled = [(row, int(kind)) for row, kind in zip(logits, pixels.flatten(), strict=True) if kind >= 0]
        assert len(labeled) < 24 * 24  # some pixels have no label
        return sum(negative_log_likelihood(row, kind) for row, kind in labeled) / len(labeled)

    check_scores(result, seen[:40], score)


def test_what_the_model_says_about_unlabeled_pixels_changes_no_score() -> None:
    _, pixels = (tensor[:8] for tensor in segmentation.load(train=True).tensors)
    output = torch.randn(8, 6, 24, 24, generator=torch.Generator().manual_seed(0))
    before = segmentation.image_losses(output, pixels)
    unlabeled = (pixels == digit_scenes.UNLABELED).unsqueeze(1).expand_as(output)
    after = segmentation.image_losses(torch.where(unlabeled, output + 100 * output.sign(), output), pixels)
    assert unlabeled.any()
    torch.testing.assert_close(before, after, rtol=0, atol=0)


def test_boxes_and_masks_of_the_images_are_exact() -> None:
    made = digit_scenes.scenes(50, train=True)
    for i in range(50):
        inside = torch.zeros(24, 24, dtype=torch.bool)
        for (left, top, right, bottom), name, there in zip(
            made.boxes[i].int().tolist(), made.classes[i], made.present[i], strict=True
        ):
            if there:
                window = made.pixels[i, top:bottom, left:right]
                assert set(window.unique().tolist()) <= {-1, 0, int(name) + 1}
                assert (window == name + 1).sum() >= 5
                inside[top:bottom, left:right] = True
        assert (made.pixels[i][~inside] == 0).all()
        assert made.images[i, 0][~inside].abs().max() < 0.3  # noise only


# -- graph and table ---------------------------------------------------------------------------------------------


def test_the_score_of_a_node_is_its_cross_entropy_with_all_its_neighbors_there() -> None:
    result, seen = scored_without_learning(graph.train)
    nodes, model = graph.load(), result.model

    def embed(node: int) -> torch.Tensor:
        around = sum(nodes.features[other] for other in nodes.neighbors[node].tolist()) / 10
        return model.first(torch.cat((nodes.features[node], around))).relu()

    def score(i: int) -> float:
        node = int(nodes.train_nodes[i])
        around = sum(embed(other) for other in nodes.neighbors[node].tolist()) / 10
        logits = model.second(torch.cat((embed(node), around)))
        return negative_log_likelihood(logits, int(nodes.labels[node]))

    check_scores(result, seen, score)
    drawn = set(nodes.train_nodes[result.pruner.usage > 0].tolist())
    assert not set(nodes.neighbors[nodes.train_nodes[seen]].flatten().tolist()) <= drawn


def test_the_score_of_a_row_is_its_loss_without_the_class_weight() -> None:
    result, seen = scored_without_learning(tabular.train)
    rows, malignant = tabular.load(seed=0)[0].tensors
    check_scores(result, seen, lambda i: negative_log_likelihood(result.model(rows[i]), int(malignant[i])))


# -- texts and modalities ----------------------------------------------------------------------------------------


def test_the_score_of_a_text_is_the_mean_over_its_bytes_whatever_it_is_packed_with() -> None:
    result, seen = scored_without_learning(packed_language_model.train)
    texts = packed_language_model.load(train=True)

    def score(i: int) -> float:
        alone = packed_language_model.pack([texts[i]])
        logits = result.model(alone)[0, : len(texts[i])]
        return sum(negative_log_likelihood(row, byte) for row, byte in zip(logits, texts[i], strict=True)) / len(
            texts[i]
        )

    check_scores(result, seen, score)


def test_packing_keeps_every_byte_of_every_text_in_order_and_fills_rows() -> None:
    texts = packed_language_model.load(train=True)[:50]
    packed = packed_language_model.pack(texts)
    for number, text in enumerate(texts):
        places = packed.segments == number
        assert bytes(packed.targets[places].tolist()) == text
        assert bytes(packed.inputs[places].tolist()) == b"\0" + text[:-1]
        assert packed.positions[places].tolist() == list(range(len(text)))
        assert places.any(1).sum() == 1  # no text goes over the end of a row
    assert (packed.segments >= 0).sum() == sum(map(len, texts))
    assert (packed.segments >= 0).float().mean() > 0.8


def test_docstrings_are_real_and_each_is_there_once() -> None:
    texts = docstrings.docstrings("json")
    assert len(set(texts)) == len(texts) >= 10
    assert any("JSON" in text for text in texts)


def test_the_score_of_an_image_or_a_text_is_its_own_cross_entropy() -> None:
    result, seen = scored_without_learning(two_modalities.train)
    samples, model = two_modalities.load(train=True), result.model
    seen = seen[:20] + result.pruner.usage.nonzero().flatten()[-20:].tolist()
    assert {samples[i][0] for i in seen} == {two_modalities.IMAGE, two_modalities.TEXT}

    def score(i: int) -> float:
        modality, content, kind = samples[i]
        entered = model.see(content) if modality == two_modalities.IMAGE else model.read.weight[content].mean(0)
        return negative_log_likelihood(model.heads[modality](model.body(entered)), kind)

    check_scores(result, seen, score)


def test_balanced_keeps_each_modality_its_share_where_plain_ranking_turns_to_texts() -> None:
    balanced = two_modalities.train(Balanced(PRUNED), 4, 0)
    plain = two_modalities.train(PRUNED, 4, 0)
    images = sum(sample[0] == two_modalities.IMAGE for sample in two_modalities.load(train=True))
    share = images / len(two_modalities.load(train=True))
    assert two_modalities.image_share(balanced.pruner) == pytest.approx(share, abs=1e-3)
    assert two_modalities.image_share(plain.pruner) < share - 0.1


# -- masked autoencoder ------------------------------------------------------------------------------------------


def test_the_score_of_an_image_is_its_error_on_hidden_patches() -> None:
    result, seen = scored_without_learning(masked_autoencoder.pretrain)
    images, _ = masked_autoencoder.load(train=True).tensors
    noise = masked_autoencoder.mask_noise(len(images), seed=0, epoch=0)

    def score(i: int) -> float:
        painted = result.model(images[i : i + 1], noise=noise[i : i + 1]).logits[0]
        hidden = noise[i].argsort()[8:].tolist()  # half of the sixteen
        errors = []
        for patch in hidden:
            row, column = 2 * (patch // 4), 2 * (patch % 4)
            errors.append((images[i, 0, row : row + 2, column : column + 2].flatten() - painted[patch]).square().mean())
        return float(sum(errors) / len(errors))

    check_scores(result, seen, score)
    assert result.pruner.scores[seen].mean() == pytest.approx(
        result.model(images[seen], noise=noise[seen]).loss.item(), rel=1e-4
    )  # their mean is the model's own loss


def test_pretraining_learns_to_paint_and_the_encoder_goes_over_to_the_classifier() -> None:
    few = masked_autoencoder.pretrain(PRUNED, 5, 0)
    images, _ = masked_autoencoder.load(train=True).tensors
    guess = (images - images.mean()).square().mean().item()  # the same grey everywhere
    assert few.metric < 0.6 * guess
    classifier = masked_autoencoder.Classifier(few.model)
    for name, weights in few.model.vit.state_dict().items():
        assert torch.equal(classifier.encoder.state_dict()[name], weights)
    assert masked_autoencoder.fine_tune(few.model, seed=0) > 30  # ten digits: 10 is guessing


# -- data on the device --------------------------------------------------------------------------------------------


def test_the_loop_over_data_on_the_device_visits_what_a_loader_would() -> None:
    result = without_learning(device_resident.train)
    pruner = orderdp.Pruner(PRUNED, result.pruner.n, seed=0)
    visited = [index for batch in pruner.batch_sampler(device_resident.BATCH_SIZE) for index in batch]
    assert result.pruner.usage.nonzero().flatten().tolist() == sorted(visited)
    assert result.pruner.epoch == 1


def test_images_are_shifted_and_mirrored_one_by_one() -> None:
    torch.manual_seed(0)
    images = torch.rand(50, 2, 5, 4)
    padded = torch.nn.functional.pad(images, [1] * 4)
    found = set()
    for image, result in zip(padded, device_resident.augmented(images, mirror=True), strict=True):
        views = {
            (down, right, flip): (
                image[:, down : down + 5, right : right + 4].flip(-1)
                if flip
                else image[:, down : down + 5, right : right + 4]
            )
            for down in range(3)
            for right in range(3)
            for flip in (False, True)
        }
        found |= {name for name, view in views.items() if torch.equal(view, result)}
    assert len(found) > 12  # of the 18 ways


def test_own_images_come_from_a_file(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    arrays = {"x_train": (30, 8, 8, 3), "x_test": (10, 8, 8, 3)}
    pixels = {name: rng.integers(0, 256, shape, dtype=np.uint8) for name, shape in arrays.items()}
    np.savez(tmp_path / "own.npz", **pixels, y_train=np.arange(30) % 3, y_test=np.arange(10) % 3)
    train_images, test_images, mirror = device_resident.load(str(tmp_path / "own.npz"))
    assert mirror
    assert (train_images.pixels.shape, test_images.pixels.shape) == ((30, 3, 8, 8), (10, 3, 8, 8))
    assert torch.equal(train_images.pixels[4, 1].cpu(), torch.from_numpy(pixels["x_train"][4, :, :, 1]))


# -- rewards -----------------------------------------------------------------------------------------------------


def test_a_prompt_whose_answers_are_all_right_or_all_wrong_teaches_nothing() -> None:
    torch.manual_seed(0)
    images, digits = (tensor[:40] for tensor in load_digits()[0].tensors)
    sure = 50.0 * torch.nn.functional.one_hot(digits, 10)
    doubtful = torch.arange(40) % 4 == 1
    logits = torch.where(doubtful.unsqueeze(1), torch.zeros(40, 10), sure).requires_grad_()
    losses, variances = prompt_rewards.group_losses(lambda _: logits, images, digits, torch.arange(40))
    losses.sum().backward()
    broken = torch.arange(40) % prompt_rewards.BROKEN == 0
    assert (variances[broken | ~doubtful] == 0).all()
    assert torch.equal(logits.grad.abs().sum(1) > 0, variances > 0)
    assert (variances > 0).sum() >= 3
    right = torch.tensor([[3, 3, 5, 3]])
    assert prompt_rewards.rewards_of(right, torch.tensor([3]), torch.tensor([1])).tolist() == [[1, 1, 0, 1]]
    assert prompt_rewards.rewards_of(right, torch.tensor([3]), torch.tensor([7])).tolist() == [[0, 0, 0, 0]]


def test_the_score_of_a_prompt_is_the_variance_of_its_last_group_trained_on_or_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    last: dict[int, float] = {}
    trained, answered = 0, 0
    losses_of = prompt_rewards.group_losses

    def noted(model: Any, images: Any, digits: Any, prompts: torch.Tensor) -> Any:
        nonlocal trained, answered
        losses, variances = losses_of(model, images, digits, prompts)
        last.update(zip(prompts.tolist(), variances.tolist(), strict=True))
        trained, answered = trained + torch.is_grad_enabled() * len(prompts), answered + len(prompts)
        return losses, variances

    monkeypatch.setattr(prompt_rewards, "group_losses", noted)
    result = prompt_rewards.train(PRUNED, 3, 0)
    assert result.samples == trained == 3 * round(0.6 * result.pruner.n)
    assert answered - trained == 2 * round(0.1 * result.pruner.n)
    seen = result.pruner.scores.isfinite()
    assert seen.sum() == len(last)
    assert result.pruner.scores[sorted(last)].tolist() == pytest.approx([last[prompt] for prompt in sorted(last)])


# -- all ---------------------------------------------------------------------------------------------------------

# Better than what can be had without learning: everything background, one class for all, one byte as likely as another.
LEARNED = [
    (detection, 6, lambda f1: f1 > 15),
    (segmentation, 5, lambda overlap: overlap > 100 / 6 + 5),
    (graph, 8, lambda accuracy: accuracy > 80),
    (tabular, 8, lambda accuracy: accuracy > 90),
    (device_resident, 4, lambda accuracy: accuracy > 85),
    (packed_language_model, 2, lambda bits: bits < 5),
    (two_modalities, 4, lambda accuracy: accuracy > 50),
    (prompt_rewards, 6, lambda accuracy: accuracy > 30),
]


@pytest.mark.parametrize(("example", "epochs", "learned"), LEARNED, ids=[row[0].__name__ for row in LEARNED])
def test_an_example_learns_from_exactly_the_share_it_keeps(
    example: object, epochs: int, learned: Callable[[float], bool]
) -> None:
    result = example.train(PRUNED, epochs, 0)
    assert learned(result.metric), result.metric
    assert result.samples == epochs * round(0.6 * result.pruner.n)
    assert result.pruner.report()["saved"] == pytest.approx(0.4, abs=0.5 / result.pruner.n)


def test_the_table_has_full_data_its_control_and_the_pruned_run(capsys: pytest.CaptureFixture[str]) -> None:
    results = tabular.main(["--epochs", "5", "--seeds", "0,1", "--prune-ratio", "0.4"])
    samples = [comparing.mean_of(runs, "samples") for runs in results.values()]
    assert samples == [5 * 285, 3 * 285, 5 * 171]
    assert [type(runs[0].pruner.policy) for runs in results.values()] == [FullData, FullData, orderdp.OrderDP]
    printed = capsys.readouterr().out
    assert "OrderDP used 40.0% fewer samples" in printed
    assert all(name in printed for name in results)


WITH_COMMANDS = ["detection", "segmentation", "graph", "packed_language_model", "two_modalities", "device_resident"]
WITH_COMMANDS += ["prompt_rewards"]


@pytest.mark.parametrize("name", WITH_COMMANDS)
def test_every_example_has_a_command_line(
    name: str, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    example = globals()[name]
    result = without_learning(example.train)
    monkeypatch.setattr(example, "train", lambda policy, epochs, seed: result)
    assert list(example.main(["--epochs", "10", "--seeds", "3"]))[:2] == ["all data", "all data, 6 epochs"]
    assert "10 epochs, seeds [3]" in capsys.readouterr().out


def test_the_masked_autoencoder_is_compared_after_fine_tuning(
    capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = without_learning(masked_autoencoder.pretrain)
    monkeypatch.setattr(masked_autoencoder, "pretrain", lambda policy, epochs, seed: result)
    monkeypatch.setattr(masked_autoencoder, "fine_tune", lambda model, seed: 77.0 if model is result.model else 33.0)
    results = masked_autoencoder.main(["--epochs", "10", "--seeds", "3"])
    assert [runs[0].metric for runs in results.values()] == [77.0] * 3
    assert "Without pretraining: 33.00 %" in capsys.readouterr().out


def test_a_ratio_that_cannot_be_is_refused_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        graph.main(["--prune-ratio", "40"])
    assert "prune_ratio must be in [0, 1)" in capsys.readouterr().err


# -- a policy in a config ----------------------------------------------------------------------------------------


def test_the_words_of_a_policy_in_the_yaml_of_hydra(tmp_path: Path) -> None:
    run = as_written(with_hydra, tmp_path)
    assert run.returncode == 0, run.stderr
    assert "with OrderDP(prune_ratio=0.3): 30.0% fewer samples" in run.stdout


@pytest.mark.parametrize(
    "words",
    [
        {"name": "orderdp", "prune_ratio": 0.4, "balanced": True, "schedule": {"name": "tail", "prune_ratio": 0.5}},
        {"name": "kakurenbo", "fraction": 0.3, "drops": [2, 5], "factors": [0.5, 0.2]},
        {"name": "skip-learned", "learned": {"name": "relative-loss", "share": 0.1}},
    ],
)
def test_wrappers_lists_and_thresholds_stand_in_a_hydra_config(words: dict[str, Any]) -> None:
    built = hydra.utils.instantiate(OmegaConf.create({"_target_": "orderdp.build", **words}))
    assert built == orderdp.build(**words)
    assert orderdp.build(**orderdp.policies.config_of(built)) == built


# -- a plan ------------------------------------------------------------------------------------------------------


def test_the_wide_network_trains_on_what_the_proxy_marked(tmp_path: Path) -> None:
    result, plan = proxy_plan.by_plan(30, 0, 2, tmp_path)
    marked = [plan.selection(epoch).indices.reshape(-1, plan.kept).tolist() for epoch in range(30)]
    assert result.batches == [batch for epoch in marked for batch in epoch]
    assert plan.cost.forwarded == 30 * 21 * 64
    assert plan.cost.backpropagated == 15 * 21 * 64
    again = proxy_plan.record(30, 0, 2)
    assert again.fingerprint == plan.fingerprint
    assert result.samples == 30 * 21 * 32
    assert result.accuracy > 0.9


def test_a_shift_is_a_function_of_seed_epoch_and_index() -> None:
    images = torch.rand(20, 64)
    whole = proxy_plan.shifted(images, torch.arange(20), 3, 1, 20)
    for part in torch.randperm(20).split(6):
        assert torch.equal(proxy_plan.shifted(images[part], part, 3, 1, 20), whole[part])
    for before, after in zip(images.view(-1, 8, 8), whole.view(-1, 8, 8), strict=True):
        padded = torch.zeros(10, 10)
        padded[1:9, 1:9] = before
        crops = [padded[i : i + 8, j : j + 8] for i in range(3) for j in range(3)]
        assert any(torch.equal(crop, after) for crop in crops)


def test_the_plan_is_compared_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    proxy_plan.main(["--epochs", "1", "--seeds", "0"])
    said = capsys.readouterr().out
    assert "a proxy's plan" in said
    assert "The proxy saw 1,344 samples and went backward on 1,344" in said
