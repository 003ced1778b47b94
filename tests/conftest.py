"""Settings of all tests."""

from __future__ import annotations

import torch

# The tensors of these tests are tiny: a second thread costs more than it does.
torch.set_num_threads(1)
