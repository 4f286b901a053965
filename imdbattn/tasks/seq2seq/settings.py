"""The settings of the task `seq2seq`."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from imdbattn.errors import UserError
from imdbattn.settings.schema import (
    TOGETHER,
    EncoderDecoder,
    Reverse,
    Training,
    Translation,
    are_for_pairs,
)


class Seq2SeqSettings(Training):
    """The settings of a run that learns pairs of sequences."""

    @classmethod
    def check_groups(cls, settings: Mapping[str, Any]) -> None:
        if not all(are_for_pairs(settings)):
            raise UserError(TOGETHER)

    choose_by: Literal["accuracy", "loss", "bleu"]
    data: Annotated[Reverse | Translation, Field(discriminator="source")]
    model: EncoderDecoder
