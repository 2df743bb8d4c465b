"""Tables in Markdown."""

import pytest

from linformer_hf.common.markdown import markdown_table


def test_a_table_is_aligned_and_escapes_bars():
    assert markdown_table(["n", "model"], [["512", "a|b"], ["4", "linformer"]]).splitlines() == [
        "| n   | model     |",
        "| --- | --------- |",
        r"| 512 | a\|b      |",
        "| 4   | linformer |",
    ]


def test_a_table_may_have_no_rows():
    assert markdown_table(["run"], []) == "| run |\n| --- |"


def test_a_row_of_another_length_is_refused():
    with pytest.raises(ValueError, match=r"has 1 cells, \['512'\], but the header has 2"):
        markdown_table(["n", "model"], [["512"]])
