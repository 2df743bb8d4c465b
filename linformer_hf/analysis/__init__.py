"""How low the rank of attention maps is, and which k that asks for."""

from ..common.lazy import export_lazily


__getattr__, __dir__, __all__ = export_lazily(
    __name__,
    {
        "singular_values": [
            "attention_maps",
            "cumulative_values",
            "effective_rank",
            "kept_energy",
            "rank_k_error",
            "recommend",
            "singular_values",
            "token_maps",
        ],
        "spectrum": ["SpectrumArguments", "analyze_spectrum"],
    },
)
