"""The proxy: trains once, records what is asked, resumes, and knows its data. And the command on top of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import Dataset, TensorDataset

import orderdp.coresets.proxy as models_module
from orderdp import coresets
from orderdp.checkpoint import load_checkpoint, save_checkpoint
from orderdp.coresets import EL2N, Forgetting, GraNd, KCenter, MoSo, Proxy, StaticRandom, coreset_command
from orderdp.coresets.base import Gradients
from orderdp.coresets.proxy import Samples
from orderdp.errors import ConfigError, DatasetError, StateError
from orderdp.testing import global_generators_untouched

DIGITS = load_digits()
X = torch.tensor(DIGITS.data[:300] / 16, dtype=torch.float32)
Y = torch.tensor(DIGITS.target[:300])


def net() -> nn.Module:
    """With everything that makes training depend on chance and on the mode."""
    return nn.Sequential(
        nn.Linear(64, 24),
        nn.BatchNorm1d(24),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.Linear(24, 16),
        nn.ReLU(),
        nn.Linear(16, 10),
    )


def make(cache: Path | None = None, **options) -> Proxy:
    return Proxy(net, (X, Y), **{"cache": cache, "batch_size": 64, "lr": 0.05, "epochs": 3, **options})


@pytest.fixture
def epochs_trained(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one with every epoch that is trained."""
    trained, real = [], models_module.train_epoch

    def watched(*arguments):
        trained.append(1)
        return real(*arguments)

    monkeypatch.setattr(models_module, "train_epoch", watched)
    return trained


# -- what is recorded -----------------------------------------------------------------------------------------------


def test_features_are_what_goes_into_the_last_linear_layer() -> None:
    proxy = make()
    model = proxy.model()
    assert proxy.features().shape == (300, 16)
    with torch.no_grad():
        np.testing.assert_allclose(proxy.logits(), model(X).numpy(), atol=1e-5)
        np.testing.assert_allclose(model[-1](torch.from_numpy(np.array(proxy.features()))), proxy.logits(), atol=1e-5)
    assert (proxy.labels == Y.numpy()).all()


def test_last_layer_gradients_of_a_proxy_are_those_of_autograd() -> None:
    proxy = make()
    model = proxy.model()
    gradients = Gradients.of(proxy.features(), proxy.logits(), proxy.labels)
    for i in (0, 7, 299):
        model.zero_grad()
        nn.functional.cross_entropy(model(X[i : i + 1]), Y[i : i + 1]).backward()
        wanted = np.column_stack((model[-1].weight.grad.numpy(), model[-1].bias.grad.numpy()))
        np.testing.assert_allclose(np.outer(gradients.errors[i], gradients.inputs[i]), wanted, atol=1e-5)


def test_the_proxy_learns() -> None:
    proxy = make(epochs=10)
    assert (proxy.logits().argmax(1) == proxy.labels).mean() > 0.9
    assert (proxy.logits(0).argmax(1) == proxy.labels).mean() < 0.4


def test_the_proxy_learns_where_gradients_are_switched_off() -> None:
    with torch.no_grad():
        found = np.array(make().logits())
    np.testing.assert_array_equal(found, make().logits())


def test_each_epoch_and_each_init_is_a_model_of_its_own() -> None:
    proxy = make(inits=2)
    recorded = [proxy.logits(epoch, init) for epoch in range(4) for init in range(2)]
    for i, a in enumerate(recorded):
        assert all(not np.allclose(a, b) for b in recorded[:i])
    np.testing.assert_array_equal(proxy.logits(3, 0), proxy.logits())


def test_grand_and_el2n_average_over_the_models_of_the_epoch_asked_for() -> None:
    proxy = make(inits=2)
    errors = [
        np.linalg.norm(Gradients.of(proxy.features(2, i), proxy.logits(2, i), Y.numpy()).errors, axis=1) for i in (0, 1)
    ]
    lengths = [np.sqrt(np.square(proxy.features(2, i)).sum(1) + 1) for i in (0, 1)]
    np.testing.assert_allclose(EL2N(epoch=2).scores(proxy), (errors[0] + errors[1]) / 2, rtol=1e-5)
    wanted = (errors[0] * lengths[0] + errors[1] * lengths[1]) / 2
    np.testing.assert_allclose(GraNd(epoch=2).scores(proxy), wanted, rtol=1e-5)
    np.testing.assert_allclose(GraNd(epoch=2, repeats=1).scores(proxy), errors[0] * lengths[0], rtol=1e-5)
    every, last = GraNd(epoch=2, layer="all").scores(proxy), wanted
    assert (every > last).all()
    chunks = GraNd(epoch=2, layer="all", chunk=7).scores(proxy)
    np.testing.assert_allclose(every, chunks, rtol=1e-5)


