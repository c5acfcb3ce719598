"""Curvature: extreme eigenvalues with confidence, what kind of point x is, constants of a model."""

from asgld.curvature.constants import (
    Estimate,
    gradient_scale,
    gradient_variance,
    largest_curvature,
)
from asgld.curvature.lanczos import steps_needed
from asgld.curvature.model import ModelHessian
from asgld.curvature.points import Kind, Point, classify
from asgld.curvature.spectrum import Spectrum, lambda_max, lambda_min

__all__ = [
    "Estimate",
    "Kind",
    "ModelHessian",
    "Point",
    "Spectrum",
    "classify",
    "gradient_scale",
    "gradient_variance",
    "lambda_max",
    "lambda_min",
    "largest_curvature",
    "steps_needed",
]
