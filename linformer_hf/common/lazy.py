"""Names that a package offers without importing the modules that define them until they are used."""

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def export_lazily(
    package: str, modules: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Make the `__getattr__`, `__dir__` and `__all__` of a package (PEP 562).

    Importing the package then stays fast, and loads an optional extra only when a name that needs it is used.

    Args:
        package: The package's `__name__`.
        modules: For each module below the package, as in `"convert"` or `"conversion.convert"`, its public names.

    Returns:
        The three, in that order.
    """
    origins = {name: module for module, names in modules.items() for name in names}

    def get(name: str) -> Any:
        if name not in origins:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"{package}.{origins[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    def list_names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *origins})

    return get, list_names, sorted(origins)