def test_correctness_is_that_of_the_moment_a_sample_was_trained_on() -> None:
    """Without steps to speak of, every epoch must say what the untrained model says."""
    proxy = Proxy(lambda: nn.Sequential(nn.Linear(64, 10)), (X, Y), lr=1e-12, epochs=3)
    untrained = proxy.logits(0).argmax(1) == proxy.labels
    assert untrained.any()
    for row in proxy.correct():
        assert (row == untrained).all()
    learning = make(epochs=6).correct()
    assert learning.shape == (6, 300)
    assert learning[-1].mean() > learning[0].mean() + 0.2


def test_the_same_seed_gives_the_same_arrays_and_another_seed_others() -> None:
    np.testing.assert_array_equal(make().logits(), make().logits())
    assert not np.allclose(make().logits(), make(seed=1).logits())


def test_no_global_generator_is_touched() -> None:
    with global_generators_untouched("a proxy with dropout"):
        proxy = make(inits=2)
        proxy.logits(1, 1)
        GraNd(epoch=1, layer="all").scores(proxy)


class Items(Dataset):
    """A data set as people write them."""

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, i: int):
        return X[i], int(Y[i])


def test_any_form_of_the_data_gives_the_same_arrays() -> None:
    options = {"epochs": 1, "batch_size": 64}
    pair = Proxy(net, (X, Y), **options)
    for data in (TensorDataset(X, Y), Items(), [(x, int(y)) for x, y in zip(X, Y, strict=True)]):
        other = Proxy(net, data, **options)
        np.testing.assert_allclose(other.logits(), pair.logits(), atol=1e-6)
        assert (other.labels == pair.labels).all()
        assert other.checksum == pair.checksum


def test_a_list_of_labels_saves_a_pass_where_it_agrees_with_the_items() -> None:
    class Counted(Items):
        def __init__(self, targets: torch.Tensor) -> None:
            self.targets, self.read = targets, 0

        def __getitem__(self, i: int):
            self.read += 1
            return super().__getitem__(i)

    honest, wrong = Counted(Y), Counted(9 - Y)
    for data in (honest, wrong):
        assert (Proxy(net, data).labels == Y.numpy()).all()
    assert honest.read < 100
    assert wrong.read > 300


def test_a_last_batch_of_one_is_no_trouble_for_batch_norm() -> None:
    assert Proxy(net, (X[:65], Y[:65]), batch_size=64, epochs=1).features().shape == (65, 16)


def test_the_validation_set_is_recorded_with_the_final_model() -> None:
    proxy = make(validation=(X[:50], Y[:50]))
    held_out = proxy.validation()
    assert held_out is not None
    np.testing.assert_allclose(held_out.logits, proxy.logits()[:50], atol=1e-5)
    np.testing.assert_allclose(held_out.features, proxy.features()[:50], atol=1e-5)
    assert (held_out.labels == Y[:50].numpy()).all()
    assert make().validation() is None


# -- the last layer -------------------------------------------------------------------------------------------------


class Odd(nn.Module):
    """Declares its last layer first and names nothing as others do."""

    def __init__(self) -> None:
        super().__init__()
        self.out, self.inner, self.unused = nn.Linear(8, 10), nn.Linear(64, 8), nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.inner(x).relu()).log_softmax(1)


def test_the_last_layer_is_the_last_that_is_called() -> None:
    proxy = Proxy(Odd, (X, Y), epochs=1)
    assert proxy.features().shape == (300, 8)
    model = proxy.model()
    with torch.no_grad():
        np.testing.assert_allclose(proxy.logits(), model.out(model.inner(X).relu()), atol=1e-5)


def test_the_last_layer_can_be_named_where_another_one_is_called_after_it() -> None:
    class Auxiliary(Odd):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            logits = super().forward(x)
            self.unused(x[:, :2])
            return logits

    assert Proxy(Auxiliary, (X, Y), epochs=1, head="out").features().shape == (300, 8)
    with pytest.raises(ConfigError, match=r"'unused' gives \(2, 2\). Name the right one with Proxy\(..., head=...\)"):
        Proxy(Auxiliary, (X, Y), epochs=1)


