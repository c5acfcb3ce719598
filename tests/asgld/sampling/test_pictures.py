"""Pictures of chains show the draws, and an unmixed chain at once."""

from __future__ import annotations

import io
import sys
from itertools import pairwise

import numpy as np
import pytest

pytest.importorskip("matplotlib")
from matplotlib.colors import to_hex

from asgld.sampling import pictures
from asgld.sampling.pictures import BAND, CHAIN_COLORS, plot_ranks, plot_trace
from asgld.theory.plots import COLORS

BOTH = pytest.mark.parametrize("plot", [plot_trace, plot_ranks])


def mixed(chains=4, draws=400, d=2, seed=0):
    return np.random.default_rng(seed).standard_normal((chains, draws, d))


def rendered(figure):
    stream = io.BytesIO()
    figure.savefig(stream, format="png")
    return int.from_bytes(stream.getvalue()[16:20], "big")


def red_bars(panel):
    return sum(to_hex(bar.get_facecolor()).upper() == COLORS[1] for bar in panel.patches[1:])


def test_traces_are_the_draws():
    x = mixed()
    figure = plot_trace(x, ["a", "b"])
    traces = figure.axes[::2]
    for i, (name, panel) in enumerate(zip("ab", traces, strict=True)):
        assert panel.get_ylabel() == name
        for chain, line in enumerate(panel.get_lines()):
            np.testing.assert_array_equal(line.get_ydata(), x[chain, :, i])
            assert line.get_color() == CHAIN_COLORS[chain]
        assert len(panel.get_lines()) == 4
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [f"chain {i}" for i in range(1, 5)]
    assert rendered(figure) == 1000


def test_histograms_at_the_right_hold_every_draw():
    figure = plot_trace(mixed(), ["a", "b"])
    for margin in figure.axes[1::2]:
        every, *chains = margin.patches
        assert to_hex(every.get_facecolor()) == BAND
        for part in (every, *chains):
            assert part.get_data().values.sum() == pytest.approx(1)
        assert margin.get_xlim()[1] > max(part.get_data().values.max() for part in margin.patches)


def test_ranks_are_counted():
    x = mixed(chains=3, draws=200, d=1)
    figure = plot_ranks(x, ["a"])
    order = np.argsort(np.argsort(x[:, :, 0].ravel())).reshape(3, 200)
    for panel, ranks in zip(figure.axes, order, strict=True):
        heights = [bar.get_height() for bar in panel.patches[1:]]
        np.testing.assert_array_equal(heights, np.bincount(ranks // 30, minlength=20))
        assert panel.get_lines()[0].get_ydata()[0] == 10
    assert rendered(figure) == 1000


def test_unmixed_chain_is_red_and_mixed_ones_are_not():
    x = mixed(chains=4, draws=1000, d=2, seed=1)
    x[2, :, 1] += 3
    panels = np.reshape(plot_ranks(x, ["mixed", "unmixed"]).axes, (2, 4))
    assert sum(red_bars(panel) for panel in panels[0]) <= 6  # 0.8 of 80 are expected
    assert red_bars(panels[1, 2]) >= 15


@pytest.mark.parametrize(("n", "p"), [(1, 0.5), (50, 0.2), (1000, 0.05), (100_000, 0.05)])
def test_band_is_that_of_the_binomial_distribution(n, p):
    stats = pytest.importorskip("scipy.stats")
    assert tuple(pictures._band(n, p)) == tuple(stats.binom.ppf((0.005, 0.995), n, p))


@BOTH
def test_of_many_chains_the_least_uniform_are_drawn(plot):
    x = mixed(chains=64, draws=100, d=2, seed=2)
    x[17, :, 0] += 4
    figure = plot(x, ["a", "b"])
    assert "8 least uniform of 64" in figure.get_suptitle()
    if plot is plot_trace:
        labels = [line.get_label() for line in figure.axes[0].get_lines()]
        assert figure.legends == []
    else:
        labels = [panel.get_title() for panel in figure.axes[:8]]
    assert len(labels) == 8
    assert "chain 18" in labels


@BOTH
def test_six_coordinates_are_drawn(plot):
    names = [f"layers.{i}.attention.weight[{i}]" for i in range(9)]
    figure = plot(mixed(chains=2, draws=60, d=9), names)
    rows = [panel for panel in figure.axes if panel.get_ylabel()]
    assert [panel.get_ylabel() for panel in rows] == [f"…attention.weight[{i}]" for i in range(6)]
    assert rendered(figure) == 1000


@BOTH
def test_labels_do_not_overlap(plot):
    names = [f"model.layers.{i}.attention.weight[127,{i}]" for i in range(4)] + ["$a_b$", "x"]
    figure = plot(1e-3 * mixed(chains=8, draws=60, d=6), names)
    rendered(figure)
    boxes = [p.yaxis.label.get_window_extent() for p in figure.axes if p.get_ylabel()]
    assert all(upper.y0 > lower.y1 for upper, lower in pairwise(boxes))
    for panel in figure.axes:
        if panel.get_ylabel():
            name = panel.yaxis.label.get_window_extent()
            ticks = [tick.get_window_extent() for tick in panel.get_yticklabels()]
            assert all(name.x1 <= tick.x0 for tick in ticks if tick.width)
    texts = [panel.title for panel in figure.axes if panel.get_title()]
    assert all(
        left.get_window_extent().x1 < right.get_window_extent().x0
        for left, right in pairwise(texts)
    )


@BOTH
def test_draws_that_are_hard_to_draw(plot):
    x = mixed(chains=2, draws=40, d=5)
    x[:, :, 0] = 1e20
    x[:, :, 1] = np.nan
    x[0, 3, 2] = np.inf
    x[1, 5:9, 3] = np.nan
    x[:, :, 4] = 0
    assert rendered(plot(x, list("abcde"))) == 1000
    assert rendered(plot(mixed(1, 1, 1), ["one draw"])) == 1000


@BOTH
@pytest.mark.parametrize("shape", [(4, 10), (4, 10, 3), (0, 10, 2), (4, 0, 2)])
def test_shapes_are_checked(plot, shape):
    with pytest.raises(ValueError, match=r"are not \(chains, draws, 2\)"):
        plot(np.zeros(shape), ["a", "b"])


@BOTH
def test_extra_is_named_when_matplotlib_is_missing(plot, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install 'asgld\[plot\]'"):
        plot(mixed(), ["a", "b"])
