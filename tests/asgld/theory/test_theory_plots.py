"""The pictures show the numbers of the theory."""

from __future__ import annotations

import io
import sys

import numpy as np
import pytest

from asgld.theory import escape_time, rate

figures = pytest.importorskip("asgld.theory.plots")
pytest.importorskip("matplotlib")


def lines_of(panel):
    return {line.get_label(): line.get_xydata() for line in panel.get_lines()}


@pytest.mark.parametrize(
    ("method", "theta"), [("asgld", 0.0), ("asgld", 0.5), ("agld", 0.0), ("asg", 0.0)]
)
def test_figures_region_map_draws_both_versions(method, theta):
    figure = figures.region_map(method=method, theta=theta, resolution=40)
    published, corrected = figure.axes[:2]
    assert (published.get_title(), corrected.get_title()) == ("As published", "Corrected")
    drawn = np.ma.filled(corrected.collections[0].get_array(), np.nan)
    centers = (np.arange(40) + 0.5) / 40
    expected = rate(2.3 * centers[None, :], 2.6 * centers[:, None], method=method, theta=theta)
    np.testing.assert_allclose(
        drawn.reshape(40, 40), np.where(expected.converges, expected.exponent, np.nan)
    )
    assert len(figure.canvas.get_supported_filetypes()) > 0
    figure.savefig(io.BytesIO(), format="png", dpi=40)


def test_figures_rate_curves_show_the_swapped_case():
    figure = figures.rate_curves((0.75, 2.0))
    for panel, beta in zip(figure.axes, (0.75, 2.0), strict=True):
        lines = lines_of(panel)
        for label, version in (("Corrected", "corrected"), ("As published", "published")):
            alpha, exponent = lines[label].T
            at = np.argmin(np.abs(alpha - 1.25))
            assert exponent[at] == pytest.approx(rate(alpha[at], beta, version=version).exponent)
    figure.savefig(io.BytesIO(), format="png", dpi=40)


def test_figures_escape_curves_show_the_predicted_times():
    figure = figures.escape_curves(alphas=(0.0, 1.0))
    by_k0, by_dim, by_gamma = figure.axes
    k0, steps = lines_of(by_k0)[r"$\alpha = 1$"].T
    expected = escape_time(
        0.5, lr=0.1, alpha=1, beta=1, sigma=0.1, delta=0.01, gradient_variance=0.1, dim=64, k0=k0
    )
    np.testing.assert_allclose(steps, expected.steps)
    flat = lines_of(by_k0)["Theorem 3, scaled"][:, 1]
    assert np.ptp(flat) == 0
    assert len(by_dim.get_lines()) == 7
    assert len(by_gamma.get_lines()) == 4
    figure.savefig(io.BytesIO(), format="png", dpi=40)


def test_figures_name_the_extra_when_matplotlib_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install 'asgld\[plot\]'"):
        figures.rate_curves()
