"""What a Linformer costs beside other encoders, counted and measured."""

from ..common.lazy import export_lazily


__getattr__, __dir__, __all__ = export_lazily(
    __name__,
    {
        "counting": [
            "activation_bytes",
            "count_multiplies",
            "crossing_length",
            "dense_activation_bytes",
            "dense_multiplies",
            "predicted_speedup",
        ],
        "efficiency": ["EfficiencyArguments", "measure_efficiency"],
    },
)
