"""What is made of measured numbers: table, names, crossings, growth, and the lines of figures."""

import pytest

from linformer_hf.benchmark.summary import Row, cost_panels, crossing, growth, row_numbers, speedup_lines, table


SPEEDUPS = [(256, 0.5), (512, 2.0), (1024, 4.0)]


@pytest.mark.parametrize(
    ("points", "where"),
    [
        (SPEEDUPS, 256 * 2**0.5),
        (SPEEDUPS[1:], 512),
        ([(256, 0.5), (512, 0.9)], None),
        ([(256, 1.2), (512, 0.5), (1024, 2.0)], 512 * 2**0.5),
    ],
)
def test_the_crossing_lies_where_a_model_gets_faster_for_good(points, where):
    assert crossing(points) == pytest.approx(where)


def test_growth_is_the_exponent():
    assert growth([(n, 3 * n**1.5) for n in (512, 1024, 8192)]) == pytest.approx(1.5)


def test_a_table_and_numbers_tell_what_is_known():
    row = Row("mlm", 512, 2, "linformer k=8", 8, seconds=0.5, speedup=1.5, predicted=2.0, peak_bytes=2**21)
    failed = Row("mlm", 512, 2, "roberta eager", failure="out of memory")
    first, second = ([cell.strip() for cell in line.split("|")] for line in table([row, failed]).splitlines()[2:])
    assert first == ["", "512", "linformer k=8", "0.5", "1.50", "2.00", "0.75", "2", "", "", "", ""]
    assert second == ["", "512", "roberta eager", "out of memory", "", "", "", "", "", "", "", ""]
    assert row_numbers(row)["mlm_n512_linformer_k8_speedup"] == 1.5
    assert row_numbers(failed) == {}


def test_figures_show_one_sequence_and_both_speedups():
    rows = [
        Row("mlm", n, 1024 // n, "linformer k=8", 8, seconds=2.0, speedup=n / 100, predicted=n / 90)
        for n in (512, 256)
    ]
    assert cost_panels(rows) == {"Seconds a sequence": {"linformer k=8": [(256, 0.5), (512, 1.0)]}}
    assert speedup_lines(rows) == {
        "k = 8": [(256, 2.56), (512, 5.12)],
        "k = 8, by MACs": [(256, 256 / 90), (512, 512 / 90)],
        "roberta sdpa": [(256, 1.0), (512, 1.0)],
    }
    assert speedup_lines([]) == {}
