"""What a comparison reports, against the same numbers computed by hand."""

import json

import numpy as np
import pytest
import torch
from conftest import random_like
from dense_twins import DOCUMENTS, make_dense, make_linformer, make_tokenizer, save
from doors import run_here
from transformers import BertForMaskedLM, BertForSequenceClassification, BertModel

import linformer_hf.conversion.comparison
from linformer_hf.common.markdown import written
from linformer_hf.conversion.comparison import (
    ComparisonArguments,
    compare,
    compare_models,
    default_lengths,
    make_blocks,
    mask_blocks,
)
from linformer_hf.conversion.comparison_page import cells, measures
from linformer_hf.conversion.retrieval import make_halves


TOKENIZER = make_tokenizer()
QUICK = {"rounds": 1, "max_blocks": 12}


def states_of(model, ids):
    """Return the last states of each text, read on its own, as lists of numpy tables."""
    with torch.no_grad():
        return [model.base_model(input_ids=row[None]).last_hidden_state[0].double().numpy() for row in ids]


def cosine(first, second):
    return first @ second / np.linalg.norm(first) / np.linalg.norm(second)


@pytest.fixture(scope="module")
def word_models():
    dense = make_dense(BertForMaskedLM, TOKENIZER)
    linformer = make_linformer(dense)
    weight = linformer.lm_head.dense.weight.data
    weight.add_(0.2 * random_like(weight))  # or both would name the same words
    return dense, linformer


def test_a_model_agrees_with_itself(word_models):
    dense, _ = word_models
    for length, found in compare(dense, dense, TOKENIZER, DOCUMENTS, lengths=(16, 32), **QUICK).items():
        for name in ("embedding_cosine", "embedding_cosine_p5", "similarity_correlation"):
            assert found[name] == pytest.approx(1.0, abs=1e-5), (length, name)
        assert found["top1_agreement"] == found["top5_agreement"] == 1.0
        assert found["dense_recall_at_1"] == found["linformer_recall_at_1"]
        assert found["dense_peak_memory_bytes"] == found["linformer_peak_memory_bytes"] > 0
        assert found["dense_windows"] == 1


def test_the_identity_agrees_with_the_dense_model():
    dense = make_dense(BertForSequenceClassification, TOKENIZER, num_labels=5)
    linformer = make_linformer(dense, projected_length=32)
    found = compare(dense, linformer, TOKENIZER, DOCUMENTS, lengths=[32], **QUICK)[32]
    assert found["embedding_cosine_p5"] == pytest.approx(1.0, abs=1e-5)
    assert found["label_agreement"] == 1.0
    linformer.classifier.output.bias.data[1] += 100
    labels = labels_of(dense, make_blocks(TOKENIZER, DOCUMENTS, 32, 12))
    found = compare(dense, linformer, TOKENIZER, DOCUMENTS, lengths=[32], **QUICK)[32]
    assert found["label_agreement"] == pytest.approx(np.mean(np.array(labels) == 1))


def labels_of(model, blocks):
    with torch.no_grad():
        return [int(model(input_ids=row[None]).logits.argmax()) for row in blocks]


def test_embeddings_are_compared_as_numpy_does(word_models):
    dense, linformer = word_models
    found = compare(dense, linformer, TOKENIZER, DOCUMENTS, lengths=[24], **QUICK)[24]
    blocks = make_blocks(TOKENIZER, DOCUMENTS, 24, 12)
    assert found["blocks"] == len(blocks) == 12
    ours, theirs = ([states.mean(0) for states in states_of(model, blocks)] for model in (linformer, dense))
    cosines = [cosine(mine, wanted) for mine, wanted in zip(ours, theirs)]
    assert found["embedding_cosine"] == pytest.approx(np.mean(cosines), rel=1e-4)
    assert found["embedding_cosine_p5"] == pytest.approx(np.percentile(cosines, 5), rel=1e-4)
    pairs = [(i, j) for i in range(12) for j in range(i)]
    mine, wanted = ([cosine(table[i], table[j]) for i, j in pairs] for table in (ours, theirs))
    assert found["similarity_correlation"] == pytest.approx(np.corrcoef(mine, wanted)[0, 1], rel=1e-4)


