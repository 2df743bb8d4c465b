"""Text into examples, against counting by hand and the library's own masks."""

import math

import pytest
import torch
from datasets import Dataset

from linformer_hf.data.blocks import (
    MaskingCollator,
    cut_lines,
    mask_once,
    pack_blocks,
    train_tokenizer,
    unigram_perplexity,
)


SENTENCES = [
    f"The {animal} sees {number} boats on the river." for animal in ("cat", "dog", "owl") for number in range(9)
]


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(SENTENCES, 300, 32)


def test_a_tokenizer_has_robertas_special_tokens_and_gives_text_back(tokenizer):
    ids = tokenizer("The cat sees <mask> boats.")["input_ids"]
    assert [tokenizer.convert_tokens_to_ids(token) for token in ("<s>", "<pad>", "</s>", "<unk>", "<mask>")] == [
        *range(5)
    ]
    assert (ids[0], ids[-1], ids.count(tokenizer.mask_token_id)) == (0, 2, 1)
    assert tokenizer.decode(tokenizer("Größe, naïve 😀")["input_ids"], skip_special_tokens=True) == "Größe, naïve 😀"


def test_the_mask_takes_the_blank_before_it(tokenizer):
    with_blank = tokenizer("The cat <mask> boats")["input_ids"]
    assert with_blank == tokenizer("The cat<mask> boats")["input_ids"]


def test_a_vocabulary_without_room_for_the_bytes_is_refused():
    with pytest.raises(ValueError, match="260.*261"):
        train_tokenizer(SENTENCES, 260, 32)


@pytest.mark.parametrize("num_tokens", [7, 32, 33])
def test_blocks_hold_the_documents_in_order_and_exactly_n_tokens(tokenizer, num_tokens):
    blocks = pack_blocks(tokenizer, num_tokens)({"text": SENTENCES})["input_ids"]
    stream = [
        token
        for sentence in SENTENCES
        for token in [*tokenizer(sentence, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
    ]
    assert len(blocks) == len(stream) // (num_tokens - 2)
    assert all(len(block) == num_tokens and (block[0], block[-1]) == (0, 2) for block in blocks)
    assert [token for block in blocks for token in block[1:-1]] == stream[: len(blocks) * (num_tokens - 2)]


def test_text_shorter_than_a_block_gives_none(tokenizer):
    assert pack_blocks(tokenizer, 512)({"text": SENTENCES[:2]})["input_ids"] == []


def test_lines_are_cut_to_n_tokens(tokenizer):
    lines = cut_lines(tokenizer, 8)({"text": SENTENCES})["input_ids"]
    assert len(lines) == len(SENTENCES)
    assert max(map(len, lines)) == 8


def test_masks_hide_fifteen_percent_of_which_eighty_become_the_mask_token(tokenizer):
    texts = [f"The cat sees {number} boats on river {number * 7}." for number in range(900)]
    blocks = pack_blocks(tokenizer, 32)({"text": texts})["input_ids"]
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
    packed = pack_blocks(tokenizer, 32, keep_offsets=True)({"text": SENTENCES * 9})
    examples = [{"input_ids": ids, "offset_mapping": spans} for ids, spans in zip(*packed.values())]
    batch = MaskingCollator(tokenizer, 0.3, whole_word_mask=True, seed=0)(examples)
    predicted = batch["labels"] != -100
    assert predicted.any()
    assert (batch["input_ids"][predicted] == tokenizer.mask_token_id).all()
    for row, example in enumerate(examples):
        spans = example["offset_mapping"]
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
    blocks = Dataset.from_dict(pack_blocks(tokenizer, 32)({"text": SENTENCES}))
    one, same, other = (mask_once(blocks, tokenizer, 0.15, seed) for seed in (1, 1, 2))
    assert one["labels"] == same["labels"] != other["labels"]


def test_unigram_perplexity_is_counted_as_by_hand():
    held_out = Dataset.from_dict({"input_ids": [[0, 0, 0]], "labels": [[-100, 3, 1]]})
    # frequencies plus one: token 3 stands 2 + 1 times, token 1 once + 1, of 4 + 5 in all
    by_hand = math.exp(-(math.log(3 / 9) + math.log(2 / 9)) / 2)
    assert unigram_perplexity([[3, 3, 1], [2]], held_out, 5) == pytest.approx(by_hand)


def test_masks_follow_from_example_epoch_and_seed_alone(tokenizer):
    blocks = [{"input_ids": ids} for ids in pack_blocks(tokenizer, 32)({"text": SENTENCES})["input_ids"]]
    collate = MaskingCollator(tokenizer, 0.3, seed=1)
    together = collate(blocks)["labels"]
    torch.rand(7)
    alone = torch.cat([collate([block])["labels"] for block in reversed(blocks)]).flip(0)
    assert torch.equal(alone, together)
    collate.epoch.fill_(1)
    assert not torch.equal(collate(blocks)["labels"], together)
    assert not torch.equal(MaskingCollator(tokenizer, 0.3, seed=2)(blocks)["labels"], together)


def test_hiding_all_asks_for_the_same_tokens_and_leaves_none_to_copy(tokenizer):
    blocks = Dataset.from_dict(pack_blocks(tokenizer, 32)({"text": SENTENCES}))
    masked, hidden = (mask_once(blocks, tokenizer, 0.3, 1, hide_all=hide_all) for hide_all in (False, True))
    assert masked["labels"] == hidden["labels"]
    for row in hidden:
        asked = [word for word, label in zip(row["input_ids"], row["labels"]) if label != -100]
        assert set(asked) <= {tokenizer.mask_token_id}
