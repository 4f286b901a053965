"""The settings of imdbattn.export, conf/export.yaml."""

import os
from typing import Literal

from imdbattn.settings.command_settings import RunCommandSettings
from imdbattn.settings.keys import defaults, overlay
from imdbattn.settings.schema import Flag, Text, validate_as


class ExportSettings(RunCommandSettings):
    out: Text
    vectors: Literal["training", "all"]
    precision: Literal["auto", "float32"]
    graph: Flag
    onnx: Flag


def export_options(
    run: str | os.PathLike[str], out: str | os.PathLike[str], **changes: object
) -> ExportSettings:
    """Returns the settings of conf/export.yaml for a run, with these changes."""
    given = {"run": os.fspath(run), "out": os.fspath(out), **changes}
    return validate_as(ExportSettings, overlay(defaults("export"), given))
