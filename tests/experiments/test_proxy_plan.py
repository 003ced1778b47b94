"""The policy "proxy-plan" of the workbench: recorded once, resumed exactly, its cost in the records."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from orderdp._training import TrainState
from orderdp.cli import main
from orderdp.datasets import load
from orderdp.errors import ConfigError, StateError
from orderdp.experiments import static
from orderdp.experiments.config import MethodSpec, RunOptions, Settings, grid, parse_method
from orderdp.experiments.records import read_run, read_runs
from orderdp.experiments.runner import Runner, check, check_runs
from orderdp.experiments.static import ProxyOptions, recorded_batch
from orderdp.experiments.tasks import FolderTask, ImageTask
from orderdp.plans import Plan
from orderdp.policies.registry import NAMES, card
from orderdp.testing import global_generators_untouched

BASE = Settings(
    data="digits", model="mlp", width=16, policy="proxy-plan", prune_ratio=0.4, epochs=3, batch_size=64, lr=0.05
)
DATA = load("digits")
CPU = torch.device("cpu")


class Noted(ImageTask):
    """Notes every batch that its model, or its proxy, is shown."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(DATA, settings, CPU)
        self.shown: list[tuple[int, torch.Tensor, torch.Tensor]] = []
        self.widths: list[int] = []

    def batches(self, pruner: Any, batch_size: int, seed: int, *, drop_last: bool = False) -> Any:
        for index, batch in super().batches(pruner, batch_size, seed, drop_last=drop_last):
            self.shown.append((pruner.epoch, index, batch[0]))
            yield index, batch

    def _built(self, seed: int, width: int | None) -> nn.Module:
        self.widths.append(width or 0)
        return super()._built(seed, width)


class Runs(Runner):
    """Runs one task, however often it is asked for."""

    def __init__(self, out: Path, task: Any) -> None:
        super().__init__(RunOptions(out, device="cpu"))
        self._own = task

    def task(self, settings: Settings) -> Any:
        return self._own


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return torch.load(folder / "model.pt", weights_only=True)["model"]


