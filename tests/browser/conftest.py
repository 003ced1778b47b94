"""Settings of the browser tests."""

from __future__ import annotations

import torch

# The network of these tests is tiny: a second thread costs more than it does.
torch.set_num_threads(1)
