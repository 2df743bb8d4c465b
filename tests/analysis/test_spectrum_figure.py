"""The figure of a spectrum shows the numbers it is given."""

import numpy as np

from linformer_hf.analysis.figures import draw_spectrum, plot_spectrum


LAYERS, HEADS, RANKS, RANK = 3, 4, 20, 5
SPECTRUM = {
    "cumulative": (
        1 - np.exp(-np.linspace(0.1, 1, LAYERS * HEADS).reshape(LAYERS, HEADS, 1) * np.arange(1, RANKS + 1))
    ),
    "rank": RANK,
}


def test_the_spectrum_shows_means_heads_and_the_heat_map():
    figure = draw_spectrum(SPECTRUM)
    left, right = figure.axes[:2]
    means = {line.get_label(): np.array(line.get_xydata()) for line in left.lines}
    for index, layer in enumerate(SPECTRUM["cumulative"], start=1):
        np.testing.assert_allclose(means[f"layer {index}"][:, 0], np.arange(1, RANKS + 1))
        np.testing.assert_allclose(means[f"layer {index}"][:, 1], layer.mean(0))
    thin = [line.get_ydata() for line in left.lines if line.get_label().startswith("_") and len(line.get_xdata()) > 2]
    np.testing.assert_allclose(thin, SPECTRUM["cumulative"].reshape(-1, RANKS))
    np.testing.assert_allclose(right.images[0].get_array(), SPECTRUM["cumulative"][:, :, RANK - 1].T)
    assert any(f"k = {RANK}" in text.get_text() for text in left.texts)


def test_a_spectrum_of_one_head_in_one_layer_is_written(tmp_path):
    files = plot_spectrum({"cumulative": [[[0.5, 1.0]]], "rank": 1}, tmp_path / "spectrum")
    assert [file.name for file in files if file.stat().st_size] == ["spectrum.png", "spectrum.svg"]