def test_a_head_that_does_not_exist_or_is_not_linear_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"got 'outt'. Did you mean 'out'"):
        Proxy(Odd, (X, Y), head="outt")
    with pytest.raises(ConfigError, match=r"must use an nn.Linear"):
        Proxy(lambda: nn.Identity(), (X, Y))
    with pytest.raises(ConfigError, match=r"must use the head 'unused'"):
        Proxy(Odd, (X, Y), head="unused")


class Ends(nn.Module):
    """A linear layer, and something done to what comes out of it."""

    def __init__(self, end, *, zero: bool = False, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.inner, self.norm, self.drop = nn.Linear(64, 16, dtype=dtype), nn.BatchNorm1d(16), nn.Dropout(0.5)
        self.out, self.end = nn.Linear(16, 10, dtype=dtype), end
        if zero:
            nn.init.zeros_(self.out.weight)
            nn.init.zeros_(self.out.bias)

    def forward(self, x: torch.Tensor):
        hidden = self.inner(x.to(self.inner.weight.dtype)).float()
        return self.end(self.out(self.drop(self.norm(hidden)).to(self.out.weight.dtype)))


def cosine(h: torch.Tensor) -> torch.Tensor:
    towards = torch.eye(10) + 0.1
    return 10 * nn.functional.normalize(h) @ nn.functional.normalize(towards)


@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize(
    "end", [cosine, lambda z: z * 0.5, lambda z: z.mul_(0.5), lambda z: z.softmax(1), lambda z: z.flip(1)]
)
def test_a_head_that_does_not_give_the_models_output_is_refused(end, zero: bool) -> None:
    with global_generators_untouched("looking for the head"):
        for head in (None, "out"):
            with pytest.raises(
                ConfigError, match=r"must give the model's output.* 'out' gives other values. .*nn.Linear"
            ):
                Proxy(lambda: Ends(end, zero=zero), (X, Y), head=head)
    with pytest.raises(ConfigError, match=r"'out' gives \(2, 10\)"):
        Proxy(lambda: Ends(lambda z: z[:, :5], zero=zero), (X, Y))


def test_a_head_that_is_called_twice_and_averaged_is_refused() -> None:
    class Twice(Ends):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (super().forward(x) + super().forward(x.flip(1))) / 2

    with pytest.raises(ConfigError, match="must give the model's output"):
        Proxy(lambda: Twice(lambda z: z), (X, Y))


@pytest.mark.parametrize("end", [lambda z: z, lambda z: z + 3, lambda z: z.log_softmax(1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_head_whose_probabilities_are_the_models_is_recorded(end, dtype: torch.dtype) -> None:
    proxy = Proxy(lambda: Ends(end, dtype=dtype), (X, Y), epochs=1, batch_size=64)
    wanted = proxy.model()(X).detach().float().softmax(1)
    np.testing.assert_allclose(
        torch.tensor(np.array(proxy.logits())).softmax(1), wanted, atol=1e-5 if dtype is torch.float32 else 0.02
    )


def test_a_scale_that_training_moves_away_from_1_is_told_when_it_is_recorded() -> None:
    class Temperature(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out, self.scale = nn.Linear(64, 10), nn.Parameter(torch.ones(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.out(x) * self.scale

    with pytest.raises(ConfigError, match=r"must give the model's output.* 'out' gives other values"):
        Proxy(Temperature, (X, Y), epochs=1).logits()


def test_a_model_that_gives_more_than_logits_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"one tensor of logits, got tuple"):
        Proxy(lambda: Ends(lambda z: (z, z)), (X, Y))


def test_a_head_that_sees_more_than_a_vector_is_refused_before_anything_is_trained() -> None:
    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(8, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.out(x.reshape(-1, 8, 8)).mean(1)

    with pytest.raises(ConfigError, match=r"'out' sees shape \(2, 8, 8\)"):
        Proxy(Tokens, (X, Y), epochs=1)


# -- once, and resumed ----------------------------------------------------------------------------------------------


def test_ten_methods_cost_one_training(tmp_path: Path, epochs_trained: list[int]) -> None:
    names = [
        "herding",
        "k-center",
        "least-confidence",
        "entropy",
        "margin",
        "forgetting",
        "el2n",
        "craig",
        "moso",
        "ccs",
    ]
    for name in names:
        coresets.build(name).select(make(tmp_path), 0.5, seed=0)
    assert len(epochs_trained) == 3


def test_nothing_is_trained_that_nobody_asked_for(epochs_trained: list[int]) -> None:
    proxy = make(inits=3)
    StaticRandom().select(proxy, 0.5, seed=0)
    assert len(epochs_trained) == 0
    EL2N(epoch=2, repeats=2).select(proxy, 0.5, seed=0)
    assert len(epochs_trained) == 4


def test_a_proxy_that_was_stopped_goes_on_as_if_it_had_not_been(tmp_path: Path, epochs_trained: list[int]) -> None:
    class StopError(Exception):
        pass

    def stop(what: str, done: int, total: int) -> None:
        if "epoch 3" in what and done == 2:
            raise StopError

    with pytest.raises(StopError):
        make(tmp_path, epochs=4, progress=stop).features()
    assert len(epochs_trained) == 3
    resumed = make(tmp_path, epochs=4)
    straight = make(epochs=4)
    np.testing.assert_array_equal(resumed.features(), straight.features())
    np.testing.assert_array_equal(resumed.correct(), straight.correct())
    assert len(epochs_trained) == 3 + 2 + 4


def test_a_proxy_goes_on_from_a_checkpoint_that_says_optimiser(tmp_path: Path) -> None:
    make(tmp_path, epochs=2).features()
    (path,) = tmp_path.rglob("latest-0.pt")
    latest = load_checkpoint(path)
    save_checkpoint(path, {"epoch": latest["epoch"], "optimiser": latest["optimizer"]})
    np.testing.assert_array_equal(make(tmp_path, epochs=4).features(), make(epochs=4).features())


def test_a_longer_training_goes_on_from_a_shorter_one(tmp_path: Path, epochs_trained: list[int]) -> None:
    make(tmp_path, epochs=2).features()
    longer = make(tmp_path, epochs=4).features()
    assert len(epochs_trained) == 4
    np.testing.assert_array_equal(longer, make(epochs=4).features())


def test_a_recording_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    def stop(what: str, done: int, total: int) -> None:
        if "recording" in what and done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make(tmp_path, progress=stop).features()
    assert not list(tmp_path.glob("features*"))
    assert not list(tmp_path.glob(".*"))
    assert make(tmp_path).features().shape == (300, 16)


def test_a_temporary_folder_goes_with_its_proxy() -> None:
    proxy = make(epochs=1)
    proxy.features()
    folder = proxy._store.folder
    assert folder.exists()
    del proxy
    __import__("gc").collect()
    assert not folder.exists()


def test_the_cost_is_remembered_and_counted_for_what_is_used(tmp_path: Path) -> None:
    proxy = make(tmp_path)
    cheap, dear = coresets.run("el2n", proxy, 0.5, seed=0, epoch=1), coresets.run("moso", proxy, 0.5, seed=0)
    assert 0 < cheap.proxy_seconds < dear.proxy_seconds <= proxy.seconds
    spent = proxy._store.seconds
    assert cheap.proxy_seconds == spent["train-0-1"] + spent["logits-0-1"]
    assert proxy.seconds_for(EL2N(epoch=1).needs) == cheap.proxy_seconds  # also now that there is more
    passes = sum(spent[f"features-0-{epoch}"] for epoch in (1, 2, 3))
    assert dear.proxy_seconds == pytest.approx(passes + sum(spent[f"train-0-{epoch}"] for epoch in (1, 2, 3)))
    again = coresets.run("moso", make(tmp_path), 0.5, seed=0)
    assert again.proxy_seconds == dear.proxy_seconds


def test_the_pass_over_the_validation_set_is_part_of_glisters_cost_each_time(tmp_path: Path) -> None:
    def made() -> Proxy:
        return make(tmp_path, validation=(X[:50], Y[:50]))

    first = coresets.run("glister", made(), 0.5, seed=0)
    again = [coresets.run("glister", proxy, 0.5, seed=0) for proxy in [made()] for _ in range(2)]
    spent = made()._store.seconds
    validation = [seconds for name, seconds in spent.items() if "validation" in name]
    assert len(validation) == 1
    training = sum(spent[f"train-0-{epoch}"] for epoch in (1, 2, 3))
    assert first.proxy_seconds == pytest.approx(training + spent["features-0-3"] + validation[0])
    assert all(outcome.proxy_seconds == first.proxy_seconds for outcome in again)
    without = make(tmp_path)
    assert coresets.run("glister", without, 0.5, seed=0).proxy_seconds == pytest.approx(
        training + spent["features-0-3"]
    )
    assert without.seconds_for(coresets.Craig().needs) == made().seconds_for(coresets.Craig().needs)


def test_progress_is_told_by_a_function_or_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, int, int]] = []
    make(epochs=1, progress=lambda *event: told.append(event)).features()
    assert told[:5] == [("proxy: model 1, epoch 1", done, 5) for done in range(1, 6)]
    assert told[-1] == ("proxy: recording", 5, 5)
    assert make(epochs=1, progress=True).features().shape == (300, 16)
    monkeypatch.setitem(sys.modules, "rich.progress", None)
    with pytest.raises(ConfigError, match=r"pip install '\.\[cli\]'"):
        make(progress=True)
    with pytest.raises(ConfigError, match="progress must be"):
        make(progress=3)


# -- bad input ------------------------------------------------------------------------------------------------------


def test_recordings_of_other_data_are_refused(tmp_path: Path) -> None:
    make(tmp_path, epochs=1).features()
    for data in ((X[:299], Y[:299]), (X.flip(0), Y), (X, Y.flip(0))):
        with pytest.raises(StateError, match="belong to another proxy: data must be"):
            Proxy(net, data, cache=tmp_path, batch_size=64, lr=0.05)
    with pytest.raises(StateError, match="belong to another proxy: recipe must be"):
        make(tmp_path, lr=0.01)
    with pytest.raises(StateError, match="belong to another proxy: model must be"):
        Proxy(Odd, (X, Y), cache=tmp_path, batch_size=64, lr=0.05)
    (tmp_path / "proxy.json").write_text("{")
    with pytest.raises(StateError, match="is damaged"):
        make(tmp_path)


def test_recordings_of_a_model_with_other_layers_are_refused(tmp_path: Path) -> None:
    """Same shapes of all parameters; nothing in it that changes from process to process."""

    class Printed(nn.ReLU):
        def extra_repr(self) -> str:
            return f"like={object()}"

    def with_layer(layer: nn.Module) -> nn.Module:
        return nn.Sequential(nn.Linear(64, 16), layer, nn.Linear(16, 10))

    relu, tanh, odd = tmp_path / "relu", nn.Tanh(), tmp_path / "odd"
    Proxy(lambda: with_layer(nn.ReLU()), (X, Y), cache=relu)
    Proxy(lambda: with_layer(nn.ReLU()), (X, Y), cache=relu)
    with pytest.raises(StateError, match="belong to another proxy: model must be"):
        Proxy(lambda: with_layer(tanh), (X, Y), cache=relu)
    kept = [Proxy(lambda: with_layer(Printed()), (X, Y), cache=odd) for _ in range(2)]
    assert kept[0].n == 300


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_single_number_makes_tensors_other_data(tmp_path: Path, dtype: torch.dtype) -> None:
    x = X.to(dtype)
    model = lambda: nn.Sequential(nn.Linear(64, 10, dtype=dtype))  # noqa: E731
    Proxy(model, (x, Y), cache=tmp_path)
    for place in (1, 150, 298):
        other = x.clone()
        other[place, 5] += 1
        with pytest.raises(StateError, match="belong to another proxy: data must be"):
            Proxy(model, (other, Y), cache=tmp_path)
    with pytest.raises(StateError, match="belong to another proxy: data must be"):
        Proxy(lambda: nn.Sequential(nn.Flatten(), model()[0]), (x.reshape(300, 8, 8), Y), cache=tmp_path)
    Proxy(model, (x.t().contiguous().t(), Y), cache=tmp_path)  # the same numbers, laid out otherwise


def test_the_digest_of_tensors_goes_over_all_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Samples((X, Y)).fingerprint
    monkeypatch.setattr("orderdp.coresets.proxy._DIGESTED_AT_ONCE", 1000)
    assert Samples((X, Y)).fingerprint == whole
    assert Samples((torch.cat((X[:299], X[:1])), Y)).fingerprint != whole


def test_recordings_of_an_older_version_are_refused(tmp_path: Path) -> None:
    make(tmp_path, epochs=1).features()
    index = json.loads((tmp_path / "proxy.json").read_text())
    assert index["identity"]["version"] == 2
    index["identity"]["version"] = 1
    (tmp_path / "proxy.json").write_text(json.dumps(index))
    with pytest.raises(StateError, match=r"version must be 2, it was 1. Use another folder, or remove this one"):
        make(tmp_path)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
def test_labels_may_be_whole_numbers_of_any_kind(dtype: torch.dtype) -> None:
    class Named(Items):
        def __getitem__(self, i: int):
            return X[i], Y[i].to(dtype)

    wanted = EL2N(epoch=1).scores(Proxy(net, (X, Y), epochs=1, batch_size=64))
    for data in ((X, Y.to(dtype)), Named()):
        proxy = Proxy(net, data, epochs=1, batch_size=64)
        np.testing.assert_allclose(EL2N(epoch=1).scores(proxy), wanted, rtol=1e-5)
        assert len(GraNd(epoch=1, layer="all").select(proxy, 0.5, seed=0)) == 150


def test_a_proxy_knows_its_data_set() -> None:
    proxy = make()
    proxy.verify(TensorDataset(X, Y))
    with pytest.raises(DatasetError, match="made for 300 samples, the data set has 200"):
        proxy.verify((X[:200], Y[:200]))
    for other in (X + 1, torch.cat((X[:1], X[:1], X[2:]))):
        with pytest.raises(DatasetError, match="as many samples, but not the same ones"):
            proxy.verify((other, Y))
    proxy.verify(Items())


def test_too_few_epochs_or_models_are_told_before_anything_is_trained(epochs_trained: list[int]) -> None:
    proxy = make(inits=2)
    for method, message in (
        (EL2N(epoch=20), r"EL2N needs the model after 20 epochs, this proxy is trained for 3. .*epochs=20"),
        (GraNd(), "GraNd needs the model after 4 epochs"),
        (EL2N(repeats=10), r"EL2N needs 10 models, this proxy has 2. .*inits=10"),
        (MoSo(repeats=3), "MoSo needs 3 models"),
    ):
        with pytest.raises(ConfigError, match=message):
            method.select(proxy, 0.5, seed=0)
    with pytest.raises(ConfigError, match="Forgetting needs at least 2 epochs"):
        Forgetting().select(make(epochs=1), 0.5, seed=0)
    with pytest.raises(DatasetError, match="needs precomputed scores"):
        coresets.PrecomputedScores().select(proxy, 0.5, seed=0)
    for moment in ((4, 0), (-1, 0), (1, 2)):
        with pytest.raises(ConfigError, match="models 0 to 1 after 0 to 3 epochs, got model"):
            proxy.logits(*moment)
    assert not epochs_trained


def test_features_that_are_not_finite_are_named_by_row() -> None:
    class Breaks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(64, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.training:
                return self.out(x)
            return self.out(torch.where(x[:, 2:3] == X[11, 2], torch.nan, x))

    rows = np.flatnonzero(X[:, 2].numpy() == X[11, 2].item())
    with pytest.raises(
        DatasetError, match=f"the proxy's features must be finite; {len(rows)} of 300 rows .*: {rows[0]}"
    ):
        Proxy(Breaks, (X, Y), epochs=1).features()


def test_a_training_that_diverges_is_told() -> None:
    with pytest.raises(ConfigError, match=r"has diverged: its loss is (nan|inf). Give it a smaller lr"):
        Proxy(lambda: nn.Sequential(nn.Linear(64, 8), nn.Linear(8, 10)), (X * 1e6, Y), lr=1e6).features()


class Shaky(Items):
    """Augments at random."""

    def __getitem__(self, i: int):
        return X[i] + torch.from_numpy(np.random.default_rng().random(64)).float(), int(Y[i])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (Shaky(), "without augmentation: switch it off"),
        ((X, Y[:10]), "of the same length"),
        ((X, Y.float()), "one whole number from 0 on for each sample"),
        ((X, -Y), "one whole number from 0 on"),
        ((X[:0], Y[:0]), "must not be empty"),
        (list(X.numpy()), r"items of the data set must be \(inputs, label\)"),
        (iter([1, 2]), "must have a length"),
    ],
)
def test_data_that_cannot_be_trained_on_is_refused(data, message: str) -> None:
    with pytest.raises(DatasetError, match=message):
        Proxy(net, data)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 0}, "epochs must be"),
        ({"inits": 0}, "inits must be"),
        ({"lr": 0}, "lr must be a number, above 0"),
        ({"weight_decay": -1}, "weight_decay must be"),
        ({"momentum": 1}, "momentum must be"),
        ({"batch_size": 0}, "batch_size must be"),
        ({"seed": -1}, "seed must be"),
        ({"learning_rate": 1}, "a proxy has no parameter 'learning_rate'"),
    ],
)
def test_a_proxy_refuses_nonsense(options: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(**options)


def test_a_model_in_place_of_a_factory_and_too_few_outputs_are_refused() -> None:
    with pytest.raises(ConfigError, match="a function that makes a fresh model"):
        Proxy(net(), (X, Y))
    with pytest.raises(DatasetError, match="labels go up to 9, but the model has 4 outputs"):
        Proxy(lambda: nn.Linear(64, 4), (X, Y)).features()


# -- the command ----------------------------------------------------------------------------------------------------


def test_the_command_writes_indices_scores_and_cost(tmp_path: Path) -> None:
    proxy, out = make(), tmp_path / "kept.npz"
    coreset_command("el2n", 0.5, out, proxy=proxy, seed=1)
    with np.load(out) as file:
        assert np.array_equal(file["indices"], EL2N().select(proxy, 0.5, seed=1).indices)
        np.testing.assert_allclose(file["scores"], EL2N().scores(proxy))
        assert file["proxy_seconds"] > 0
        assert "EL2N" in str(file["method"])
    coreset_command("craig", 0.5, out, proxy=proxy, seed=1)
    with np.load(out) as file:
        assert file["weights"].shape == file["indices"].shape
        assert "scores" not in file
    assert [path.name for path in tmp_path.iterdir()] == ["kept.npz"]


def test_the_command_works_on_features_or_scores_of_ones_own(tmp_path: Path) -> None:
    features = np.random.default_rng(0).standard_normal((40, 3))
    np.savez(tmp_path / "own.npz", features=features, labels=np.arange(40) % 4, scores=np.arange(40.0))
    np.save(tmp_path / "plain.npy", features)
    out = tmp_path / "kept.npz"
    outcome = coreset_command("k-center", 0.5, out, from_features=tmp_path / "own.npz")
    assert np.bincount(outcome.selection.indices % 4).tolist() == [5] * 4
    assert len(coreset_command("k-center", 0.5, out, from_features=tmp_path / "plain.npy").selection) == 20
    best = coreset_command("own-scores", 0.5, out, from_features=tmp_path / "own.npz", balanced=False)
    assert best.selection.indices.tolist() == list(range(20, 40))
    assert len(coreset_command("ccs", 0.5, out, from_features=tmp_path / "own.npz", score="scores").selection) == 20


def test_the_command_tells_what_is_wrong_before_the_work(tmp_path: Path, epochs_trained: list[int]) -> None:
    proxy, out = make(), tmp_path / "kept.npz"
    (tmp_path / "text.npz").write_text("hello")
    np.savez(tmp_path / "other.npz", pixels=np.ones(3))
    np.save(tmp_path / "objects.npy", np.array([{}]), allow_pickle=True)
    cases = [
        (("el2m", 0.5, out), {"proxy": proxy}, "Did you mean 'el2n'"),
        (("el2n", 1.5, out), {"proxy": proxy}, "prune_ratio must be"),
        (("el2n", 0.5, tmp_path / "kept.csv"), {"proxy": proxy}, "must end in .npz"),
        (("el2n", 0.5, out), {}, "either a data set or --from-features"),
        (("k-center", 0.5, out), {"from_features": tmp_path / "none.npz"}, "there is no file"),
        (("k-center", 0.5, out), {"from_features": tmp_path / "text.npz"}, "must be an .npz or .npy file of numbers"),
        (("k-center", 0.5, out), {"from_features": tmp_path / "objects.npy"}, "must be an .npz or .npy file"),
        (("k-center", 0.5, out), {"from_features": tmp_path / "other.npz"}, "must hold some of .* it holds pixels"),
    ]
    for arguments, options, message in cases:
        with pytest.raises((ConfigError, DatasetError), match=message):
            coreset_command(*arguments, **options)
    assert not out.exists()
    assert not epochs_trained


def test_a_proxy_and_its_arrays_give_the_same_selection(tmp_path: Path) -> None:
    proxy = make()
    np.savez(tmp_path / "own.npz", features=proxy.features(), labels=proxy.labels)
    arrays = coresets.Arrays.load(tmp_path / "own.npz")
    ours, theirs = (KCenter().select(source, 0.5, seed=0).indices for source in (proxy, arrays))
    assert np.array_equal(ours, theirs)
