"""Which checkpoints are in memory: those given at the start always, visitors' own while there is room.

Only choosing a checkpoint loads it. Drawing takes what is in memory, so that visitors on many checkpoints cannot make
each other reload at every step of a slider.
"""

from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from threading import Lock

from .checkpoints import Checkpoint, load_checkpoint
from .public_models import load_public_model


MOST_KEPT = 4  # visitors' own checkpoints
MOST_KEPT_BYTES = 2_400_000_000  # of their weights


class CheckpointStore:
    """The checkpoints that visitors see.

    Args:
        listed: Folders and repositories on the Hub that are loaded now and stay, the first one shown at the start.
        is_public: Whether visitors may be strangers, who load nothing else but small public models of the Hub.

    Raises:
        ValueError: If a listed one does not load, or two that strangers see have one name.
    """

    def __init__(self, listed: Sequence[str], is_public: bool) -> None:
        self.is_public = is_public
        folders = {shown_name(name) if is_public else name: name for name in listed}
        if len(folders) < len(set(listed)):
            raise ValueError(f"Two of {', '.join(listed)} are folders of one name; rename one.")
        self.listed = {name: load_checkpoint(name, folder) for name, folder in folders.items()}
        self.kept: OrderedDict[str, Checkpoint] = OrderedDict()
        self.access = Lock()
        self.loading = Lock()  # one at a time, so that loading takes the memory of one model

    def get(self, name: str) -> Checkpoint:
        """Return a checkpoint that is in memory.

        Raises:
            ValueError: If it is not.
        """
        if name in self.listed:
            return self.listed[name]
        with self.access:
            if name not in self.kept:
                raise ValueError(
                    f"{name} was removed from memory, because other visitors loaded others. Choose it again."
                )
            self.kept.move_to_end(name)
            return self.kept[name]

    def load(self, name: str) -> Checkpoint:
        """Return a checkpoint, which is loaded if it is not in memory.

        Args:
            name: A listed one; the name of a repository on the Hub; or, where visitors are no strangers, a folder.

        Raises:
            ValueError: If it may not be loaded, or does not load.
        """
        if not name:
            raise ValueError("No checkpoint is named; choose a listed one, or write a name as in `owner/model`.")
        with self.loading:
            if name in self.listed or name in self.kept:
                return self.get(name)
            checkpoint = load_public_model(name) if self.is_public else load_checkpoint(name)
            with self.access:
                self.kept[name] = checkpoint
                while len(self.kept) > MOST_KEPT or (len(self.kept) > 1 and self.num_bytes() > MOST_KEPT_BYTES):
                    self.kept.popitem(last=False)
            return checkpoint

    def num_bytes(self) -> int:
        """Return how much memory the weights of visitors' own checkpoints take."""
        return sum(checkpoint.num_bytes for checkpoint in self.kept.values())


def shown_name(name: str) -> str:
    """Return what strangers call a checkpoint: of a folder its name, without the path to it on this server."""
    return Path(name).resolve().name if Path(name).is_dir() else name