def test_masked_words_are_compared_as_loops_do(word_models):
    dense, linformer = word_models
    found = compare(dense, linformer, TOKENIZER, DOCUMENTS, lengths=[32], seed=3, **QUICK)[32]
    masked = mask_blocks(TOKENIZER, make_blocks(TOKENIZER, DOCUMENTS, 32, 12), seed=3)
    first, among_five = [], []
    for row, labels in zip(masked["input_ids"], masked["labels"]):
        with torch.no_grad():
            ours, theirs = (model(input_ids=row[None]).logits[0].numpy() for model in (linformer, dense))
        for place in np.flatnonzero(labels.numpy() != -100):
            assert row[place] == TOKENIZER.mask_token_id
            ranking = list(np.argsort(-ours[place])[:5])
            first.append(ranking[0] == theirs[place].argmax())
            among_five.append(theirs[place].argmax() in ranking)
    assert len(first) > 20
    assert found["top1_agreement"] == pytest.approx(np.mean(first))
    assert found["top5_agreement"] == pytest.approx(np.mean(among_five))
    assert found["top1_agreement"] < found["top5_agreement"]


def test_second_halves_are_searched_by_first_halves(word_models):
    dense, linformer = word_models
    found = compare(dense, linformer, TOKENIZER, DOCUMENTS, lengths=[32], **QUICK)[32]
    documents = TOKENIZER(DOCUMENTS, add_special_tokens=False)["input_ids"]
    halves = make_halves(TOKENIZER, documents, 32, 12)
    whole = TOKENIZER(DOCUMENTS[0], add_special_tokens=False)["input_ids"]
    assert halves[0][0, 1:-1].tolist() + halves[1][0, 1:-1].tolist() == whole[:60]
    for name, model in (("dense", dense), ("linformer", linformer)):
        queries, keys = ([states.mean(0) for states in states_of(model, half)] for half in halves)
        hits = [np.argmax([cosine(query, key) for key in keys]) == row for row, query in enumerate(queries)]
        assert found[f"{name}_recall_at_1"] == pytest.approx(np.mean(hits))
    assert found["retrieval_pairs"] == len(halves[0]) == 12


def test_documents_too_short_for_two_halves_leave_retrieval_out(word_models):
    found = compare(*word_models, TOKENIZER, ["A cat and a dog."] * 40, lengths=[32], **QUICK)[32]
    assert "retrieval_pairs" not in found and "dense_recall_at_1" not in found


def test_a_dense_model_reads_longer_text_in_windows_that_are_averaged():
    dense = make_dense(BertModel, TOKENIZER)
    linformer = make_linformer(dense, max_position_embeddings=64, projected_length=16)
    found = compare(dense, linformer, TOKENIZER, DOCUMENTS, lengths=[62], **QUICK)[62]
    blocks = make_blocks(TOKENIZER, DOCUMENTS, 62, 12)
    start, end = blocks[:, :1], blocks[:, -1:]
    firsts = states_of(dense, torch.cat([blocks[:, :31], end], 1))
    seconds = states_of(dense, torch.cat([start, blocks[:, 31:]], 1))
    theirs = [(first.mean(0) + second.mean(0)) / 2 for first, second in zip(firsts, seconds)]
    ours = [states.mean(0) for states in states_of(linformer, blocks)]
    expected = np.mean([cosine(mine, wanted) for mine, wanted in zip(ours, theirs)])
    assert found["dense_windows"] == 2
    assert found["embedding_cosine"] == pytest.approx(expected, rel=1e-4)


def test_times_are_medians_over_rounds(word_models, monkeypatch):
    seconds = {"dense": [3.0, 9.0, 4.0], "linformer": [1.0, 2.0, 4.0]}
    monkeypatch.setattr(linformer_hf.conversion.comparison, "seconds_in_turns", lambda *_: seconds)
    found = compare(*word_models, TOKENIZER, DOCUMENTS, lengths=[32], rounds=3, batch_size=4)[32]
    assert (found["dense_seconds"], found["linformer_seconds"], found["speedup"]) == (4.0, 2.0, 3.0)
    for name in ("dense", "linformer"):
        assert found[f"{name}_tokens_per_second"] == pytest.approx(4 * 32 / found[f"{name}_seconds"])


