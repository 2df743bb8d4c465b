"""Names that a package offers without importing the modules that define them."""

import sys
from types import ModuleType

import pytest

import linformer_hf
from linformer_hf.common.lazy import export_lazily


def test_a_name_is_imported_when_it_is_used(monkeypatch):
    package = ModuleType("pack")
    part = ModuleType("pack.part")
    part.tool = object()
    monkeypatch.setitem(sys.modules, "pack", package)
    get, names, public = export_lazily("pack", {"part": ["tool"]})
    assert public == ["tool"] and "tool" in names()
    with pytest.raises(ModuleNotFoundError):
        get("tool")
    package.__path__ = []
    monkeypatch.setitem(sys.modules, "pack.part", part)
    assert get("tool") is part.tool is package.tool
    with pytest.raises(AttributeError, match="'pack' has no attribute 'tol'"):
        get("tol")


def test_each_public_name_can_be_imported_and_is_listed():
    for name in linformer_hf.__all__:
        if name not in ("ExplorerArguments", "explore", "ExportArguments", "export_checkpoint", "export_onnx"):
            assert getattr(linformer_hf, name) is not None
    assert set(linformer_hf.__all__) <= set(dir(linformer_hf))