@pytest.mark.parametrize(
    ("steps", "recorded", "trained", "rate"), [("fewer", 107, 64, 1.0), ("same", 64, 38, 38 / 64)], ids=str
)
def test_a_run_trains_on_the_images_that_its_proxy_marked(
    tmp_path: Path, steps: str, recorded: int, trained: int, rate: float
) -> None:
    settings = replace(BASE, steps=steps)
    check(settings)
    task = Noted(settings)
    runner = Runs(tmp_path, task)
    with global_generators_untouched():
        summary = runner.run(settings)
    batches = 1347 // recorded
    marked, seen = task.shown[: 3 * batches], task.shown[3 * batches :]
    assert len(seen) == len(marked)  # as many steps as the proxy has batches
    plan = Plan.load(runner.options.folder(settings) / "plan.npz")
    assert (plan.batch_size, plan.kept, plan.seed, plan.epochs) == (recorded, trained, 0, 3)
    for (epoch, index, images), (own_epoch, own, own_images) in zip(marked, seen, strict=True):
        assert epoch == own_epoch
        assert (len(index), len(own)) == (recorded, trained)
        places = [index.tolist().index(i) for i in own.tolist()]
        assert places == sorted(places)
        assert torch.equal(images[places], own_images)
    assert task.widths == [16, 4] or task.widths == [4, 16]
    assert summary["samples"] == 3 * batches * trained
    passed = 3 * batches * recorded
    assert summary["proxy_samples"] == {"forward": passed, "backward": -(-3 * batches // 4) * recorded}
    run = read_run(runner.options.folder(settings))
    assert run.seconds > summary["proxy_seconds"] > 0
    assert summary["node_hours"] * 3600 == pytest.approx(run.seconds)
    assert run.label == "proxy-plan 40%"
    assert max(epoch["lr"] for epoch in run.epochs) <= 0.05 * rate


def test_marks_are_the_largest_losses_of_a_proxy_that_does_not_learn(tmp_path: Path) -> None:
    settings = replace(BASE, lr=0.0, epochs=1)
    task = ImageTask(DATA, settings, CPU)
    static.plan_for(settings, task, tmp_path, CPU)
    chosen = Plan.load(tmp_path / "plan.npz")
    proxy = task.build_proxy(0, None).train()
    order = torch.from_numpy(static._recorder(settings, task)._epoch.order)
    expected = []
    for batch in order[: len(order) // 107 * 107].split(107):
        images = task._train.train_batch(batch, 0, 0)
        losses = nn.functional.cross_entropy(proxy(images), DATA.train.labels[batch], reduction="none")
        places = losses.detach().sort(descending=True, stable=True).indices[:64].sort().values
        expected += batch[places].tolist()
    assert chosen.selection(0).indices.tolist() == expected


def test_the_proxy_learns_from_every_so_manyth_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[float] = []

    real = TrainState.step

    def counted(state: TrainState, done: float, scale: float) -> None:
        steps.append(round(done, 6))
        real(state, done, scale)

    monkeypatch.setattr(TrainState, "step", counted)
    settings = replace(BASE, epochs=1, policy_parameters={"backward_every": 5, "proxy_width": 3})
    task = Noted(settings)
    static.plan_for(settings, task, tmp_path, CPU)
    assert steps == [round(step / 11, 6) for step in (0, 5, 10)]
    assert task.widths == [3]


class StopAfter:
    def __init__(self, steps: int) -> None:
        self.left = steps

    def __call__(self, done: float, epochs: int, metric: float | None) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


@pytest.mark.parametrize("stop", [20, 36 + 17], ids=["while it is recorded", "while it is replayed"])
def test_an_interrupted_run_ends_with_the_weights_of_an_undisturbed_one(tmp_path: Path, stop: int) -> None:
    straight = Runner(RunOptions(tmp_path / "straight", device="cpu"))
    first = straight.run(BASE)
    cut = Runner(RunOptions(tmp_path / "cut", device="cpu"))
    with pytest.raises(KeyboardInterrupt):
        cut.run(BASE, StopAfter(stop))
    assert (cut.options.folder(BASE) / "plan.npz").exists() == (stop > 36)
    second = cut.run(BASE)
    before, after = weights(straight.options.folder(BASE)), weights(cut.options.folder(BASE))
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert first["metric"] == second["metric"]
    assert first["proxy_samples"] == second["proxy_samples"]


def test_a_damaged_plan_is_named(tmp_path: Path) -> None:
    runner = Runner(RunOptions(tmp_path, device="cpu"))
    runner.options.folder(BASE).mkdir(parents=True)
    (runner.options.folder(BASE) / "plan.npz").write_bytes(b"PK\x03\x04 and no more")
    with pytest.raises(StateError, match=r"is not a readable plan .* Record it again. Remove the file to do so"):
        runner.run(BASE)


def test_a_proxy_that_diverges_fails_its_run_and_no_other(tmp_path: Path) -> None:
    summary = Runner(RunOptions(tmp_path, device="cpu")).run(replace(BASE, lr=1e30, schedule="constant"))
    assert summary["status"] == "failed"
    assert "the proxy has diverged" in summary["reason"]


class Own:
    """A task with a proxy of its own, and a loader."""

    train_set = torch.utils.data.TensorDataset(torch.randn(60, 4), torch.randint(0, 2, (60,)))
    test_set = train_set
    asked: list[int | None]

    def __init__(self) -> None:
        self.asked = []

    def build_model(self, seed: int) -> nn.Module:
        return nn.Linear(4, 2)

    def build_proxy(self, seed: int, width: int | None) -> nn.Module:
        self.asked.append(width)
        return nn.Linear(4, 2)

    def losses(self, model: nn.Module, batch: Any) -> torch.Tensor:
        return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")

    def metric(self, model: nn.Module, batch: Any) -> torch.Tensor:
        return (model(batch[0]).argmax(1) == batch[1]).float()


def test_a_task_of_ones_own_brings_its_proxy(tmp_path: Path) -> None:
    settings = replace(BASE, data="", task="own:make", batch_size=6)
    check(settings)
    task = Own()
    summary = Runs(tmp_path, task).run(settings)
    assert (summary["status"], summary["samples"], task.asked) == ("done", 3 * 6 * 6, [None])
    monstrous = type("WithoutProxy", (), {"train_set": Own.train_set})()
    with pytest.raises(ConfigError, match=r"needs a task with build_proxy\(seed, width\)"):
        Runs(tmp_path, monstrous).run(replace(settings, seed=1))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prune_ratio": None}, "needs a prune ratio"),
        ({"mixup": 0.2}, "would score images that are not trained on"),
        ({"cutmix": 0.2}, "would score images that are not trained on"),
        ({"flip": "alternate"}, "Use flip='random'"),
        ({"policy_parameters": {"proxy_widht": 4}}, "Did you mean 'proxy_width'"),
        ({"policy_parameters": {"proxy_width": 0}}, "proxy_width must be a whole number, at least 1, got 0"),
        ({"policy_parameters": {"backward_every": None}}, "backward_every must be a whole number"),
        ({"model": "timm:resnet18", "width": None}, "does not say which it has. Give --width"),
    ],
    ids=str,
)
def test_what_cannot_be_recorded_is_said_before_anything_is(changes: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check(replace(BASE, **changes))


def test_what_the_data_have_against_it_is_said_before_anything_is_trained(tmp_path: Path) -> None:
    check_runs([BASE], RunOptions(tmp_path, device="cpu"))
    with pytest.raises(ConfigError, match="1347 samples make none of 2500"):
        check_runs([replace(BASE, batch_size=1500)], RunOptions(tmp_path, device="cpu"))
    folder = FolderTask.__new__(FolderTask)
    with pytest.raises(ConfigError, match="with --no-augment there"):
        static.check_task(BASE, folder)


def test_the_batch_of_the_proxy_makes_the_batch_of_the_run() -> None:
    for batch_size in range(1, 200):
        for ratio in (0.0, 0.1, 0.3, 0.4, 0.5, 0.65, 0.7, 0.9):
            keep = round(1 - ratio, 12)
            settings = replace(BASE, batch_size=batch_size, prune_ratio=ratio)
            assert round(keep * recorded_batch(settings, keep)) == batch_size
            assert recorded_batch(replace(settings, steps="same"), keep) == batch_size


def test_it_has_a_name_a_card_and_a_place_in_the_grid(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    method = parse_method("proxy-plan:proxy-width=4:backward_every=2")
    assert method == MethodSpec("proxy-plan", {"proxy_width": 4, "backward_every": 2})
    runs = grid(replace(BASE, policy="full", prune_ratio=None), [method], [0.3, 0.5], [0, 1], controls=False)
    assert [(run.policy, run.prune_ratio, run.seed) for run in runs] == [
        ("proxy-plan", ratio, seed) for seed in (0, 1) for ratio in (0.3, 0.5)
    ]
    text = card("proxy-plan")
    for part in ("**Rule.**", "```python", "**Parameters.**", "**Cost.**", "**Limits.**", "**Tests.**"):
        assert part in text
    for name in ProxyOptions.__dataclass_fields__:
        assert f"`{name}`" in text
    assert "proxy-plan" not in NAMES
    assert main(["policies", "proxy-plan"]) == 0
    assert "backward_every" in capsys.readouterr().out
    monkeypatch.setattr("orderdp.policies.registry.NAMES", {"orderdp": NAMES["orderdp"]})
    assert main(["policies"]) == 0
    assert "proxy-plan" in capsys.readouterr().out


def test_compare_runs_it_beside_others_and_says_what_the_proxy_took(tmp_path: Path, capsys) -> None:
    options = ["--data", "digits", "--model", "mlp", "--width", "16", "--epochs", "2", "--batch-size", "64"]
    options += ["--policies", "proxy-plan", "--prune-ratios", "0.5", "--seeds", "0", "--out", str(tmp_path)]
    assert main(["compare", *options]) == 0
    said = capsys.readouterr().err
    assert "2,560 through a proxy, 640 of them back" in said
    runs = {run.config["policy"]: run for run in read_runs(tmp_path)}
    assert set(runs) == {"full", "reduced", "random", "proxy-plan"}
    assert runs["proxy-plan"].summary["samples"] == 2 * 10 * 64
    assert "proxy_samples" not in runs["random"].summary
