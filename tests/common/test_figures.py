"""Figures: they show the numbers they are given, and writing them again gives the same bytes."""

import importlib
import math
import subprocess
import sys

import numpy as np
import pytest

from linformer_hf.common import figures
from linformer_hf.common.figures import (
    crossing,
    draw_curves,
    draw_efficiency,
    draw_spectrum,
    plot_curves,
    plot_efficiency,
    plot_spectrum,
    spread,
)


LAYERS, HEADS, RANKS, RANK = 3, 4, 20, 5
SPECTRUM = {
    "cumulative": (
        1 - np.exp(-np.linspace(0.1, 1, LAYERS * HEADS).reshape(LAYERS, HEADS, 1) * np.arange(1, RANKS + 1))
    ),
    "rank": RANK,
}
CURVES = {"training": [(0, 5.0), (10, 3.0), (20, 2.5)], "held out": [(0, 5.5), (20, 3.5)]}
PANELS = {
    "Seconds a text": {
        "dense": [(128, 1.0), (256, 4.0), (512, 16.0), (1024, 64.0)],
        "k = 64": [(128, 2.0), (256, 4.5), (512, 9.0), (1024, 18.0)],
    },
    "Peak memory, MB": {"dense": [(128, 10), (256, 20)], "k = 64": [(128, 5), (256, 9)]},
}

FIGURES = {
    "spectrum": lambda stem: plot_spectrum(SPECTRUM, stem),
    "curves": lambda stem: plot_curves(CURVES, stem, "Step", "Loss, nats a token", log_y=True),
    "efficiency": lambda stem: plot_efficiency(PANELS, stem, baseline="dense"),
}


def lines_by_label(axes):
    return {line.get_label(): np.array(line.get_xydata()) for line in axes.lines}


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_written_twice_with_the_same_bytes(name, tmp_path):
    first, second = (FIGURES[name](tmp_path / folder / "a.figure") for folder in ("first", "second"))
    assert [file.name for file in first] == ["a.figure.png", "a.figure.svg"]
    assert first[0].read_bytes().startswith(b"\x89PNG")
    assert first[1].read_text("utf-8").rstrip().endswith("</svg>")
    assert [file.read_bytes() for file in first] == [file.read_bytes() for file in second]


def test_a_png_has_two_dots_for_each_pixel_of_a_readme(tmp_path):
    png, _ = plot_curves(CURVES, tmp_path / "curves", "Step", "Loss")
    width = int.from_bytes(png.read_bytes()[16:20], "big")
    assert width == 2 * 830


