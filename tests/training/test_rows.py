"""Labelled rows as examples: which splits a task needs, how texts are cut and batches padded."""

import pytest
from datasets import Dataset
from finetuning_tasks import VOCABULARY, training

from linformer_hf.data.glue import TASKS
from linformer_hf.data.tokenizers import train_tokenizer
from linformer_hf.training.rows import asked_purposes, cut_texts, layout_of, make_collator


TOKENIZER = train_tokenizer([" ".join(VOCABULARY)] * 3, vocab_size=330, max_length=32)


def test_columns_that_are_named_win_over_those_of_a_task():
    layout = layout_of(TASKS["mrpc"], "first", None, None)
    assert layout.texts == ("first", "sentence2")
    assert layout.labels == ("label",)
    assert layout_of(None, None, "reply", ["a", "b"]).texts == ("text", "reply")
    assert layout_of(None, None, "reply", ["a", "b"]).labels == ("a", "b")


def test_the_diagnostic_set_only_answers(tmp_path):
    layout = layout_of(TASKS["ax"], None, None, None)
    only = training(tmp_path, do_train=False, do_eval=False, do_predict=True)
    assert asked_purposes(only, layout) == ["test"]
    with pytest.raises(ValueError, match="fine-tune on mnli"):
        asked_purposes(training(tmp_path), layout)


def test_texts_are_cut_and_missing_ones_are_empty(caplog):
    table = Dataset.from_dict({"text": ["good " * 40, "bad", None], "labels": [0, 1, 0]})
    with caplog.at_level("INFO", logger="linformer_hf"):
        examples = cut_texts(table, ["text"], TOKENIZER, 6, "train")
    assert [len(ids) for ids in examples["input_ids"]] == list(examples["length"])
    assert examples["length"][0] == 6 and examples["length"][2] == 2
    assert list(examples["labels"]) == [0, 1, 0]
    assert "1 of 3 rows for train fill all 6 tokens; the longer ones are cut." in caplog.messages


@pytest.mark.parametrize(("num_tokens", "longest", "width"), [(32, 32, 16), (9, 9, 9), (9, 32, 16)])
def test_batches_are_padded_to_a_multiple_of_8_and_never_beyond_what_the_model_reads(num_tokens, longest, width):
    texts = Dataset.from_dict({"text": ["good " * 6 + "good", "bad"], "labels": [0, 1]})
    examples = cut_texts(texts, ["text"], TOKENIZER, num_tokens, "train").remove_columns("length")
    longest_row = max(map(len, examples["input_ids"]))
    assert longest_row == 9
    batch = make_collator(TOKENIZER, num_tokens, longest)(list(examples))
    assert batch["input_ids"].shape == (2, width)
