"""The measurements of a benchmark, kept in a file one by one, so that a run that was stopped can continue."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers.utils import logging

from ..common.files import check_own_folder, read_json, write_json
from .isolation import Record, in_own_process


logger = logging.get_logger(__name__)


class Cells:
    """Measurements by name, in a file that is written after each of them.

    Args:
        file: The file. Its folder is new, empty, or holds this file.
        setting: What all measurements have in common, as JSON holds it.

    Raises:
        ValueError: If the file was measured in another setting, or the folder holds other files but not this one.
    """

    def __init__(self, file: Path, setting: dict[str, Any]) -> None:
        check_own_folder(file.parent, lambda names: file.name in names)
        self.file = file
        self.setting = setting
        self.records: dict[str, Record] = {}
        if not file.is_file():
            return
        saved = read_json(file)
        for name, value in setting.items():
            if saved["setting"].get(name) != value:
                raise ValueError(
                    f"{file} was measured with {name} = {saved['setting'].get(name)}, not {value}; name a new "
                    "--output_dir."
                )
        self.records = saved["cells"]

    def measure(
        self, name: str, function: Callable[..., Record], *arguments: Any, memory_limit: int | None = None
    ) -> Record:
        """Return the record of a measurement: the saved one, or that of a new process if there is none or it failed.

        Args:
            name: Of the measurement.
            function: As in `in_own_process`.
            *arguments: As in `in_own_process`.
            memory_limit: As in `in_own_process`.
        """
        saved = self.records.get(name)
        if saved is None or "failure" in saved or saved.get("failures"):
            self.records[name] = in_own_process(function, *arguments, memory_limit=memory_limit)
            logger.info(f"{name}: {self.records[name].get('failure', 'measured')}")
            write_json(self.file, {"setting": self.setting, "cells": self.records}, indent=1)
        return self.records[name]
