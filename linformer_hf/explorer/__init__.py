"""The interactive page, and the page as a Space on the Hub."""

from ..common.lazy import export_lazily


__getattr__, __dir__, __all__ = export_lazily(
    __name__,
    {
        "page": ["ExplorerArguments", "build_page", "explore", "serve_page"],
        "space": ["write_space"],
    },
)
