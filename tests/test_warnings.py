"""Every warning names the line of the user, wherever in the library it is issued."""

from __future__ import annotations

import re
import runpy
import threading
import warnings
from pathlib import Path

import pytest

import orderdp
from orderdp import errors

BEGIN = """
import torch
import orderdp
from orderdp import Pruner, policies, streaming
from torch.utils.data import DataLoader, TensorDataset
from tests.ranks import in_threads

data = TensorDataset(torch.arange(40.0))

def losses(index):
    return 1 + index.float()

class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter([(i, float(i)) for i in range(40)])
"""

#: Scripts of a user. The line that must be named ends in "# here".
SCRIPTS = {
    "an epoch without losses": (
        "NoFeedbackWarning",
        """
pruner = Pruner(orderdp.OrderDP(0.5), data, seed=0)
loader = pruner.loader(data, batch_size=10)
for _ in range(3):
    for _ in loader:  # here
        pass
""",
    ),
    "an epoch without losses, by a list": (
        "NoFeedbackWarning",
        """
pruner = Pruner(orderdp.OrderDP(0.5), data, seed=0)
loader = pruner.loader(data, batch_size=10)
for _ in range(3):
    list(loader)  # here
""",
    ),
    "an epoch without losses, with workers": (
        "NoFeedbackWarning",
        """
pruner = Pruner(orderdp.OrderDP(0.5), data, seed=0)
loader = pruner.loader(data, batch_size=10, num_workers=1)
for _ in range(3):
    list(loader)  # here
""",
    ),
    "an epoch without losses, by a sampler": (
        "NoFeedbackWarning",
        """
pruner = Pruner(orderdp.OrderDP(0.5), data, seed=0)
for _ in range(3):
    list(pruner.sampler)  # here
""",
    ),
    "losses while no epoch is open": (
        "NoOpenEpochWarning",
        """
pruner = Pruner(orderdp.OrderDP(0.5), data, seed=0)
index = torch.as_tensor(pruner.preview().indices)
pruner.update(index, losses(index))  # here
""",
    ),
    "a second pass in mid-epoch": (
        "RestartedEpochWarning",
        """
pruner = Pruner(orderdp.OrderDP(0.5), data, seed=0)
loader = pruner.loader(data, batch_size=5)
for index, _ in loader:  # here
    pruner.update(index, losses(index))
    next(iter(loader))
""",
    ),
    "a second pass in mid-epoch, by indices": (
        "RestartedEpochWarning",
        """
pruner = Pruner(orderdp.OrderDP(0.5), data, seed=0)
for index in pruner.index_batches(5):  # here
    pruner.update(index, losses(index))
    next(iter(pruner.index_batches(5)))
""",
    ),
    "steps of another number of samples": (
        "RealRatioWarning",
        """
pruner = Pruner(orderdp.OrderDP(0.5), data, seed=0)
pruner.steps(5, batch_size=4)
for index in pruner.filter(range(20)):  # here
    pass
""",
    ),
    "more epochs than planned": (
        "BeyondPlanWarning",
        """
pruner = Pruner(orderdp.OrderDP(0.5), data, seed=0, epochs=1)
for _ in range(2):
    for index, _ in pruner.loader(data, batch_size=10):
        pruner.update(index, losses(index))  # here
""",
    ),
    "another ratio than the nominal one": (
        "RealRatioWarning",
        """
pruner = Pruner(policies.InfoBatch(0.5), data, seed=0, epochs=4)
for _ in range(2):
    for index, _ in pruner.loader(data, batch_size=10):  # here
        pruner.update(index, losses(index))
""",
    ),
    "a ratio out of reach": (
        "UnreachableRatioWarning",
        """
pruner = Pruner(policies.InfoBatch(target_ratio=0.9), data, seed=0, epochs=4)
for _ in range(2):
    for index, _ in pruner.loader(data, batch_size=10):  # here
        pruner.update(index, losses(index))
""",
    ),
    "labels in place of indices": (
        "FeedbackMismatchWarning",
        """
pruner = Pruner(orderdp.OrderDP(0.5), data, seed=0)
for index, (x,) in pruner.loader(data, batch_size=10):
    pruner.update(x.long() % 3, losses(index))  # here
""",
    ),
    "losses that are not finite": (
        "NonFiniteLossWarning",
        """
pruner = Pruner(orderdp.OrderDP(0.5), data, seed=0)
for _ in range(2):
    for index, _ in pruner.loader(data, batch_size=20):
        pruner.update(index, losses(index) * float("nan"))  # here
""",
    ),
    "losses of a stream that are not finite": (
        "NonFiniteLossWarning",
        """
keys = streaming.KeyFilter(orderdp.OrderDP(0.5), seed=0, key=0)
loader = DataLoader(keys.only(Stream()), batch_size=10)
for _ in range(2):
    for key, _ in keys.one_epoch(loader):  # here
        keys.update(key, losses(key) * float("nan"))
""",
    ),
    "a stream without losses": (
        "NoFeedbackWarning",
        """
keys = streaming.KeyFilter(orderdp.OrderDP(0.5), seed=0, key=0)
loader = DataLoader(keys.only(Stream()), batch_size=10)
for _ in keys.one_epoch(loader):
    pass
for _ in keys.one_epoch(loader):  # here
    pass
""",
    ),
    "the state of one rank": (
        "UnsyncedStateWarning",
        """
def train(group):
    pruner = Pruner(orderdp.OrderDP(0.5), 40, process_group=group)
    for index in pruner.batch_sampler(10):
        pruner.update(index, losses(torch.tensor(index)))
        if group.rank == 0:
            pruner.state_dict()  # here
        break

in_threads(2, train)
""",
    ),
    "the state of one rank of a stream": (
        "UnsyncedStateWarning",
        """
def train(group):
    keys = streaming.KeyFilter(orderdp.OrderDP(0.5), seed=0, key=0, process_group=group)
    for key, _ in keys.one_epoch(DataLoader(keys.only(Stream()), batch_size=10)):
        keys.update(key, losses(key))
        if group.rank == 0:
            keys.state_dict()  # here
        break

in_threads(2, train)
""",
    ),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_warning_names_the_line_of_the_script(name: str, tmp_path: Path) -> None:
    category, text = SCRIPTS[name]
    script = tmp_path / "train.py"
    script.write_text(BEGIN + text)
    wanted = [number for number, line in enumerate(script.read_text().splitlines(), 1) if line.endswith("# here")]

    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        runpy.run_path(str(script), run_name="__main__")

    places = [(one.category.__name__, one.filename, one.lineno) for one in given]
    assert (category, str(script), wanted[0]) in places
    assert not [place for place in places if "orderdp" in place[1].replace(str(tmp_path), "")]


def test_every_class_of_warnings_has_a_script() -> None:
    classes = {name for name in errors.__all__ if name.endswith("Warning")} - {"OrderDPWarning"}
    assert {category for category, _ in SCRIPTS.values()} == classes


def test_only_one_place_issues_warnings() -> None:
    source = Path(orderdp.__file__).parent
    issuing = {path.name for path in source.rglob("*.py") if re.search(r"warnings\.warn\(", path.read_text())}
    assert issuing == {"errors.py"}


def test_without_a_line_of_a_user_the_innermost_line_outside_the_library_is_named(tmp_path: Path) -> None:
    """A framework's own command calls the library: all frames are the framework's or Python's."""
    program = tmp_path / "command.py"
    program.write_text("def run(warn):\n    warn('told', UserWarning)\n")
    run = runpy.run_path(str(program), run_name="torch.command")["run"]
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        thread = threading.Thread(target=run, args=(errors.warn,))
        thread.start()
        thread.join()
    assert [(one.filename, one.lineno) for one in given] == [(str(program), 2)]
