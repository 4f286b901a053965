"""Trains one rung: `python -m imdbattn.train model=residual_pe`."""

from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from imdbattn.settings import checked, command, plain


@command("train")
def main(cfg: DictConfig) -> float:
    """Returns the best validation accuracy, which Hydra's sweepers maximise or ignore."""
    settings = checked(plain(cfg))
    from imdbattn.training.fit import fit  # torch and lightning take seconds: `--help` and a wrong key don't wait

    return fit(settings, Path(HydraConfig.get().runtime.output_dir))["val_accuracy"]


if __name__ == "__main__":
    main()
