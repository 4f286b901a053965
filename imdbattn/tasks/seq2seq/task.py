"""The task `seq2seq`: pairs of sequences, which an encoder-decoder maps to each other."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from imdbattn.errors import UserError
from imdbattn.settings.schema import (
    HUB_NAME_PATTERN,
    PAIRS_TOGETHER,
    AnyModel,
    ClassSettings,
    Count,
    Files,
    Group,
    Lengths,
    Natural,
    Share,
    Text,
    Training,
    are_for_pairs,
    check_source,
)
from imdbattn.tasks.task import Task

# --- settings ---
# word_dropout of pairs: debug=overfit sets it for all tasks
Zero = Annotated[int | float, Field(ge=0, le=0)]
Strings = Annotated[int, Field(ge=1, le=10_000_000)]


class EncoderDecoderNet(ClassSettings):
    width: Count
    hidden: Count
    layers: Annotated[Count, Field(le=1000)]
    cell: Literal["gru", "lstm"]
    dropout: Share
    score: ClassSettings | None


class EncoderDecoderModel(AnyModel):
    net: EncoderDecoderNet


class ReverseData(Group):
    source: Literal["reverse"]
    seed: Natural
    letters: Annotated[int, Field(ge=2, le=26)]
    lengths: Lengths
    test_lengths: Lengths | None
    train: Strings
    validation: Strings
    test: Strings
    batch_tokens: Count
    eval_batch_tokens: Count
    word_dropout: Zero = 0


SideTokenizer = Literal["words", "characters"] | ClassSettings  # of sources, or of targets


class TranslationData(Files):
    source: Literal["auto", "path", "hub", "packaged"] | ClassSettings
    hub: Annotated[str | None, Field(pattern=HUB_NAME_PATTERN)]
    hub_config: Text | None
    languages: Annotated[list[Text], Field(min_length=2, max_length=2)]
    lower: bool
    min_frequency: Count
    tokenizer: SideTokenizer | Annotated[list[SideTokenizer], Field(min_length=2, max_length=2)] = (
        "words"
    )
    batch_tokens: Count
    word_dropout: Zero = 0

    def check(self) -> None:
        source = self.source if isinstance(self.source, str) else self.source.target
        check_source("data", source, path=self.path, hub=self.hub)


def kind_of_data(data: ReverseData | TranslationData | Mapping[str, object]) -> str:
    """Returns which class the settings of the data have."""
    source = data.get("source") if isinstance(data, Mapping) else data.source
    return "reverse" if source == "reverse" else "translation"


class Seq2SeqSettings(Training):
    """The settings of a run that learns pairs of sequences."""

    @classmethod
    def check_groups(cls, settings: Mapping[str, object]) -> None:
        if not all(are_for_pairs(settings)):
            raise UserError(PAIRS_TOGETHER)

    choose_by: Literal["accuracy", "loss", "bleu"]
    data: Annotated[
        Annotated[ReverseData, Tag("reverse")] | Annotated[TranslationData, Tag("translation")],
        Discriminator(kind_of_data),
    ]
    model: EncoderDecoderModel


class Seq2Seq(Task):
    """Reverses strings, or translates sentences."""

    name = "seq2seq"
    settings = Seq2SeqSettings
    data = "imdbattn.tasks.seq2seq.module.PairData"
    module = "imdbattn.tasks.seq2seq.module.Seq2SeqModule"
    predictor = "imdbattn.tasks.seq2seq.predictor.Seq2SeqPredictor"
    pictures = "imdbattn.tools.explain.pictures.draw_pair"

    @classmethod
    def same_data(cls, data: Any, source: str, key: str | None) -> bool:
        """Returns whether the files are those of a run."""
        from imdbattn.data import pairs

        return bool(pairs.find_pair_source(data).checksum == str(key).split("-")[0])
