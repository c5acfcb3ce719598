"""Batches for training: sizes that grow, and gradients over many of them."""

from asgld.data.batches import GrowingBatchSampler, accumulate, full_gradient

__all__ = ["GrowingBatchSampler", "accumulate", "full_gradient"]
