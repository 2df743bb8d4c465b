"""A folder that loads anywhere: its card, the push to the Hub, and ONNX."""

from ..common.lazy import export_lazily


__getattr__, __dir__, __all__ = export_lazily(
    __name__,
    {
        "card": ["origin_facts", "write_card"],
        "hub": ["PushArguments", "push", "save_for_hub"],
        "onnx_export": ["ExportArguments", "export_checkpoint", "export_onnx"],
    },
)
