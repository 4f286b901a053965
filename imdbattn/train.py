"""Trains one rung: `python -m imdbattn.train model=residual_pe`."""

from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from imdbattn.errors import UserError
from imdbattn.settings import checked, command, in_sweep, plain


@command("train", "data.path", "data.glove.path", "data.cache_dir")
def main(cfg: DictConfig) -> float:
    """Returns the best validation accuracy, which Hydra's sweepers maximise or ignore."""
    settings = checked(plain(cfg))
    if in_sweep() and settings["trainer"]["devices"] not in (1, "1"):
        # Lightning would start the whole sweep again in each further process.
        raise UserError(f"trainer.devices={settings['trainer']['devices']}: a job of a sweep runs on one device")
    from imdbattn.training.fit import fit  # torch and lightning take seconds: `--help` and a wrong key don't wait

    return fit(settings, Path(HydraConfig.get().runtime.output_dir))["val_accuracy"]


if __name__ == "__main__":
    main()
