"""A few of the Hub's rules for the metadata on top of a README.

Not all of them: the Hub also knows the licences, languages and tasks by name. These are the ones that a card written
by a program breaks most easily.
"""

import json
import re
from typing import Any

import yaml


FRONT_MATTER = re.compile(r"\A---[ \t]*\r?\n(.*?)^---[ \t]*$", re.DOTALL | re.MULTILINE)

LANGUAGE = re.compile(r"[a-z]{2,3}(-[A-Za-z0-9]+)*|code|multilingual")
LICENSE = re.compile(r"[a-z0-9.-]+")
REPO_ID = re.compile(r"[\w.-]+(/[\w.-]+)?", re.ASCII)
ANYTHING = re.compile(r".+", re.DOTALL)

# field: may it be one string, may it be a list of strings, and what each must look like
FIELDS = {
    "license": (True, True, LICENSE),
    "language": (True, True, LANGUAGE),
    "base_model": (True, True, REPO_ID),
    "datasets": (False, True, REPO_ID),
    "tags": (False, True, ANYTHING),
    "metrics": (False, True, ANYTHING),
    "library_name": (True, False, ANYTHING),
    "pipeline_tag": (True, False, re.compile(r"[a-z0-9-]+")),
}


class UniqueKeyLoader(yaml.SafeLoader):
    """A YAML reader that refuses a key given twice, as the Hub's does."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Build a mapping, or fail at the second of two equal keys."""
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.YAMLError(f"duplicated mapping key {key!r}")
        return super().construct_mapping(node, deep)


def read_card(text: str) -> tuple[dict[str, Any], list[str]]:
    """Return the metadata of a README, and what is wrong with it."""
    match = FRONT_MATTER.match(text)
    if match is None:
        return {}, []
    try:
        metadata = yaml.load(match[1], UniqueKeyLoader)
    except yaml.YAMLError as error:
        return {}, [f"YAML metadata does not parse: {error}"]
    if metadata is None:
        return {}, []
    if not isinstance(metadata, dict):
        return {}, ["YAML metadata is not a mapping"]
    try:
        metadata = json.loads(json.dumps(metadata, allow_nan=False, default=str))  # as the clients will get it
    except ValueError as error:
        return {}, [f"YAML metadata holds a number that JSON cannot: {error}"]
    return metadata, [*_field_problems(metadata), *_model_index_problems(metadata.get("model-index", []))]


def _field_problems(metadata: dict[str, Any]) -> list[str]:
    problems = []
    for field, (may_be_string, may_be_list, pattern) in FIELDS.items():
        value = metadata.get(field)
        if value is None:
            continue
        is_list = isinstance(value, list)
        if (is_list and not may_be_list) or (isinstance(value, str) and not may_be_string):
            problems.append(f'"{field}" must be {"an array" if may_be_list else "a string"}')
            continue
        for item in value if is_list else [value]:
            if not isinstance(item, str):
                problems.append(f'"{field}" must hold strings, not {item!r}')
            elif not pattern.fullmatch(item):
                problems.append(f'"{field}" with value "{item}" is not valid')
    return problems


def _model_index_problems(index: Any) -> list[str]:
    """Check that each measured result says of which model, task, data set and metric it is."""
    if not isinstance(index, list):
        return ['"model-index" must be an array']
    problems = []
    for place, model in _numbered("model-index", index):
        problems += _missing(place, model, "name", "results")
        for place_of_result, result in _numbered(f"{place}.results", _get(model, "results")):
            problems += _missing(place_of_result, result, "task", "dataset", "metrics")
            problems += _missing(f"{place_of_result}.task", _get(result, "task"), "type")
            problems += _missing(f"{place_of_result}.dataset", _get(result, "dataset"), "type", "name")
            for place_of_metric, metric in _numbered(f"{place_of_result}.metrics", _get(result, "metrics")):
                problems += _missing(place_of_metric, metric, "type", "value")
    return problems


def _numbered(place: str, items: Any) -> list[tuple[str, Any]]:
    return [(f"{place}[{i}]", item) for i, item in enumerate(items if isinstance(items, list) else [])]


def _get(mapping: Any, key: str) -> Any:
    return mapping.get(key) if isinstance(mapping, dict) else None


def _missing(place: str, mapping: Any, *keys: str) -> list[str]:
    return [f'"{place}.{key}" is required' for key in keys if _get(mapping, key) is None]