def test_figures_leave_the_settings_of_matplotlib_alone_and_need_no_screen(tmp_path):
    program = """
import runpy, sys, matplotlib
settings = [name for name in matplotlib.rcParams if name != "backend"]  # asking for that one would choose it
before = {name: matplotlib.rcParams[name] for name in settings}
plots = runpy.run_path(sys.argv[1])
plots["plot_curves"]({"a": [(0, 1), (1, 2)]}, sys.argv[2], "x", "y")
assert [name for name in settings if matplotlib.rcParams[name] != before[name]] == []
assert "matplotlib.pyplot" not in sys.modules
"""
    done = subprocess.run(
        [sys.executable, "-c", program, figures.__file__, str(tmp_path / "a")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_the_spectrum_shows_means_heads_and_the_heat_map():
    figure = draw_spectrum(SPECTRUM)
    left, right = figure.axes[:2]
    for index, layer in enumerate(SPECTRUM["cumulative"], start=1):
        line = lines_by_label(left)[f"layer {index}"]
        np.testing.assert_allclose(line[:, 0], np.arange(1, RANKS + 1))
        np.testing.assert_allclose(line[:, 1], layer.mean(0))
    thin = [line.get_ydata() for line in left.lines if line.get_label().startswith("_") and len(line.get_xdata()) > 2]
    np.testing.assert_allclose(thin, SPECTRUM["cumulative"].reshape(-1, RANKS))
    np.testing.assert_allclose(right.images[0].get_array(), SPECTRUM["cumulative"][:, :, RANK - 1].T)
    assert any(f"k = {RANK}" in text.get_text() for text in left.texts)


def test_a_spectrum_of_one_head_in_one_layer_is_drawn():
    draw_spectrum({"cumulative": [[[0.5, 1.0]]], "rank": 1})


def test_curves_show_their_points_and_their_names():
    axes = draw_curves(CURVES, "Step", "Loss, nats a token").axes[0]
    for label, points in CURVES.items():
        np.testing.assert_allclose(lines_by_label(axes)[label], points)
    assert {text.get_text() for text in axes.texts} == set(CURVES)
    assert (axes.get_xlabel(), axes.get_ylabel(), axes.get_yscale()) == ("Step", "Loss, nats a token", "linear")
    assert draw_curves(CURVES, "Step", "Perplexity", log_y=True).axes[0].get_yscale() == "log"


def test_costs_show_their_points_and_where_they_fall_below_the_baseline():
    figure = draw_efficiency(PANELS, baseline="dense")
    for axes, (title, series) in zip(figure.axes, PANELS.items()):
        assert axes.get_title(loc="left") == title
        assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
        for label, points in series.items():
            np.testing.assert_allclose(lines_by_label(axes)[label], points)
    assert any("n ≈" in text.get_text() for text in figure.axes[0].texts)
    assert not any("n ≈" in text.get_text() for text in figure.axes[1].texts)  # cheaper from the first length on


def test_labels_stand_behind_all_lines_or_before_a_line_that_ends_early():
    last = {"long": 100, "nearly": 98, "early": 40}
    axes = draw_curves({label: [(0, 1), (x, x)] for label, x in last.items()}, "Step", "Loss").axes[0]
    places = {text.get_text(): (round(text.xy[0], 3), text.get_horizontalalignment()) for text in axes.texts}
    assert places == {"long": (1.0, "left"), "nearly": (1.0, "left"), "early": (0.4, "right")}


@pytest.mark.parametrize(("low", "high"), [(0.9, 1.4), (3, 60), (1e-4, 30)])
def test_a_logarithmic_axis_has_a_few_ticks_with_short_labels(low, high):
    axes = draw_curves({"a": [(0, low), (1, high)]}, "x", "y", log_y=True).axes[0]
    axes.figure.draw_without_rendering()
    labels = [label.get_text() for label in axes.get_yticklabels() if low <= label.get_position()[1] <= high]
    assert 3 <= len(labels) <= 8
    assert all(len(label) <= 6 for label in labels)


def test_a_crossing_lies_where_two_power_laws_meet():
    dense, ours = ([(n, factor * n**power) for n in (64, 128, 512, 4096)] for factor, power in ((1.0, 2), (200.0, 1)))
    x, y = crossing(ours, dense)
    assert math.isclose(x, 200) and math.isclose(y, 200**2)
    assert crossing(dense, ours) is None  # it ends above
    assert crossing([(n, y / 10_000) for n, y in ours], dense) is None  # it is below from the start
    assert crossing([(9, 1.0)], dense) is None  # no length in common
    ups_and_downs = [(64, 1.0), (128, 1e9), (512, 1e3), (4096, 1e3)]
    assert 128 < crossing(ups_and_downs, dense)[0] < 512  # the last one counts


def test_labels_are_spread_no_further_than_they_must():
    assert spread([], 0.1) == []
    assert spread([0.1, 0.5], 0.1) == [0.1, 0.5]
    np.testing.assert_allclose(spread([0.5, 0.5], 0.1), [0.45, 0.55])
    moved = np.array(spread([0.1, 0.11, 0.2, 0.21, 0.8], 0.1))
    assert (np.diff(moved) > 0.1 - 1e-9).all()
    assert moved[-1] == 0.8
    assert math.isclose(moved[:4].mean(), 0.155)


@pytest.mark.parametrize("end", [0.0, 1.0])
def test_labels_of_lines_that_end_together_stay_beside_the_axes(end):
    curves = {f"run {index}": [(0, 1 - end), (1, end + index / 1000)] for index in range(10)}
    figure = draw_curves(curves, "Step", "Loss")
    (axes,) = figure.axes
    heights = [text.xy[1] for text in axes.texts if text.get_text() in curves]
    assert len(heights) == 10
    assert min(heights) > -1e-9 and max(heights) < 1 + 1e-9


def test_without_matplotlib_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, figures.__name__)
    with pytest.raises(ImportError, match=r"pip install linformer_hf\[plots\]"):
        importlib.import_module(figures.__name__)
