"""What the Hub keeps: a bare git repository for each repo, and large files under their sha256.

The repositories are real, so that `git log` and `git fsck` can confirm what the clients were told. Ids of commits and
blobs are hexadecimal strings here and bytes in dulwich.
"""

import hashlib
import os
import re
import shutil
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from dulwich.attrs import GitAttributes, compile_gitattributes_patterns, parse_git_attributes
from dulwich.index import commit_tree
from dulwich.lfs import LFSPointer
from dulwich.object_store import iter_tree_contents
from dulwich.objects import Blob, Commit
from dulwich.refs import check_ref_format
from dulwich.repo import Repo

from .errors import HubError, entry_not_found, revision_not_found


REPO_ID = re.compile(r"[\w-][\w.-]{0,95}/[\w-][\w.-]{0,95}", re.ASCII)
COMMIT_ID = re.compile(r"[0-9a-f]{40}")
SHA256 = re.compile(r"[0-9a-f]{64}")

REGULAR_FILE, FOLDER = 0o100644, 0o040000

LARGE_PATTERNS = (
    "*.arrow *.bin *.ckpt *.gz *.h5 *.joblib *.model *.msgpack *.npy *.npz *.onnx *.ot *.parquet *.pickle *.pkl *.pt "
    "*.pth *.safetensors *.tar *.tar.* *.tflite *.tgz *.wasm *.xz *.zip *.zst *tfevents*"
)
GIT_ATTRIBUTES = "".join(f"{pattern} filter=lfs diff=lfs merge=lfs -text\n" for pattern in LARGE_PATTERNS.split())


@dataclass(frozen=True)
class Entry:
    """A file or folder of a commit.

    Args:
        path: From the root of the repo.
        blob_id: Of the file's git blob, or of the folder's git tree.
        size: In bytes, of the file itself and not of its pointer; 0 for a folder.
        sha256: Of a large file's content; None for any other.
        pointer_size: In bytes, of the git blob that stands for a large file.
    """

    path: str
    blob_id: str
    size: int = 0
    sha256: str | None = None
    pointer_size: int = 0
    is_folder: bool = False


