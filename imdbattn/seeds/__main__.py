"""Trains several seeds in one process: `python -m imdbattn.seeds seeds=1,2,3 <settings of imdbattn.train>`.

A sweep with seeds_per_process starts it; hydra.run.dir= is the folder of one of the seeds, and contains -s<seed>.
"""

import os
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from imdbattn.errors import UserError
from imdbattn.settings.cli import PARENT_PID, QUOTED, SWEEP_PID, command, plain_dict, take_argument, without_gc
from imdbattn.settings.keys import digest

SEEDS = take_argument("seeds") if __name__ == "__main__" else None


@command("train", *QUOTED)
def main(cfg: DictConfig) -> None:
    """Trains each seed of `seeds=` into its own folder."""
    from imdbattn.settings.schema import validate  # pydantic, for which `--help` does not wait
    from imdbattn.sweep.job import end_with, folder_of_seed

    folder = Path(HydraConfig.get().runtime.output_dir).resolve()
    try:
        seeds = [int(seed) for seed in (SEEDS or "").split(",")]
    except ValueError:
        raise UserError("seeds=1,2,3 is needed: the seeds to train together, with commas") from None
    own = plain_dict(cfg)
    settings = []
    for seed in seeds:
        cfg.seed = seed
        settings.append(plain_dict(cfg))
        if digest(settings[-1]) != digest(own):
            raise UserError(f"seed={seed} also changes other settings: set seeds_per_process=1")
    if os.environ.get(SWEEP_PID):
        end_with(int(os.environ.get(PARENT_PID, os.getppid())))
    valid = [validate(one) for one in settings]
    with without_gc():
        from imdbattn.seeds.fit import fit_seeds
    fit_seeds(valid, [folder_of_seed(folder, own["seed"], seed) for seed in seeds])


if __name__ == "__main__":
    main()