def test_counts_below_one_are_refused(word_models):
    with pytest.raises(ValueError, match="--rounds is 0"):
        compare(*word_models, TOKENIZER, DOCUMENTS, lengths=[16], rounds=0)


@pytest.mark.parametrize(
    ("lengths", "texts", "message"),
    [
        ([16, 33], DOCUMENTS, "--lengths has 33; the Linformer reads 32 tokens"),
        ([4], DOCUMENTS, "--lengths has 4; it must be 8 or more"),
        ([32], ["A cat."], "fills 0 blocks of 32 tokens.*takes 3"),
    ],
)
def test_lengths_that_do_not_fit_are_refused(word_models, lengths, texts, message):
    with pytest.raises(ValueError, match=message):
        compare(*word_models, TOKENIZER, texts, lengths=lengths)


@pytest.fixture(scope="module")
def folders(word_models, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    (folder / "corpus.txt").write_text("\n".join(DOCUMENTS) + "\n")
    for name, model in zip(("dense", "linformer"), word_models):
        save(model, TOKENIZER, folder / name)
    return folder


def arguments(folders, output_dir, **changes):
    return ComparisonArguments(
        dense_name_or_path=str(folders / "dense"),
        model_name_or_path=str(folders / "linformer"),
        output_dir=str(output_dir),
        **{"validation_file": [str(folders / "corpus.txt")], "lengths": [16, 32], "rounds": 1, **changes},
    )


def test_a_comparison_leaves_its_record_and_may_be_repeated(folders, word_models, tmp_path):
    expected = compare(*word_models, TOKENIZER, DOCUMENTS, lengths=(16, 32), rounds=1)
    for _ in range(2):
        numbers = compare_models(arguments(folders, tmp_path / "out"))
        record = json.loads((tmp_path / "out" / "results.json").read_text())
        assert record["numbers"]["embedding_cosine_32"] == numbers[32]["embedding_cosine"]
        assert numbers[32]["top1_agreement"] == expected[32]["top1_agreement"]
        assert record["about"]["dense_model"]["model_type"] == "bert"
        page = (tmp_path / "out" / "README.md").read_text()
        assert page.startswith("# linformer beside dense\n\n| tokens ") and record["command"] in page
        rows = {cells[1].strip(): cells[2:-1] for line in page.splitlines() if len(cells := line.split("|")) > 3}
        assert [float(cell) for cell in rows["tokens"]] == [16, 32]
        assert list(rows)[2:] == [name.replace("_", " ") for name in numbers[32]]
        for name, value in numbers[32].items():
            assert rows[name.replace("_", " ")][1].strip() == written(value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lengths": [7]}, "--lengths has 7; it must be 8 or more"),
        ({"max_blocks": 2}, "--max_blocks is 2; a comparison takes 3"),
        ({"batch_size": 0}, "--batch_size is 0"),
        ({"seed": -1}, "--seed is -1; it must lie between 0 and 4294967295"),
        ({"validation_file": ["nowhere.txt"]}, "nowhere.txt"),
        ({"output_dir": "corpus.txt/below"}, "corpus.txt is no folder"),
    ],
)
def test_mistakes_are_found_before_a_model_is_loaded(folders, tmp_path, monkeypatch, changes, message):
    monkeypatch.setattr(linformer_hf.conversion.comparison, "load_whole", None)
    monkeypatch.chdir(folders)
    given = arguments(folders, changes.pop("output_dir", tmp_path / "out"), **changes)
    with pytest.raises(ValueError, match=message):
        compare_models(given)


@pytest.mark.parametrize(
    ("dense", "linformer", "message"),
    [
        ("linformer", "dense", "dense is a bert, not a Linformer"),
        ("dense", "dense", "dense is a bert, not a Linformer"),
        ("linformer", "linformer", "linformer is a linformer; take the dense encoder"),
        ("wide", "linformer", "`hidden_size` is 16 in .* and 24 in"),
    ],
)
def test_only_a_linformer_and_a_dense_encoder_like_its_parent_are_compared(
    folders, tmp_path, dense, linformer, message
):
    if dense == "wide":
        save(make_dense(BertModel, TOKENIZER, hidden_size=24), TOKENIZER, folders / "wide")
    given = arguments(folders, tmp_path / "out")
    given.dense_name_or_path, given.model_name_or_path = str(folders / dense), str(folders / linformer)
    with pytest.raises(ValueError, match=message):
        compare_models(given)


