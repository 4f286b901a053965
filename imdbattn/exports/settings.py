"""The settings of imdbattn.export, conf/export.yaml."""

from typing import Literal

from imdbattn.settings.command_settings import RunCommand
from imdbattn.settings.schema import Flag, Text


class Export(RunCommand):
    out: Text
    vectors: Literal["training", "all"]
    precision: Literal["auto", "float32"]
    graph: Flag
    onnx: Flag
