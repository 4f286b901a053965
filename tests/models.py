"""The names of the models in conf/model."""

from omegaconf import OmegaConf

from imdbattn.settings.keys import conf_dir

EXPERIMENT = OmegaConf.load(conf_dir() / "experiment" / "ladder.yaml")
RUNGS = tuple(EXPERIMENT.hydra.sweeper.params.model.split(","))
NAMES = sorted(file.stem for file in (conf_dir() / "model").glob("*.yaml"))
ENCODER_DECODERS = tuple(name for name in NAMES if name.startswith("seq2seq"))
CONTROLS = ("uniform",)  # of the tests of attention
BEYOND = tuple(name for name in NAMES if name not in (*RUNGS, *CONTROLS, *ENCODER_DECODERS))
