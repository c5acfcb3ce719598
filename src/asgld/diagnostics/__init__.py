"""A run against theory: certificates, and settings from measurements."""

from asgld.diagnostics.calibration import (
    Calibration,
    Scales,
    calibrate,
    groups_from_gradients,
    mean_square_gradient,
)
from asgld.diagnostics.copies import Copies, calibrate_copies
from asgld.diagnostics.tracker import CertificateTracker, Report, Tracked

__all__ = [
    "Calibration",
    "CertificateTracker",
    "Copies",
    "Report",
    "Scales",
    "Tracked",
    "calibrate",
    "calibrate_copies",
    "groups_from_gradients",
    "mean_square_gradient",
]
