"""Which jobs of a sweep one process trains together: seeds_per_process seeds of the same settings."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from imdbattn.errors import UserError
from imdbattn.settings.schema import Settings


def seeds_of_sweep(sweep: Path) -> list[str]:
    """The values of `seed` that the command line or hydra.sweeper.params lists, as text; none without a list."""
    chosen = OmegaConf.load(sweep / "multirun.yaml").hydra.overrides.task
    params = HydraConfig.get().sweeper.get("params") or {}
    words = [f"seed={params['seed']}"] if "seed" in params else []
    words += [word for word in chosen if word.startswith("seed=")]
    if not words:
        return []
    override = OverridesParser.create().parse_override(words[-1])
    return [*map(str, override.sweep_string_iterator())] if override.is_sweep_override() else []


def seeds_together(settings: Settings, sweep: Path) -> list[int]:
    """The seeds that one process trains together with the one of these settings; it alone unless they are set so."""
    count, seed = settings.seeds_per_process, settings.seed
    if count == 1:
        return [seed]
    seeds = [int(one) for one in seeds_of_sweep(sweep)]
    if seed not in seeds:
        return [seed]
    first = seeds.index(seed) // count * count
    return seeds[first : first + count]


def folder_of_seed(folder: Path, seed: int, other: int) -> Path:
    """The run folder of another seed, given that of `seed`. Raises UserError if its name does not contain it."""
    before, found, after = folder.name.rpartition(f"-s{seed}-")
    if not found:
        raise UserError(f"seeds_per_process needs -s{seed}- in the names of the folders: omit hydra.sweep.subdir")
    return folder.with_name(f"{before}-s{other}-{after}")


@contextmanager
def waiting_for_others(seeds: Sequence[int], folder: Path, seed: int) -> Iterator[None]:
    """Waits until no other job of the sweep trains these seeds."""
    if len(seeds) == 1:
        yield
        return
    first = folder_of_seed(folder, seed, min(seeds))
    with FileLock(first.with_name(f".{first.name}.lock")):
        yield
