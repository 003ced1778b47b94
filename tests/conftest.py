"""Settings of all tests."""

from __future__ import annotations

import signal

import pytest
import torch

# The tensors of these tests are tiny: a second thread costs more than it does.
torch.set_num_threads(1)

# A shell's background job ignores Ctrl-C, and tests that press it would wait for nothing.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Files that take a minute or more. A file that is begun last would keep one process busy while the others have nothing.
_LONG = (
    *("test_huggingface.py", "test_comparing.py", "test_examples.py", "test_accelerate.py", "test_lightning.py"),
    *("test_suites.py", "test_elastic.py", "test_package.py", "test_pinned_draws.py", "test_scripts.py"),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the long files; `make test` keeps this order."""
    items.sort(key=lambda item: _LONG.index(item.path.name) if item.path.name in _LONG else len(_LONG))
