"""Figures: they show the numbers they are given, and equal figures give equal bytes."""

import importlib
import subprocess
import sys

import numpy as np
import pytest

from linformer_hf.common import figures
from linformer_hf.common.figures import draw_curves, plot_curves


CURVES = {"training": [(0, 5.0), (10, 3.0), (20, 2.5)], "held out": [(0, 5.5), (20, 3.5)]}


def test_a_figure_is_written_twice_with_the_same_bytes(tmp_path):
    first, second = (
        plot_curves(CURVES, tmp_path / folder / "a.figure", "Step", "Loss") for folder in ("first", "second")
    )
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


def test_curves_show_their_points_and_their_names():
    figure = draw_curves(CURVES, "Step", "Loss, nats a token")
    (axes,) = figure.axes
    lines = {line.get_label(): np.array(line.get_xydata()) for line in axes.lines}
    for label, points in CURVES.items():
        np.testing.assert_allclose(lines[label], points)
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == list(CURVES)
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("Step", "Loss, nats a token")


def test_the_legend_of_many_curves_lies_beside_the_axes_and_inside_the_figure():
    figure = draw_curves({f"run {index}": [(0, 1), (1, index)] for index in range(10)}, "Step", "Loss")
    figure.draw_without_rendering()
    (axes,), (legend,) = figure.axes, figure.legends
    box = legend.get_window_extent()
    assert axes.get_window_extent().x1 < box.x0
    assert figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1 and figure.bbox.y0 <= box.y0
    assert len({line.get_marker() for line in axes.lines}) == 6  # colours alone are too much alike


def test_points_are_marked_where_they_are_few():
    many = [(step, step) for step in range(31)]
    few, dense = draw_curves({"few": many[:30], "dense": many}, "Step", "Loss").axes[0].lines
    assert few.get_marker() not in ("None", None)
    assert dense.get_marker() in ("None", None)


@pytest.mark.parametrize("module", ["common.figures", "analysis.figures", "benchmark.figures"])
def test_without_matplotlib_the_error_names_the_extra(monkeypatch, module):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for name in (figures.__name__, f"linformer_hf.{module}"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(ImportError, match=r"pip install linformer_hf\[plots\]"):
        importlib.import_module(f"linformer_hf.{module}")
