"""GloVe 6B from its official archive, or from torchtext."""

import ssl
from pathlib import Path

import numpy as np

from imdbattn.errors import UserError
from imdbattn.io.files import acquired, sha256_of

ZIP = "glove.6B.zip"  # 862 MB, all dimensions
# as in JuliaText/Embeddings.jl
ZIP_SHA256 = "617afb2fe6cbd085c235baf7a465b96f4112bd7f7ccb2b2cbd649fed9cbcf2fb"


def read_torchtext(dim: int, cache: Path) -> tuple[list[str], np.ndarray]:
    """Returns GloVe 6B as torchtext 0.18, which loads only with torch 2.3, reads it."""
    verifying = ssl._create_default_https_context
    try:
        from torchtext.vocab import GloVe

        table = GloVe(name="6B", dim=dim, cache=str(cache))
    finally:
        # torchtext disables certificate checks for the whole process
        ssl._create_default_https_context = verifying
    return list(table.itos), table.vectors.numpy()


def download(folder: Path) -> Path:
    """Downloads glove.6B.zip unless it is there. Raises UserError for a wrong checksum."""
    from huggingface_hub import hf_hub_download

    file = folder / ZIP
    with acquired(file.with_name(f"{ZIP}.lock")):  # one archive holds all dimensions
        if not file.exists():
            part = Path(hf_hub_download("stanfordnlp/glove", ZIP, local_dir=folder / "download"))
            if sha256_of(part) != ZIP_SHA256:
                part.unlink()
                raise UserError(f"{ZIP} was downloaded with a wrong checksum: try again")
            part.rename(file)
    return file
