"""Figures of cost against length: points, crossings and ticks."""

import math

import numpy as np
import pytest

from linformer_hf.benchmark.figures import draw_efficiency, plot_efficiency


PANELS = {
    "Seconds a text": {
        "dense": [(128, 1.0), (256, 4.0), (512, 16.0), (1024, 64.0)],
        "k = 64": [(128, 2.0), (256, 4.5), (512, 9.0), (1024, 18.0)],
    },
    "Peak memory, MB": {"dense": [(128, 10), (256, 20)], "k = 64": [(128, 5), (256, 9)]},
}


def rings(axes):
    """List what marks crossings: a ring at a place, named in the legend."""
    return [line for line in axes.lines if line.get_label().startswith("n ≈")]


def test_costs_show_their_points_and_names():
    figure = draw_efficiency(PANELS, baseline="dense")
    for axes, (title, series) in zip(figure.axes, PANELS.items(), strict=True):
        assert axes.get_title(loc="left") == title
        assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
        lines = {line.get_label(): line.get_xydata() for line in axes.lines}
        for label, points in series.items():
            np.testing.assert_allclose(lines[label], points)
        assert set(series) <= {text.get_text() for text in axes.get_legend().get_texts()}


def test_a_ring_marks_where_a_line_falls_below_the_baseline_for_good():
    dense, ours = ([(n, factor * n**power) for n in (64, 128, 512, 4096)] for factor, power in ((1.0, 2), (200.0, 1)))
    (axes,) = draw_efficiency({"Seconds": {"dense": dense, "ours": ours}}, baseline="dense").axes
    (ring,) = rings(axes)
    ((x, y),) = ring.get_xydata()
    assert math.isclose(x, 200) and math.isclose(y, 200**2)
    assert "n ≈ 200" in {text.get_text() for text in axes.get_legend().get_texts()}


@pytest.mark.parametrize(
    "ours",
    [
        pytest.param([(64, 1.0), (128, 1.0), (512, 1e9)], id="it ends above"),
        pytest.param([(64, 1.0), (128, 1.0), (512, 1.0)], id="it is below from the start"),
        pytest.param([(9, 1.0)], id="no length in common"),
    ],
)
def test_there_is_no_ring_where_no_line_crosses(ours):
    dense = [(n, n**2) for n in (64, 128, 512)]
    (axes,) = draw_efficiency({"Seconds": {"dense": dense, "ours": ours}}, baseline="dense").axes
    assert rings(axes) == []


def test_a_figure_without_the_baseline_is_written(tmp_path):
    files = plot_efficiency({"Seconds": {"ours": [(64, 1.0), (128, 2.0)]}}, tmp_path / "cost", baseline="dense")
    assert [file.name for file in files if file.stat().st_size] == ["cost.png", "cost.svg"]


@pytest.mark.parametrize(("low", "high"), [(0.9, 1.4), (3, 60), (0.05, 8), (1e-4, 30)])
def test_the_height_has_a_few_ticks_with_short_labels(low, high):
    (axes,) = draw_efficiency({"Seconds": {"a": [(64, low), (128, high)]}}, baseline="dense").axes
    axes.figure.draw_without_rendering()
    labels = [label.get_text() for label in axes.get_yticklabels() if low <= label.get_position()[1] <= high]
    assert 3 <= len(labels) <= 8
    assert all(len(label) <= 6 for label in labels)
