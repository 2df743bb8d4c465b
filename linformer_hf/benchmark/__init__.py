"""What a Linformer costs beside other encoders, counted and measured."""

from ..common.lazy import export_lazily


__getattr__, __dir__, __all__ = export_lazily(
    __name__,
    {
        "efficiency": ["EfficiencyArguments", "measure_efficiency"],
        "macs": ["count_macs", "crossing_length", "dense_macs", "predicted_speedup"],
        "saved_activations": ["activation_bytes", "dense_activation_bytes"],
    },
)
