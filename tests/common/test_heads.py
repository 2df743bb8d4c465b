"""The one table of heads."""

import pytest

from linformer_hf.common import heads
from linformer_hf.common.heads import HEADS, NO_HEAD, head_named, head_of_checkpoint, head_of_class, head_of_pipeline


@pytest.mark.parametrize("head", HEADS, ids=lambda head: head.name)
def test_a_head_is_found_by_each_of_its_names(head):
    assert head_named(head.name) is head
    assert head_of_pipeline(head.pipeline_tag) is head
    for family in ("Linformer", "Bert", "Roberta"):
        assert head_of_class(f"{family}{head.suffix}") is head
    assert head_of_checkpoint([head.linformer_class.__name__]) is head


def test_a_head_that_there_is_not_is_none_or_refused():
    assert head_of_checkpoint(None) is head_of_class("BertForNextSentencePrediction") is NO_HEAD
    with pytest.raises(ValueError, match="--head is 'tail'; it must be one of none, masked_lm"):
        head_named("tail")
    assert heads.shared_head(heads.MASKED_LM, heads.MASKED_LM) is heads.MASKED_LM
    assert heads.shared_head(heads.MASKED_LM, heads.TOKEN_CLASSIFICATION) is NO_HEAD
    assert heads.shared_head(heads.QUESTION_ANSWERING, heads.QUESTION_ANSWERING) is NO_HEAD
