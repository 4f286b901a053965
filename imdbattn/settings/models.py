"""The names of the models in conf/model, in the order in which they are listed."""

# The ladder, as in conf/experiment/ladder.yaml
RUNGS = (
    "mean",
    "learned_query",
    "text_query",
    "base",
    "base_pe",
    "residual",
    "residual_pe",
    "residual_learned",
    "residual_cls",
    "residual_pe_cls",
)
# Other forms of attention, then models with trained vectors or phrases
BEYOND = (
    "label_query",
    "gru_query",
    "residual_heads",
    "residual_rope",
    "residual_relative",
    "tuned_mean",
    "log_counts_mean",
    "tuned",
    "convolved",
    "log_counts",
    "wide",
    "pretrained",
    "distilled",
)
CONTROLS = ("uniform",)  # of the tests of attention
ENCODER_DECODERS = (
    "seq2seq",
    "seq2seq_attention",
    "seq2seq_attention_dot",
    "seq2seq_attention_scaled",
    "seq2seq_attention_additive",
    "seq2seq_bahdanau",
)
