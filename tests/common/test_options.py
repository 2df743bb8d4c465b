"""Options that would have no effect, and numbers that are out of range."""

import pytest

from linformer_hf.common.options import check_counts, check_share, refuse_unused


def test_an_option_without_effect_is_refused_with_both_names():
    refuse_unused({"short_share": None, "whole_word_mask": False}, "without --short_seq_length")
    with pytest.raises(ValueError, match=r"--short_share is 0\.5, which has no effect without --short_seq_length"):
        refuse_unused({"whole_word_mask": False, "short_share": 0.5}, "without --short_seq_length")
    with pytest.raises(ValueError, match="--projected_length is 16 8, which has no effect"):
        refuse_unused({"projected_length": [16, 8]}, "here")
    with pytest.raises(ValueError, match=r"--short_share is 0\.0"):  # a zero was given, too
        refuse_unused({"short_share": 0.0}, "here")


@pytest.mark.parametrize("share", [-0.1, 1.5])
def test_a_share_lies_between_0_and_1(share):
    check_share("short_share", None)
    check_share("short_share", 1.0)
    with pytest.raises(ValueError, match=f"--short_share is {share}; it must lie between 0 and 1"):
        check_share("short_share", share)


def test_a_count_is_at_least_1():
    check_counts({"batch_size": None, "max_blocks": 1})
    with pytest.raises(ValueError, match="--max_blocks is 0; it must be at least 1"):
        check_counts({"batch_size": 2, "max_blocks": 0})