class Repository:
    """A repo of the Hub, on a bare git repository.

    Args:
        folder: Of the git repository.
        kind: `"models"` or `"datasets"`.
        repo_id: Namespace and name.
    """

    def __init__(self, folder: Path, kind: str, repo_id: str) -> None:
        self.folder = folder
        self.kind = kind
        self.repo_id = repo_id
        self.git = Repo(str(folder))

    @property
    def owner(self) -> str:
        """The user whose namespace it lies in."""
        return self.repo_id.split("/")[0]

    @property
    def web_path(self) -> str:
        """Where its pages are, from the endpoint."""
        return self.repo_id if self.kind == "models" else f"{self.kind}/{self.repo_id}"

    @property
    def private(self) -> bool:
        """Whether it exists for its owner only."""
        return bool(self.git.get_config().get_boolean((b"hub",), b"private", False))

    @private.setter
    def private(self, value: bool) -> None:
        config = self.git.get_config()
        config.set((b"hub",), b"private", value)
        config.write_to_path()

    def refs(self, prefix: str) -> dict[str, str]:
        """Return the commits that the refs below a prefix point to, by the rest of their names."""
        base = prefix.encode()
        names = sorted(self.git.refs.subkeys(base))
        return {name.decode(): self.git.refs[base + b"/" + name].decode() for name in names}

    def resolve(self, revision: str) -> str:
        """Return the commit that a branch, tag, pull request or commit id stands for."""
        for ref in (revision, f"refs/heads/{revision}", f"refs/tags/{revision}"):
            if ref.startswith("refs/") and check_ref_format(ref.encode()) and ref.encode() in self.git.refs:
                return self.git.refs[ref.encode()].decode()
        if COMMIT_ID.fullmatch(revision) and revision.encode() in self.git.object_store:
            return revision
        raise revision_not_found(revision)

    def writable_ref(self, revision: str) -> str:
        """Return the ref that a commit to a branch or pull request moves."""
        for ref in (revision, f"refs/heads/{revision}"):
            if ref.startswith(("refs/heads/", "refs/pr/")) and ref.encode() in self.git.refs:
                return ref
        raise revision_not_found(revision)

    def add_ref(self, ref: str, commit: str) -> None:
        """Create a branch, tag or pull request."""
        if not check_ref_format(ref.encode()):
            raise HubError(400, f"{ref} is not a name that git allows.")
        if not self.git.refs.add_if_new(ref.encode(), commit.encode()):
            raise HubError(409, f"Reference {ref} already exists.")

    def drop_ref(self, ref: str) -> None:
        """Delete a branch or tag."""
        if ref.encode() not in self.git.refs:
            raise revision_not_found(ref)
        self.git.refs.remove_if_equals(ref.encode(), None)

    def files(self, commit: str) -> dict[str, str]:
        """Return the blob of each file of a commit by its path."""
        tree = self.git[commit.encode()].tree
        return {entry.path.decode(): entry.sha.decode() for entry in iter_tree_contents(self.git.object_store, tree)}

    def entries(self, commit: str) -> list[Entry]:
        """Return the files and folders of a commit, without its root."""
        tree = self.git[commit.encode()].tree
        found = []
        for item in iter_tree_contents(self.git.object_store, tree, include_trees=True):
            path, object_id = item.path.decode(), item.sha.decode()
            if path:
                is_folder = item.mode == FOLDER
                found.append(Entry(path, object_id, is_folder=True) if is_folder else self.entry(path, object_id))
        return found

    def entry(self, path: str, blob_id: str) -> Entry:
        """Describe a file, looking through the pointer of a large one."""
        content = self.content(blob_id)
        pointer = LFSPointer.from_bytes(content) if len(content) < 1024 else None
        if pointer is None:
            return Entry(path, blob_id, len(content))
        return Entry(path, blob_id, pointer.size, pointer.oid, len(content))

    def find(self, commit: str, path: str) -> Entry:
        """Describe the file at a path."""
        blob_id = self.files(commit).get(path)
        if blob_id is None:
            raise entry_not_found(path, commit)
        return self.entry(path, blob_id)

    def content(self, blob_id: str) -> bytes:
        """Return what git keeps for a file: itself, or its pointer if it is large."""
        return self.git[blob_id.encode()].data

    def text(self, commit: str, path: str) -> str | None:
        """Return a text file, or None where there is none."""
        blob_id = self.files(commit).get(path)
        return None if blob_id is None else self.content(blob_id).decode(errors="replace")

    def is_large(self, commit: str, path: str) -> bool:
        """Tell whether the repo's `.gitattributes` send a path to the large files."""
        lines = BytesIO((self.text(commit, ".gitattributes") or "").encode())
        patterns = compile_gitattributes_patterns(parse_git_attributes(lines))
        return GitAttributes(patterns).match_path(path.encode()).get(b"filter") == b"lfs"

    def add_blob(self, content: bytes) -> str:
        """Store the content of a file; nothing shows it until a commit does."""
        blob = Blob.from_string(content)
        self.git.object_store.add_object(blob)
        return blob.id.decode()

    def commit(self, files: dict[str, str], parent: str | None, message: str, author: str) -> str:
        """Store a commit of exactly these files; nothing shows it until a ref does.

        Args:
            files: Blobs by path.
            parent: None for the first commit.
            message: Summary, empty line, description.
            author: The user's name.

        Returns:
            The commit's id.
        """
        blobs = [(path.encode(), blob_id.encode(), REGULAR_FILE) for path, blob_id in files.items()]
        commit = Commit()
        commit.tree = commit_tree(self.git.object_store, blobs)
        commit.parents = [] if parent is None else [parent.encode()]
        commit.author = commit.committer = f"{author} <{author}@loopback.invalid>".encode()
        commit.author_time = commit.commit_time = int(time.time())
        commit.author_timezone = commit.commit_timezone = 0
        commit.encoding = b"UTF-8"
        commit.message = message.encode()
        self.git.object_store.add_object(commit)
        return commit.id.decode()

    def move_ref(self, ref: str, old: str, new: str) -> None:
        """Let a ref point to a new commit, in one step that another writer cannot fall into."""
        if not self.git.refs.set_if_equals(ref.encode(), old.encode(), new.encode()):
            raise HubError(412, "A commit has happened since. Please refresh and try again.")

    def history(self, commit: str) -> list[Commit]:
        """Return a commit and its ancestors, the newest first."""
        return [step.commit for step in self.git.get_walker(include=[commit.encode()])]


