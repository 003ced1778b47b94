"""Settings of all tests."""

from __future__ import annotations

import signal

import torch

# The tensors of these tests are tiny: a second thread costs more than it does.
torch.set_num_threads(1)

# A shell's background job ignores Ctrl-C, and tests that press it would wait for nothing.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
