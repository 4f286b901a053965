"""The machine and the software of a run: what a run changes in torch for speed, with the same
results up to rounding of float32, and what it records in environment.json.

Does not import Lightning, which predictions do not load.
"""

import ctypes
import os
import platform
import shutil
import subprocess
from contextlib import suppress
from importlib import metadata
from pathlib import Path

import torch

from imdbattn.nn.fast import matmul_backend, uses_onednn
from imdbattn.settings.keys import PACKAGE, NestedDict

PACKAGES = (  # environment.json contains their versions
    *("imdbattn", "torch", "lightning", "hydra-core"),
    *("wandb", "datasets", "tokenizers", "sacrebleu", "numpy"),
)
MAX_ERROR = 1e-5  # error of a product / |a| |b|: float32 is below 1e-6, bfloat16 at 1e-3


def speed_up_cpu() -> None:
    """Changes how this process multiplies matrices and keeps freed memory."""
    use_onednn()
    keep_memory()


def use_onednn() -> bool:
    """Lets oneDNN multiply float32 matrices if that keeps their precision; returns whether it does.

    It does nothing if there is a GPU: torch would raise an error when Lightning reads the precision
    of products. On AMD processors torch's MKL uses AVX2 where oneDNN uses AVX-512, about twice as
    fast. Torch offers oneDNN only together with the permission to round to bfloat16, which oneDNN
    uses on processors with AMX: those are excluded. Elsewhere, products are compared with float64.
    """
    matmul = matmul_backend()
    unsuitable = torch.cuda.is_available() or may_have_amx()
    if matmul is None or unsuitable or not torch.backends.mkldnn.is_available():
        return False
    before = matmul.fp32_precision
    matmul.fp32_precision = "bf16"
    if product_error() > MAX_ERROR:
        matmul.fp32_precision = before
    return uses_onednn()


def may_have_amx() -> bool:
    """Returns whether the processor has AMX, or torch cannot tell.

    torch's function is private (tried: torch 2.13, 2.15). Without it, as in older versions, torch's
    own products are used.
    """
    supported = getattr(torch.cpu, "_is_amx_tile_supported", None)
    return supported is None or bool(supported())


def product_error() -> float:
    """Returns the largest error, relative to |a| |b|, of float32 products as in attention."""
    generator = torch.Generator().manual_seed(0)
    shapes = ((2048, 50), (50, 50), (8, 256, 50), (8, 256, 50), (8, 256, 256))
    tokens, weight, query, key, scores = (
        torch.randn(*shape, generator=generator) for shape in shapes
    )
    products = [
        (tokens, weight),
        (tokens.T, tokens),
        (query, key.mT),
        (scores, key),
        (scores.mT, key),
    ]
    return max(
        ((a @ b - a.double() @ b.double()).abs() / (a.abs() @ b.abs())).max().item()
        for a, b in products
    )


def keep_memory() -> None:
    """Makes glibc keep freed memory; otherwise every step requests about ten megabytes again.

    A step of residual_pe on two cores becomes about 8% faster. Does nothing with other C libraries.
    """
    if platform.libc_ver()[0] == "glibc":
        trim_threshold, mmap_threshold = -1, -3  # malloc.h
        library = ctypes.CDLL(None)
        # Older versions allow 32 MB only. The second call alone would make things slower.
        if library.mallopt(mmap_threshold, 2**30) or library.mallopt(mmap_threshold, 2**25):
            library.mallopt(trim_threshold, 2**31 - 1)


# --- what is recorded -----------------------------------------------------------------------------


def environment() -> NestedDict:
    """Returns the content of environment.json, except the data source's key."""
    changed = git("status", "--porcelain", "--", "conf", "imdbattn")  # includes untracked files
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": processor(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "float32_products": "oneDNN" if uses_onednn() else "torch's default",
        "visible_devices": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "git_commit": git("rev-parse", "HEAD"),
        "uncommitted": None if changed is None else bool(changed),
        "versions": {name: version(name) for name in PACKAGES},
    }


def git(*arguments: str) -> str | None:
    """Returns the output of a git command about this checkout; None in an installed package,
    without git, or if the command fails.

    Git takes no lock, which a killed run would leave behind.
    """
    if not (PACKAGE.parent / ".git").exists() or shutil.which("git") is None:
        return None
    command = ["git", "--no-optional-locks", "-C", str(PACKAGE.parent), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def processor() -> str | None:
    """Returns the model of the processor, such as `AMD EPYC 7B13`; None where it is unknown."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or None


def version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
