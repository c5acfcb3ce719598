"""Sampling: chains whose draws follow a density, and whether they have mixed."""

from asgld.sampling.drawing import sample, sample_function
from asgld.sampling.networks import NetworkSamples, posterior_options, sample_network
from asgld.sampling.samples import Samples

__all__ = [
    "NetworkSamples",
    "Samples",
    "posterior_options",
    "sample",
    "sample_function",
    "sample_network",
]