def test_a_second_call_adds_lengths_and_never_takes_numbers_of_other_models(folders, tmp_path):
    for length in (32, 16):
        compare_models(arguments(folders, tmp_path / "out", lengths=[length]))
    page = (tmp_path / "out" / "README.md").read_text()
    header = next(line for line in page.splitlines() if line.startswith("| tokens"))
    assert header.split("|")[2:4] == [
        f" {16:<{len(header.split('|')[2]) - 2}} ",
        f" {32:<{len(header.split('|')[3]) - 2}} ",
    ]
    record = json.loads((tmp_path / "out" / "results.json").read_text())
    assert {"embedding_cosine_16", "embedding_cosine_32"} <= record["numbers"].keys() and len(record["calls"]) == 2
    given = arguments(folders, tmp_path / "out")
    given.model_name_or_path = str(folders / "another")
    with pytest.raises(
        ValueError, match="out holds a comparison with --model_name_or_path .*linformer, and this call"
    ):
        compare_models(given)


def test_a_page_has_the_title_and_the_note_that_are_given(folders, tmp_path):
    compare_models(arguments(folders, tmp_path / "out", lengths=[32], title="Two models", note="On two lines."))
    page = (tmp_path / "out" / "README.md").read_text()
    assert page.startswith("# Two models\n\nOn two lines.\n\n| tokens")


def test_numbers_that_come_at_some_lengths_stand_where_they_are_measured():
    numbers = {1: {"a": 1, "c": 3, "e": 5}, 2: {"a": 1, "b": 2, "c": 3}, 3: {"c": 3, "d": 4, "e": 5}}
    assert measures(numbers) == ["a", "b", "c", "d", "e"]
    assert cells(numbers, "d") == ["-", "-", "4"]


def test_without_lengths_short_ones_and_the_longest_are_compared(folders, tmp_path):
    assert list(compare_models(arguments(folders, tmp_path / "out", lengths=None))) == [16, 32]
    assert default_lengths(512) == [16, 64, 128, 256, 512]
    assert default_lengths(2500) == [16, 64, 128, 256, 512, 1024, 2048, 2500]


def test_a_model_with_another_head_is_compared_by_its_states(folders, word_models, tmp_path):
    dense = make_dense(BertModel, TOKENIZER)
    save(dense, TOKENIZER, tmp_path / "bare")
    given = arguments(folders, tmp_path / "out", lengths=[32])
    given.dense_name_or_path = str(tmp_path / "bare")
    numbers = compare_models(given)[32]
    assert "embedding_cosine" in numbers and "top1_agreement" not in numbers


def test_a_folder_with_other_files_is_not_written_to(folders):
    before = sorted(path.name for path in (folders / "linformer").iterdir())
    with pytest.raises(ValueError, match="linformer holds something else .*; name a new --output_dir"):
        compare_models(arguments(folders, folders / "linformer"))
    assert sorted(path.name for path in (folders / "linformer").iterdir()) == before


def test_the_script_shows_a_table(folders, tmp_path, monkeypatch, capsys):
    words = ["compare_models.py", "--lengths", "16", "32", "--rounds", "1"]
    words += ["--dense_name_or_path", str(folders / "dense"), "--model_name_or_path", str(folders / "linformer")]
    words += ["--validation_file", str(folders / "corpus.txt"), "--output_dir", str(tmp_path / "out")]
    done = run_here(words, tmp_path, monkeypatch, capsys)
    assert done.returncode == 0, done.stderr
    rows = {line[:30].strip(): line.split() for line in done.stderr.splitlines()}
    assert rows["tokens"][-2:] == ["16", "32"]
    record = json.loads((tmp_path / "out" / "results.json").read_text())["numbers"]
    assert rows["embedding cosine"][-1] == written(record["embedding_cosine_32"])
