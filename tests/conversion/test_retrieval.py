"""What is searched by what, against the same searches by loops and by scikit-learn."""

import numpy as np
import pytest
import torch
from dense_twins import DOCUMENTS, make_dense, make_linformer, make_tokenizer
from sklearn.feature_extraction.text import TfidfVectorizer
from transformers import BertModel

from linformer_hf.conversion.comparison import compare
from linformer_hf.conversion.distances import recall
from linformer_hf.conversion.retrieval import (
    PASSAGE_LENGTH,
    compare_retrieval,
    make_halves,
    make_passages,
    tfidf_tables,
)


TOKENIZER = make_tokenizer()
LONG = [" ".join(DOCUMENTS[start : start + 8]) for start in range(0, len(DOCUMENTS), 8)]
IDS = TOKENIZER(LONG, add_special_tokens=False, verbose=False)["input_ids"]
START, END = TOKENIZER.cls_token_id, TOKENIZER.sep_token_id


def content(block):
    """Return the ids of a block without its frame."""
    ids = block.tolist()
    assert ids[0] == START and ids[-1] == END
    return ids[1:-1]


def test_pairs_of_halves_are_taken_from_all_documents_in_turn():
    firsts, seconds = make_halves(TOKENIZER, [*IDS, IDS[0][:50]], 22, 999)
    expected = []
    for start in range(0, max(map(len, IDS)), 40):
        for ids in [*IDS, IDS[0][:50]]:
            if len(ids) >= start + 40:
                expected.append((ids[start : start + 20], ids[start + 20 : start + 40]))
    assert [(content(first), content(second)) for first, second in zip(firsts, seconds)] == expected
    assert len(expected) > 3 * len(LONG)
    few = make_halves(TOKENIZER, IDS, 22, 5)[0]
    assert [content(row) for row in few] == [ids[:20] for ids in IDS[:5]]
    assert make_halves(TOKENIZER, [[7] * 39], 22, 5)[0].shape == (0, 22)


def test_passages_stand_in_their_text_behind_what_the_dense_model_reads():
    made = make_passages(TOKENIZER, IDS, 130, 32, 6)
    assert made.texts.shape == (6, 130) and made.passages.shape == (24, PASSAGE_LENGTH)
    for passage, source in zip(made.passages, made.sources):
        whole, part = content(made.texts[source]), content(passage)
        places = [at for at in range(len(whole)) if whole[at : at + len(part)] == part]
        assert places and min(places) >= 32
    firsts = [content(passage)[0] for passage in made.passages[:4]]
    assert firsts == [content(made.texts[0])[at] for at in (32, 43, 54, 66)]


@pytest.mark.parametrize(("length", "most"), [(95, 9), (32, 9), (130, 1)])
def test_without_room_or_texts_there_are_no_passages(length, most):
    assert make_passages(TOKENIZER, IDS, length, 32, most) is None


def test_a_passage_is_not_taken_twice_where_there_is_room_for_few():
    made = make_passages(TOKENIZER, IDS, 32 + PASSAGE_LENGTH, 32, 6)
    assert made.sources.tolist() == [0, 1, 2, 3, 4, 5]
    assert [content(row) for row in made.passages] == [content(row)[32:] for row in made.texts]


def test_passages_are_searched_as_loops_do():
    table = torch.randn(len(TOKENIZER), 5, generator=torch.Generator().manual_seed(0))

    def embed(blocks):
        return table[blocks].mean(1)

    found = compare_retrieval(TOKENIZER, IDS, 130, 32, 6, {"dense": embed, "linformer": lambda ids: embed(ids[:, :9])})
    made = make_passages(TOKENIZER, IDS, 130, 32, 6)
    assert (found["passages"], found["passage_texts"]) == (24, 6)
    cut = [[START, *content(text)[:30], END] for text in made.texts]
    searched = {
        "dense": (made.passages.tolist(), made.texts.tolist()),
        "dense_cut": (made.passages.tolist(), cut),
        "linformer": (made.passages[:, :9].tolist(), made.texts[:, :9].tolist()),
    }
    for name, sides in searched.items():
        queries, keys = (np.array([table[ids].mean(0).numpy() for ids in side]) for side in sides)
        queries, keys = (side / np.linalg.norm(side, axis=1, keepdims=True) for side in (queries, keys))
        hits = [int(np.argmax(keys @ query)) == at // 4 for at, query in enumerate(queries)]
        assert found[f"{name}_passage_recall_at_1"] == pytest.approx(np.mean(hits)), name
    texts, passages = ([TOKENIZER.decode(content(row)) for row in rows] for rows in (made.texts, made.passages))
    vectorizer = TfidfVectorizer(sublinear_tf=True, token_pattern=r"\w+|[^\w\s]").fit(texts)
    similar = (vectorizer.transform(passages) @ vectorizer.transform(texts).T).toarray()
    assert found["tfidf_passage_recall_at_1"] == pytest.approx(np.mean(similar.argmax(1) == made.sources.numpy()))


def test_words_are_counted_without_the_frame():
    made = make_passages(TOKENIZER, IDS, 130, 32, 6)
    passages, texts = tfidf_tables(TOKENIZER, made)
    words = [TOKENIZER.decode(content(row)) for row in made.texts]
    vectorizer = TfidfVectorizer(sublinear_tf=True, token_pattern=r"\w+|[^\w\s]").fit(words)
    np.testing.assert_allclose(texts, vectorizer.transform(words).toarray())
    np.testing.assert_allclose(
        passages.sum(0) > 0,
        vectorizer.transform([TOKENIZER.decode(content(row)) for row in made.passages]).toarray().sum(0) > 0,
    )


def test_texts_of_unknown_words_alone_are_searched_too():
    unknown = [[TOKENIZER.unk_token_id] * 128] * 2

    def embed(blocks):
        return blocks[:, :2].float()

    found = compare_retrieval(TOKENIZER, unknown, 130, 32, 6, {"dense": embed})
    assert found["tfidf_passage_recall_at_1"] == 0.5


def test_a_comparison_searches_by_passages_where_it_reads_more_than_the_dense_model():
    dense = make_dense(BertModel, TOKENIZER)
    linformer = make_linformer(dense, max_position_embeddings=130, projected_length=16)
    found = compare(dense, linformer, TOKENIZER, LONG, lengths=[32, 130], rounds=1, max_blocks=6)
    assert "passages" not in found[32]
    names = ("dense", "dense_cut", "linformer", "tfidf")
    assert all(0 <= found[130][f"{name}_passage_recall_at_1"] <= 1 for name in names)
    assert found[130]["passages"] == 24


def test_a_query_finds_its_source():
    keys = torch.eye(3)
    queries = torch.tensor([[0.0, 1.0, 0.1], [0.0, 0.9, 1.0], [1.0, 0.0, 0.0], [0.0, 0.0, 2.0]])
    assert recall(queries, keys, torch.tensor([1, 1, 0, 2])) == 0.75
    assert recall(keys, keys) == 1.0
