"""The data settings for pairs: reversed strings and translations."""

from typing import Annotated, Literal

from pydantic import Field

from imdbattn.errors import UserError
from imdbattn.settings.schema import (
    Amount,
    ClassSettings,
    Count,
    Flag,
    HubName,
    Lengths,
    Natural,
    SettingsGroup,
    Several,
    SplitDataSettings,
    Text,
    check_source,
)

# Pairs have a word_dropout of 0, because debug=overfit sets it for all tasks.
Zero = Annotated[Amount, Field(le=0)]
StringCount = Annotated[Count, Field(le=10_000_000)]


class ReverseSettings(SettingsGroup):
    source: Literal["reverse"]
    seed: Natural
    letters: Annotated[Several, Field(le=26)]
    lengths: Lengths
    test_lengths: Lengths | None
    train: StringCount
    validation: StringCount
    test: StringCount
    batch_tokens: Count
    eval_batch_tokens: Count
    word_dropout: Zero = 0


SideTokenizer = Literal["words", "characters"] | ClassSettings  # for one side


class TranslationSettings(SplitDataSettings):
    source: Literal["auto", "path", "hub", "packaged"] | ClassSettings
    hub: HubName | None
    hub_config: Text | None
    languages: Annotated[list[Text], Field(min_length=2, max_length=2)]
    lower: Flag
    min_frequency: Count
    tokenizer: SideTokenizer | Annotated[list[SideTokenizer], Field(min_length=2, max_length=2)] = (
        "words"
    )
    batch_tokens: Count
    word_dropout: Zero = 0

    def model_post_init(self, context: object) -> None:
        source = self.source if isinstance(self.source, str) else self.source.target
        check_source("data", source, path=self.path, hub=self.hub)
        if self.hub_config and not self.hub:
            raise UserError("data.hub_config needs a data set: set data.hub")
