"""How many slots each layer of a converted model gets: as given, or as many as a spectrum asks for."""

import json
from pathlib import Path

import torch

from ..analysis.singular_values import recommend


DEFAULT_LENGTH = 128


def check_choice(
    projected_length: list[int] | None, spectrum_file: str | None, energy: float | None, projection_type: str
) -> None:
    """Check the options that `choose_lengths` reads against each other, before any model is loaded.

    Raises:
        ValueError: If k is given twice or incompletely, the projection has none, or there is no such file.
    """
    if energy is not None and not 0 < energy <= 1:
        raise ValueError(f"--energy is {energy}; it must be above 0 and at most 1.")
    if (spectrum_file is None) != (energy is None):
        raise ValueError("--spectrum_file and --energy choose k together; give both, or --projected_length.")
    if energy is not None and projected_length is not None:
        raise ValueError("k is given twice, by --projected_length and by --energy; give one of them.")
    if energy is not None and projection_type != "linear":
        raise ValueError(f"--energy chooses the rank of a matrix; --projection_type {projection_type} has none.")
    if spectrum_file is not None and not Path(spectrum_file).is_file():
        raise ValueError(f"--spectrum_file is {spectrum_file}, which is no file; `linformer spectrum` writes one.")


def choose_lengths(
    projected_length: list[int] | None,
    spectrum_file: str | None,
    energy: float | None,
    max_seq_length: int,
    num_layers: int,
    projection_sharing: str,
) -> list[int]:
    """Return k as it was given, or the smallest that keeps a share of the energy of a spectrum.

    The options must have passed `check_choice`.

    Args:
        projected_length: k, one number, or numbers from the first layer on, the last of which holds for the others.
        spectrum_file: A `spectrum.json` of the dense encoder.
        energy: Share of the energy of each layer's attention maps to keep.
        max_seq_length: n of the Linformer.
        num_layers: Its layers.
        projection_sharing: As in `LinformerConfig`.

    Raises:
        ValueError: If the file is no spectrum, or the spectrum does not apply to such a Linformer.
    """
    if spectrum_file is None or energy is None:
        return projected_length or [DEFAULT_LENGTH]
    energies, longest = read_spectrum(spectrum_file)
    if max_seq_length > longest:
        raise ValueError(
            f"{spectrum_file} was measured on texts of {longest} tokens, and the Linformer reads {max_seq_length}, "
            "which may need more slots: give --projected_length, or measure the spectrum on longer texts."
        )
    if len(energies) != num_layers:
        raise ValueError(
            f"{spectrum_file} is of a model of {len(energies)} layers, and this one has {num_layers}: measure its own "
            "with `linformer spectrum`."
        )
    lengths = recommend(energies, energy)
    # layers that share a matrix use its first rows, and a smaller k would cover only the beginning of a text
    return [max(lengths)] if projection_sharing == "layerwise" else lengths


def read_spectrum(file: str) -> tuple[torch.Tensor, int]:
    """Read the energies that `linformer spectrum` measured, `(L, H, R)`, and the length of its longest text.

    Raises:
        ValueError: If the file holds no spectrum.
    """
    try:
        spectrum = json.loads(Path(file).read_text(encoding="utf-8"))
        energies = torch.tensor(spectrum["energy"], dtype=torch.float64)
        if energies.dim() != 3:
            raise ValueError(f"`energy` has {energies.dim()} dimensions instead of 3")
        return energies, int(spectrum["longest_text"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{file} is no spectrum ({error}); `linformer spectrum` writes one.") from error
