"""Masks, against the library's own and counting by hand."""

import math

import pytest
import torch
from datasets import Dataset

from linformer_hf.data.blocks import cut_lines, iterate_blocks, pack_blocks
from linformer_hf.data.masking import MaskingCollator, mask_once, unigram_perplexity
from linformer_hf.data.tokenizers import train_tokenizer


SENTENCES = [
    f"The {animal} sees {number} boats on the river." for animal in ("cat", "dog", "owl") for number in range(9)
]


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(SENTENCES, 300, 32)


def test_masks_hide_fifteen_percent_of_which_eighty_become_the_mask_token(tokenizer):
    texts = [f"The cat sees {number} boats on river {number * 7}." for number in range(900)]
    blocks = [block["input_ids"] for block in iterate_blocks(texts, tokenizer, 32)]
    batch = MaskingCollator(tokenizer, 0.15, seed=0)([{"input_ids": block} for block in blocks])
    ids, labels = batch["input_ids"], batch["labels"]
    predicted = labels != -100
    inner = len(blocks) * 30 - sum(block[1:-1].count(2) for block in blocks)  # special tokens are never masked
    share = predicted.sum() / inner
    masked = (ids[predicted] == tokenizer.mask_token_id).float().mean()
    kept = (ids[predicted] == labels[predicted]).float().mean()
    assert len(blocks) > 400
    assert abs(share - 0.15) < 0.01
    assert abs(masked - 0.8) < 0.03
    assert abs(kept - 0.1) < 0.03
    assert (ids[~predicted] == torch.tensor(blocks)[~predicted]).all()


def test_whole_words_are_masked_together(tokenizer):
    examples = list(pack_blocks(Dataset.from_dict({"text": SENTENCES * 9}), tokenizer, 32, keep_offsets=True))
    batch = MaskingCollator(tokenizer, 0.3, whole_word_mask=True, seed=0)(examples)
    predicted = batch["labels"] != -100
    assert predicted.any()
    assert (batch["input_ids"][predicted] == tokenizer.mask_token_id).all()
    for row, example in enumerate(examples):
        spans = [tuple(span) for span in example["offset_mapping"]]
        for left in range(1, 30):
            real = (0, 0) not in (spans[left], spans[left + 1])
            if real and spans[left][1] == spans[left + 1][0]:
                assert predicted[row, left] == predicted[row, left + 1]


def test_a_mask_that_hides_nothing_is_left_out(tokenizer):
    collate = MaskingCollator(tokenizer, 0.15, seed=0)
    full, short = {"input_ids": [0, 9, 9, 2]}, {"input_ids": [0, 9, 2]}
    assert "attention_mask" not in collate([full, full])
    assert collate([full, short])["attention_mask"].tolist() == [[1, 1, 1, 1], [1, 1, 1, 0]]


def test_labelled_examples_are_padded_and_not_masked_again(tokenizer):
    batch = MaskingCollator(tokenizer, 1.0)(
        [{"input_ids": [0, 9, 2], "labels": [-100, 7, -100]}, {"input_ids": [0, 2], "labels": [-100, -100]}]
    )
    assert batch["input_ids"].tolist() == [[0, 9, 2], [0, 2, 1]]
    assert batch["labels"].tolist() == [[-100, 7, -100], [-100, -100, -100]]


def test_held_out_masks_are_fixed_by_the_seed(tokenizer):
    blocks = pack_blocks(Dataset.from_dict({"text": SENTENCES}), tokenizer, 32)
    one, same, other = (mask_once(blocks, tokenizer, 0.15, seed) for seed in (1, 1, 2))
    assert one["labels"] == same["labels"] != other["labels"]


def test_unigram_perplexity_is_counted_as_by_hand():
    held_out = Dataset.from_dict({"input_ids": [[0, 0, 0]], "labels": [[-100, 3, 1]]})
    # frequencies plus one: token 3 stands 2 + 1 times, token 1 once + 1, of 4 + 5 in all
    by_hand = math.exp(-(math.log(3 / 9) + math.log(2 / 9)) / 2)
    assert unigram_perplexity([[3, 3, 1], [2]], held_out, 5) == pytest.approx(by_hand)


def test_masks_follow_from_example_epoch_and_seed_alone(tokenizer):
    blocks = list(iterate_blocks(SENTENCES, tokenizer, 32))
    collate = MaskingCollator(tokenizer, 0.3, seed=1)
    together = collate(blocks)["labels"]
    torch.rand(7)
    alone = torch.cat([collate([block])["labels"] for block in reversed(blocks)]).flip(0)
    assert torch.equal(alone, together)
    collate.epoch.fill_(1)
    assert not torch.equal(collate(blocks)["labels"], together)
    assert not torch.equal(MaskingCollator(tokenizer, 0.3, seed=2)(blocks)["labels"], together)


def test_hiding_all_asks_for_the_same_tokens_and_leaves_none_to_copy(tokenizer):
    blocks = pack_blocks(Dataset.from_dict({"text": SENTENCES}), tokenizer, 32)
    masked, hidden = (mask_once(blocks, tokenizer, 0.3, 1, hide_all=hide_all) for hide_all in (False, True))
    assert masked["labels"] == hidden["labels"]
    for row in hidden:
        asked = [word for word, label in zip(row["input_ids"], row["labels"]) if label != -100]
        assert set(asked) <= {tokenizer.mask_token_id}


@pytest.mark.parametrize("make", [cut_lines, pack_blocks])
def test_frequencies_count_no_token_that_is_never_predicted(tokenizer, make):
    examples = make(Dataset.from_dict({"text": SENTENCES}), tokenizer, 32, keep_offsets=True)
    held_out = mask_once(examples, tokenizer, 0.5, seed=0)
    words = [[token for token in row if token not in tokenizer.all_special_ids] for row in examples["input_ids"]]
    labels = [label for row in held_out["labels"] for label in row if label != -100]
    counts = {token: sum(row.count(token) for row in words) + 1 for token in range(5, len(tokenizer))}
    by_hand = math.exp(-sum(math.log(counts[label] / sum(counts.values())) for label in labels) / len(labels))
    found = unigram_perplexity(examples["input_ids"], held_out, len(tokenizer), tokenizer.all_special_ids)
    assert found == pytest.approx(by_hand)
    assert unigram_perplexity(examples["input_ids"], held_out, len(tokenizer)) > 1.05 * by_hand


def test_a_text_in_which_nothing_is_masked_is_refused():
    held_out = Dataset.from_dict({"input_ids": [[0, 2]], "labels": [[-100, -100]]})
    with pytest.raises(ValueError, match="no token of it is masked"):
        unigram_perplexity([[0, 2]], held_out, 5)
