"""A stock DataLoader over what a timeline serves, with the index in every batch."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import DataLoader

from orderdp.loading import Indexed, IndexedCollate, length_of, without_own_order
from orderdp.planning import check_batch_size
from orderdp.sampling import PrunedBatchSampler, check_length
from orderdp.timeline import Timeline

__all__ = ["pruned_loader"]


def pruned_loader(timeline: Timeline, dataset: Any, batch_size: int, given: dict[str, Any]) -> DataLoader[Any]:
    """A DataLoader that yields ``(index, batch)``, or an error where the data set or an option does not fit.

    Args:
        timeline: Whose epochs.
        dataset: The data set they are drawn from.
        batch_size: Samples a batch.
        given: What else the DataLoader is made with.
    """
    options = without_own_order(given)
    check_batch_size(batch_size)
    length_of(dataset)
    check_length(dataset, timeline.n)
    own_generator = None
    if options.get("generator") is None:
        # Without one, a DataLoader takes its workers' seeds from the global generator and so moves it.
        own_generator = options["generator"] = torch.Generator()
    batches = PrunedBatchSampler(
        timeline,
        batch_size,
        options.pop("drop_last", False),
        dataset=dataset,
        generator=own_generator,
        prefetched=(options.get("num_workers") or 0) * (options.get("prefetch_factor") or 2),
    )
    if not (type(dataset) is Indexed and dataset.key is None):
        dataset = Indexed(dataset)
    collate = IndexedCollate(options.pop("collate_fn", None))
    return DataLoader(dataset, batch_sampler=batches, collate_fn=collate, **options)
