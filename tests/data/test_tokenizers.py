"""Tokenizers that are trained, and those of others, complete and incomplete."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from linformer_hf.data.blocks import iterate_blocks
from linformer_hf.data.tokenizers import load_tokenizer, train_tokenizer


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


def test_words_split_beforehand_are_the_tokens_of_the_sentence(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    for one in (tokenizer, AutoTokenizer.from_pretrained(tmp_path)):
        words = ["The", "cat", "sees", "boats"]
        split = one(words, is_split_into_words=True)
        assert split["input_ids"] == one(" ".join(words))["input_ids"]
        assert one.convert_ids_to_tokens(one(["boats"], is_split_into_words=True)["input_ids"])[1:-1] == ["Ġboats"]
        assert split.word_ids()[1:-1] == sorted(split.word_ids()[1:-1])


def test_no_blank_is_put_behind_a_mask(tokenizer):
    assert tokenizer.tokenize("The cat<mask>.") == ["ĠThe", "Ġcat", "<mask>", "."]
    assert tokenizer.tokenize("<mask> boats") == ["<mask>", "Ġboats"]


@pytest.mark.parametrize(
    "text", ["a", "two  blanks", "line\n  and line", "tab\t", "trailing ", "def f():\n    pass\n"]
)
def test_a_text_comes_back_as_it_was(tokenizer, text):
    assert tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True) == text


def words_only(**special):
    """A tokenizer that adds no tokens of its own."""
    words = {token: number for number, token in enumerate(["[UNK]", "[PAD]", "<b>", "<e>", "the", "cat"])}
    backend = Tokenizer(WordLevel(words, unk_token="[UNK]"))
    backend.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]", pad_token="[PAD]", **special)


@pytest.mark.parametrize("names", [("cls_token", "sep_token"), ("bos_token", "eos_token")])
def test_a_tokenizer_without_post_processor_frames_texts_with_the_tokens_it_has(tmp_path, names):
    special = dict(zip(names, ("<b>", "<e>")))
    words_only(**special).save_pretrained(tmp_path / "words")
    tokenizer = load_tokenizer(str(tmp_path / "words"))
    assert tokenizer("the cat")["input_ids"] == [2, 4, 5, 3]
    assert tokenizer("the", "cat")["input_ids"] == [2, 4, 3, 5, 3]
    tokenizer.save_pretrained(tmp_path / "again")
    assert AutoTokenizer.from_pretrained(tmp_path / "again")("the cat")["input_ids"] == [2, 4, 5, 3]
    assert list(iterate_blocks(["the cat"], words_only(**special), 4)) == [{"input_ids": [2, 4, 5, 3]}]


def test_a_tokenizer_without_start_and_end_is_refused_with_the_repair(tmp_path):
    words_only().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="no token for the start or the end of a text: add them.*cls_token"):
        list(iterate_blocks(["the cat"], load_tokenizer(str(tmp_path)), 4))


@pytest.mark.parametrize(("needs", "message"), [("mask", "no mask token, so it cannot mask words"), ("pad", "no pad")])
def test_a_special_token_that_is_needed_and_missing_is_named(tmp_path, needs, message):
    tokenizer = words_only()
    tokenizer.pad_token = None
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=message):
        load_tokenizer(str(tmp_path), needs=(needs,))


@pytest.mark.parametrize("words", [["the", "The"], ["the", "cat"]])
def test_a_folder_with_nothing_but_a_vocabulary_loads(tmp_path, words):
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]) + "\n")
    tokenizer = load_tokenizer(str(tmp_path), needs=("mask", "pad"))
    assert tokenizer("The")["input_ids"] == [2, 6 if "The" in words else 5, 3]


def test_a_vocabulary_without_special_tokens_is_refused(tmp_path):
    (tmp_path / "vocab.txt").write_text("the\n[UNK]\n")
    with pytest.raises(ValueError, match=r"vocab.txt lacks the special tokens \[CLS\], \[SEP\], \[PAD\], \[MASK\]"):
        load_tokenizer(str(tmp_path))


def test_a_folder_with_the_files_of_roberta_loads(tokenizer, tmp_path):
    tokenizer.backend_tokenizer.model.save(str(tmp_path))
    loaded = load_tokenizer(str(tmp_path), needs=("mask",))
    assert loaded.tokenize(" boats") == ["Ġboats"]


@pytest.mark.parametrize("files", [{}, {"config.json": '{"model_type": "bert"}'}, {"tokenizer.json": "{"}])
def test_a_folder_without_a_tokenizer_says_what_is_missing(tmp_path, files):
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match="holds no tokenizer that loads.*tokenizer.json, vocab.txt") as refusal:
        load_tokenizer(str(tmp_path))
    assert "sentencepiece" not in str(refusal.value) and "\n" not in str(refusal.value)


def test_the_vocabulary_that_public_reports_suggest_loads():
    folder = Path(__file__).parents[3] / "shared" / "data" / "inputs" / "tokenizer_vocab_only"
    if not folder.is_dir():
        pytest.skip("the inputs lie in ../shared/data/inputs beside the repository, which is not there")
    tokenizer = load_tokenizer(str(folder), needs=("mask", "pad"))
    assert tokenizer.tokenize("The") == ["The"]
