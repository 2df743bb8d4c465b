"""The common tests that transformers runs on each of its own models, run on ours.

They are taken from the source distribution of the installed version, so they always fit it, and none of that code is
kept here. Without a package index to take it from, the test skips and says so.
"""

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections import defaultdict
from fnmatch import fnmatch
from pathlib import Path
from xml.etree import ElementTree

import pytest
import transformers


ROOT = Path(__file__).parents[2]
TESTER = ROOT / "tests" / "support" / "upstream_tester.py"
FEWEST_PASSES = 100  # an import that fails or a mixin that moved must not pass for success

# The common tests import three modules that the source distribution leaves out. An encoder needs none of what is in
# the first two, and of the third only values that differ from the defaults of a configuration.
STUBS = {
    "exporters/test_export.py": "class ExportTesterMixin: ...\n",
    "generation/test_utils.py": "class GenerationTesterMixin: ...\n",
    "utils/test_configuration_utils.py": """
config_common_kwargs = {
    "dtype": "float16",
    "chunk_size_feed_forward": 5,
    "output_hidden_states": True,
    "return_dict": False,
    "architectures": ["LinformerModel"],
    "id2label": {0: "label"},
    "label2id": {"label": "0"},
    "problem_type": "regression",
}
""",
}


def download_sdist(folder: Path) -> Path:
    """Fetch the source distribution of the installed transformers into a folder, or skip the test."""
    # pip asks the build back end for the metadata first. Isolated, it brings that back end along: a fresh virtual
    # environment has none. Binary packages stay allowed for all but transformers, so nothing else is built.
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", "transformers"]
    command += ["--disable-pip-version-check", "--no-input", "--retries", "1", "--dest", str(folder)]
    run = subprocess.run([*command, f"transformers=={transformers.__version__}"], capture_output=True, text=True)
    archives = list(folder.glob("transformers-*.tar.gz"))
    if run.returncode or not archives:
        lines = (run.stdout + run.stderr).strip().splitlines() or [f"pip ended with code {run.returncode}"]
        reason = [line for line in lines if line.startswith("ERROR")] or lines
        pytest.skip(f"no source distribution of transformers {transformers.__version__}: {reason[-1]}")
    return archives[0]


@pytest.fixture(scope="module")
def upstream_tests() -> Path:
    """The test folder of the source distribution, kept in the user's cache for the next run."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "linformer_hf"
    cached = cache / f"transformers-{transformers.__version__}-tests"
    if cached.is_dir():
        return cached
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        tests = Path(folder) / "tests"
        tests.mkdir()
        with tarfile.open(download_sdist(Path(folder))) as archive:
            for member in archive:
                if member.isfile() and fnmatch(member.name, "transformers-*/tests/test_*.py"):
                    (tests / Path(member.name).name).write_bytes(archive.extractfile(member).read())
        try:
            tests.rename(cached)  # whole or not at all
        except OSError:
            if not cached.is_dir():  # no other run was faster
                raise
    return cached


@pytest.fixture
def python_path(upstream_tests: Path, tmp_path: Path) -> Path:
    """A folder to import `transformers_tests` from, which is upstream's test folder with the stubs."""
    package = tmp_path / "transformers_tests"
    shutil.copytree(upstream_tests, package)
    (package / "__init__.py").touch()
    for name, source in STUBS.items():
        (package / name).parent.mkdir(exist_ok=True)
        (package / name).with_name("__init__.py").touch()
        (package / name).write_text(source)
    return tmp_path


def outcomes(report: Path) -> dict[str, set[str]]:
    """Sort the tests of a JUnit report by what became of them, or of any of their subtests."""
    names = defaultdict(set)
    for case in ElementTree.parse(report).iter("testcase"):
        tags = {child.tag for child in case} & {"failure", "error", "skipped"} or {"passed"}
        for tag in tags:
            names[tag].add(case.get("name"))
    return names


def test_transformers_own_model_tests_pass_on_all_six_classes(python_path, tmp_path):
    report, settings = tmp_path / "report.xml", tmp_path / "pytest.ini"
    settings.write_text("[pytest]\n")  # neither our settings, which are strict about markers, nor a stranger's
    command = [sys.executable, "-m", "pytest", str(TESTER), "-q", "--noconftest", f"--junitxml={report}"]
    command += ["-c", str(settings), "-p", "no:cacheprovider", "-p", "no:warnings"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment |= {"HF_HUB_OFFLINE": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    paths = [str(python_path), str(ROOT), os.environ.get("PYTHONPATH")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))

    run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)

    last_words = f"{run.stdout[-6000:]}\n{run.stderr[-2000:]}"
    assert report.is_file(), last_words
    found = outcomes(report)
    failed = found["failure"] | found["error"]
    assert not failed, f"{sorted(failed)}\n{last_words}"
    assert run.returncode == 0, last_words
    assert len(found["passed"] - failed) >= FEWEST_PASSES, last_words