class Storage:
    """All repos, and all large files.

    Args:
        folder: Where they lie; created if it is missing.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._open: dict[Path, Repository] = {}
        for part in ("repos", "large", "plain", "unfinished"):
            (folder / part).mkdir(parents=True, exist_ok=True)

    def find(self, kind: str, repo_id: str) -> Repository | None:
        """Return a repo, or None if there is none of this kind and name."""
        folder = self._repository_folder(kind, repo_id)
        if folder not in self._open and REPO_ID.fullmatch(repo_id) and folder.is_dir():
            self._open[folder] = Repository(folder, kind, repo_id)
        return self._open.get(folder)

    def create(self, kind: str, repo_id: str, private: bool, author: str) -> Repository:
        """Create a repo with the first commit that the Hub gives it."""
        if not REPO_ID.fullmatch(repo_id) or ".." in repo_id or "--" in repo_id or repo_id.endswith(".git"):
            raise HubError(400, f"{repo_id} is not a valid repo name.")
        draft = self.unfinished()
        Repo.init_bare(str(draft), mkdir=True, default_branch=b"main").close()
        repository = Repository(draft, kind, repo_id)
        repository.private = private
        files = {".gitattributes": repository.add_blob(GIT_ATTRIBUTES.encode())}
        repository.add_ref("refs/heads/main", repository.commit(files, None, "initial commit", author))
        repository.git.close()
        folder = self._repository_folder(kind, repo_id)
        folder.parent.mkdir(parents=True, exist_ok=True)
        draft.rename(folder)  # a repo appears whole or not at all
        return self.find(kind, repo_id)

    def delete(self, repository: Repository) -> None:
        """Remove a repo; its large files stay, as others may hold them too."""
        self._open.pop(repository.folder).git.close()
        shutil.rmtree(repository.folder)

    def unfinished(self) -> Path:
        """Return a path for something that is moved to its place once it is complete."""
        return self.folder / "unfinished" / uuid.uuid4().hex

    def large_file(self, sha256: str) -> Path:
        """Return the path of a large file, stored or not."""
        if not SHA256.fullmatch(sha256):
            raise HubError(400, f"{sha256} is not a sha256.")
        return self.folder / "large" / sha256

    def plain_file(self, repository: Repository, entry: Entry) -> Path:
        """Return a path with the content of a file that is not large, for answers that send parts of it."""
        path = self.folder / "plain" / entry.blob_id
        if not path.exists():
            path.write_bytes(repository.content(entry.blob_id))
        return path

    async def receive(self, chunks: AsyncIterator[bytes], sha256: str) -> None:
        """Store a large file, if it is the one that its sender announced."""
        target, draft = self.large_file(sha256), self.unfinished()
        digest = hashlib.sha256()
        try:
            with draft.open("wb") as file:
                async for chunk in chunks:
                    digest.update(chunk)
                    file.write(chunk)
            if digest.hexdigest() != sha256:
                raise HubError(400, f"The content has sha256 {digest.hexdigest()}, announced was {sha256}.")
            os.replace(draft, target)
        finally:
            draft.unlink(missing_ok=True)

    def _repository_folder(self, kind: str, repo_id: str) -> Path:
        return self.folder / "repos" / kind / f"{repo_id}.git"
