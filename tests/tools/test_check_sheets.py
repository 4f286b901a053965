"""imdbattn.check understands the functions and classes that exercise sheets ask for."""

import csv
import io
import json
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
import yaml

import imdbattn.check
from imdbattn.errors import UserError
from imdbattn.tools.check.parts import check
from imdbattn.tools.check.report import Outcome, as_csv, as_gradescope, as_junit, as_text
from imdbattn.tools.check.sheets import FOLDER as OWN_SHEETS
from imdbattn.tools.check.sheets import OWN, load

from ..solutions.sheets.wrong import WRONG

FOLDER = Path(__file__).parents[1] / "solutions"
RIGHT = sorted(file for file in FOLDER.glob("sheets/*_*.py") if file.stem != "__init__")
TITLES = {"textbook": "textbook", "lab": "lab", "self": "self-attention", "course": "Courses"}


@pytest.fixture(autouse=True)
def as_before():
    """Checks change the default type of their process."""
    yield
    torch.set_default_dtype(torch.float32)


@cache
def judged(name: str) -> Outcome:
    """That of a right solution of this folder, at which several tests look."""
    return outcome_of(FOLDER / "sheets" / f"{name}.py")


def outcome_of(file: Path, sheet: str | None = None) -> Outcome:
    outcome = Outcome(str(file))
    for message in check(str(file), {}, sheet):
        outcome.take(message)
    return outcome


def changed(tmp_path: Path, name: str, old: str, new: str) -> Path:
    text = (FOLDER / f"{name}.py").read_text()
    assert old in text
    (file := tmp_path / "mine.py").write_text(text.replace(old, new, 1))
    return file


def findings(outcome: Outcome) -> list[tuple[str, str]]:
    return [(result["part"], result["finding"]) for result in outcome.of(False)]


def sentences(outcome: Outcome) -> str:
    return " ".join(result["sentence"] for result in outcome.of(None))


@pytest.mark.parametrize("file", RIGHT, ids=lambda file: file.stem)
def test_right_solutions_of_each_sheet_pass_without_names(file):
    outcome = judged(file.stem)
    assert (findings(outcome), outcome.error, outcome.status) == ([], "", 0)
    assert TITLES[file.stem.partition("_")[0]] in outcome.sheet
    assert "not compared" not in sentences(outcome)


@pytest.mark.parametrize(
    ("file", "note"),
    [
        ("self_padding_mask", "batch_first=False, x is (T, B, D)"),
        ("self_padding_mask", "the mask is True on padding"),
        ("self_scaled", "the mask is True on words"),
        ("self_scaled", "Differs from the sheet: positions are added after a projection."),
        ("course_additive", "the mask is added to the scores"),
        ("course_padding", "the mask is 1 on padding"),
        ("self_bias", "It is called by Sentiment with other arguments, and is checked there."),
        ("self_config", "Checked as SelfAttention."),
        ("textbook_classic", "Its argument X is changed in place"),
        ("self_one_class", "Checked as ResidualLayer."),
        ("self_lengths", "LayerNorm or what follows the attention is another."),
        ("self_lengths", "reads the largest of the words, not the mean."),
    ],
)
def test_what_could_have_been_otherwise_is_noted(file, note):
    assert note in sentences(judged(file))


@pytest.mark.parametrize(
    ("file", "part", "names", "old", "new"),
    [
        pytest.param(
            *(file, part, names, old, new),
            id=f"{file}-{part}-{what}",
            marks=pytest.mark.slow if number % 4 else (),
        )
        for number, (file, part, what, names, old, new) in enumerate(WRONG)
    ],
)
def test_wrong_solutions_of_each_sheet_are_refused_by_name(file, part, names, old, new, tmp_path):
    found = findings(outcome_of(changed(tmp_path, f"sheets/{file}", old, new)))
    assert any((part, name) in found for name in names.split("|")), found


def test_the_lab_may_return_logits_of_all_steps_in_one_axis(tmp_path):
    cat = "self.classifier(torch.cat(outputs, dim=1))"
    file = changed(tmp_path, "sheets/lab_gru", cat, f"{cat}.view(-1, VOCAB)")
    outcome = outcome_of(file)
    assert (findings(outcome), outcome.status) == ([], 0)
    once = "out, hidden_state = self.decoder(x, hidden_state)\n            outputs"
    text = file.read_text()
    assert once in text
    file.write_text(text.replace(once, once.replace("hidden_state =", "_ =")))
    assert findings(outcome_of(file)) == [("Seq2SeqModel", "state-not-carried")]


PADDING = "scores.masked_fill(key_padding_mask[:, None, None], -1e9)"


def test_key_padding_mask_is_true_on_padding_and_nan_without_words_is_a_note(tmp_path):
    infinite = PADDING.replace("-1e9", "-float('inf')")
    file = changed(tmp_path, "sheets/course_additive", PADDING, infinite)
    outcome = outcome_of(file)
    assert (findings(outcome), outcome.status) == ([], 0)
    assert "is nan for a review without words" in sentences(outcome)
    page = yaml.safe_load((OWN_SHEETS / "courses.yaml").read_text())
    for part in page["parts"].values():
        part.pop("without_words", None)
    (sheet := tmp_path / "my_sheet.yaml").write_text(yaml.safe_dump(page))
    assert findings(outcome_of(file, str(sheet))) == []
    inverted = infinite.replace("key_padding", "~key_padding")
    file.write_text(file.read_text().replace(infinite, inverted))
    assert ("MultiheadAttention", "mask-inverted") in findings(outcome_of(file))


@pytest.mark.parametrize("value", ["note", "wrong"])
def test_a_sheet_decides_whether_a_review_without_words_may_be_nan(value, tmp_path):
    page = yaml.safe_load((OWN_SHEETS / "self_attention.yaml").read_text())
    page["parts"]["model"]["without_words"] = value
    (sheet := tmp_path / "my_sheet.yaml").write_text(yaml.safe_dump(page))
    file = changed(tmp_path, "sheets/self_padding_mask", ".clamp(min=1.0)", "")
    found = findings(outcome_of(file, str(sheet)))
    assert found == [("AttentionClassifier", "nan-without-words")] * (value == "wrong")


def test_a_fused_layer_with_heads_is_recognized_under_any_name(tmp_path):
    text = (FOLDER / "sheets" / "course_padding.py").read_text()
    layer = text[text.index("class MultiHeadAttention") : text.index("class CausalSelf")]
    layer = layer.replace("MultiHeadAttention(", "Mixer(", 1).replace("attn_mask)", "mask)", 1)
    layer = layer.replace("=attn_mask[", "=mask[").replace("embed_dim, num_heads", "dim, heads=2")
    layer = layer.replace("embed_dim", "dim").replace("= num_heads", "= heads")
    (file := tmp_path / "mine.py").write_text(f"import torch\nfrom torch import nn\n\n\n{layer}")
    outcome = outcome_of(file)
    assert (findings(outcome), outcome.status) == ([], 0)
    assert "the mask is True on words" in sentences(outcome)
    file.write_text(file.read_text().replace("=mask[:, None, None]", "=None"))
    assert ("Mixer", "no-key-mask") in findings(outcome_of(file))


def test_a_model_may_have_two_classes_if_it_is_not_given_their_number(tmp_path):
    file = changed(tmp_path, "sheets/self_padding_mask", "num_layers, num_classes", "num_layers")
    file.write_text(file.read_text().replace("embed_dim, num_classes)", "embed_dim, 2)"))
    outcome = outcome_of(file)
    assert (findings(outcome), outcome.status) == ([], 0)
    file = changed(tmp_path, "sheets/self_padding_mask", "embed_dim, num_classes)", "embed_dim, 2)")
    assert ("AttentionClassifier", "wrong-shape") in findings(outcome_of(file))


SCORES = "hidden = self.W_q(queries)[:, :, None] + self.W_k(keys)[:, None]"
WEIGHTED = "self.dropout(masked_softmax(scores, valid_lens)) @ values"


@pytest.mark.parametrize("average", ["values", "keys"])
def test_scores_of_values_are_refused_by_name(average, tmp_path):
    weighted = WEIGHTED.replace("values", average)
    file = changed(tmp_path, "sheets/textbook_lazy", WEIGHTED, weighted)
    file.write_text(file.read_text().replace(SCORES, SCORES.replace("(keys)", "(values)")))
    assert ("AdditiveAttention", "arguments-exchanged") in findings(outcome_of(file))


def test_the_summary_says_which_results_were_not_compared(tmp_path):
    file = changed(tmp_path, "sheets/textbook_lazy", SCORES, SCORES.replace("keys", "keys ** 3"))
    outcome = outcome_of(file)
    assert findings(outcome) == []
    assert outcome.summary.endswith(" Results were not compared: AdditiveAttention.")
    tests = json.loads(as_gradescope([outcome]))["tests"]
    (text,) = [test["output"] for test in tests if test["name"] == "AdditiveAttention"]
    assert text == "The checks hold, but the results were not compared."


def test_a_part_without_lengths_is_checked_without_padding(tmp_path):
    text = (FOLDER / "sheets" / "textbook_lazy.py").read_text()
    attention = text[text.index("class AdditiveAttention") : text.index("class MultiHead")]
    attention = attention.replace("keys, values, valid_lens)", "keys, values)")
    attention = attention.replace("masked_softmax(scores, valid_lens)", "scores.softmax(-1)")
    (file := tmp_path / "mine.py").write_text(f"from torch import nn\n\n\n{attention}")
    outcome = outcome_of(file)
    assert (findings(outcome), outcome.status) == ([], 0)
    assert "padding was not checked" in sentences(outcome)
    file.write_text(file.read_text().replace("hidden.tanh()", "hidden"))
    assert findings(outcome_of(file)) == [("AdditiveAttention", "no-tanh")]


def test_only_parts_of_the_sheet_are_listed_as_absent():
    text = as_text(judged("course_bool"))
    assert "Not in the file: MultiheadAttention.\n" in text


@pytest.mark.parametrize(
    ("new", "note"),
    [
        (
            "self.embedding(tokens) * 4",
            "Differs from the sheet: the vectors are multiplied by sqrt",
        ),
        (
            "self.project(self.embedding(tokens))",
            "Differs from the sheet: positions are added after a projection.",
        ),
    ],
    ids=["scaled", "projected"],
)
def test_defensible_differences_are_notes_also_without_a_sheet(new, note, tmp_path):
    file = changed(tmp_path, "right/linears", "self.embedding(tokens)", new)
    head = "self.head = nn.Linear(width, classes)"
    layer = "self.project = nn.Linear(width, width)" if "project" in new else "pass"
    text = file.read_text()
    assert head in text
    file.write_text(text.replace(head, f"{layer}\n        {head}"))
    outcome = outcome_of(file)
    assert (findings(outcome), outcome.status) == ([], 0)
    assert note in sentences(outcome)


def test_a_mean_that_ignores_nan_is_checked_completely(tmp_path):
    mean = "(x * words).sum(1) / words.sum(1).clamp(min=1)"
    other = "x.masked_fill(~mask[..., None], float('nan')).nanmean(1).nan_to_num(0)"
    outcome = outcome_of(changed(tmp_path, "right/linears", mean, other))
    assert (findings(outcome), outcome.status, outcome.unmade) == ([], 0, 0)


# --- notebooks and graders ---------------------------------------------------------------------


def named(file: str, *names: str) -> list:
    """These classes and functions as in a notebook, whose module is __main__."""
    own: dict = {"__name__": "__main__"}
    exec((FOLDER / "sheets" / f"{file}.py").read_text(), own)
    return [own[name] for name in names]


def test_score_knows_the_sheets():
    parts = named("textbook_lazy", "masked_softmax", "DotProductAttention")
    report = imdbattn.check.score(*parts)
    assert (report.passed, report.sheet) == (True, load("textbook").title)
    parts = named("course_causal", "CausalSelfAttn")
    report = imdbattn.check.score(CausalAttn=parts[0], sheet="courses")
    assert (report.passed, list(report.parts)) == (True, ["CausalSelfAttention"])
    assert torch.get_default_dtype() == torch.float32


def test_reports_of_sheets_have_the_sheets_names(tmp_path):
    file = changed(tmp_path, "sheets/lab_plain", "return logits\n", "return logits.softmax(-1)\n")
    outcome = outcome_of(file)
    outcome.points = {"Seq2SeqModel": 4.0}
    (test,) = json.loads(as_gradescope([outcome]))["tests"]
    assert (test["name"], test["max_score"], test["status"]) == ("Seq2SeqModel", 4.0, "failed")
    assert 0 < test["score"] < 4
    assert "softmax-twice" in test["output"]
    (suite,) = ElementTree.fromstring(as_junit([outcome]))
    failed = [
        (case.get("classname"), case.get("name"))
        for case in suite
        if len(case) and case[0].tag == "failure"
    ]
    assert ("Seq2SeqModel", "logits") in failed
    (row,) = csv.DictReader(io.StringIO(as_csv([outcome])))
    assert "Seq2SeqModel: softmax-twice" in row["findings"]


# --- sheets of teachers ---------------------------------------------------------------------------

MINE = {
    "title": "My sheet",
    "parts": {
        "soft": {
            "rules": "masked_softmax",
            "signature": "soft(a, n)",
            "calls": {"a": "scores", "n": "valid_lengths"},
            "change": "Mask first.",
            "stub": "def soft(a, n):\n    raise NotImplementedError",
        }
    },
}
SOFT = "import torch\n\ndef soft(a, n):\n    return {}\n"
RIGHT_SOFT = "a.masked_fill(torch.arange(a.shape[-1]) >= n[:, None, None], -1e9).softmax(-1)"


def test_a_teacher_adds_a_sheet_as_a_yaml_file(here, tmp_path):
    (tmp_path / "my_sheet.yaml").write_text(yaml.safe_dump(MINE))
    (tmp_path / "right.py").write_text(SOFT.format(RIGHT_SOFT))
    (tmp_path / "wrong.py").write_text(SOFT.format("a.softmax(-1)"))
    options = ["--sheet", "my_sheet.yaml", "--json"]
    done = here("right.py", *options)
    assert (done.returncode, done.stderr) == (0, "")
    done = here("wrong.py", *options, "--require", "soft")
    (found,) = [one for one in json.loads(done.stdout)["checks"] if one["held"] is False]
    assert (found["part"], found["finding"]) == ("soft", "lengths-ignored")
    assert found["fix"].startswith("Replace the scores")
    assert found["fix"].endswith(" As a whole: Mask first.")
    done = here("--stub", "my_sheet.yaml")
    assert "def soft(a, n):" in done.stdout


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"rules": "masked_softmx"}, "there are no rules 'masked_softmx'"),
        ({"argument": {}}, "the key 'argument'"),
        ({"calls": None}, "calls"),
        ({"names": ["soft("]}, "'soft\\(' is no regular expression"),
        ({"calls": {"a": "q", "*n": "lengths"}}, "is no regular expression"),
        ({"names": "soft("}, "'soft\\(' is no regular expression"),
        ({"sizes": 3}, "sizes is names with what is given for them"),
    ],
)
def test_a_sheet_with_a_mistake_is_refused_by_name(change, error, tmp_path):
    page = {"parts": {"soft": MINE["parts"]["soft"] | change}}
    (file := tmp_path / "my_sheet.yaml").write_text(yaml.safe_dump(page))
    with pytest.raises(UserError, match=error):
        load(str(file))


def test_a_bad_pattern_of_a_sheet_ends_in_one_line(here, tmp_path):
    page = {"parts": {"soft": MINE["parts"]["soft"] | {"names": ["soft("]}}}
    (tmp_path / "my_sheet.yaml").write_text(yaml.safe_dump(page))
    (tmp_path / "mine.py").write_text("def soft(a, n):\n    return a\n")
    done = here("mine.py", "--sheet", "my_sheet.yaml")
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert "my_sheet.yaml: soft: 'soft(' is no regular expression" in line


@pytest.mark.parametrize("sheet", OWN)
def test_the_stub_of_a_sheet_is_recognized_and_unwritten(sheet, here, tmp_path):
    done = here("--stub", sheet)
    (file := tmp_path / "stub.py").write_text(done.stdout)
    outcome = outcome_of(file)
    assert outcome.sheet == load(sheet).title
    assert {finding for _, finding in findings(outcome)} == {"not-written-yet"}


SCALED = """
import torch


def scaled_dot_product_attention(query, key, value, mask):
    '''{said}'''
    scores = query @ key.mT * query.shape[-1] ** -0.5
    scores = {masked}
    return scores.softmax(-1) @ value
"""
FORBIDDEN = "scores.masked_fill(mask, -1e9)"


@pytest.mark.parametrize(
    ("said", "masked", "finding"),
    [
        ("True marks the keys that are hidden.", FORBIDDEN, None),
        ("0, or -1e9 for keys that are left out.", "scores + mask", None),
        ("True marks the keys that a query may look at.", FORBIDDEN, "mask-inverted"),
        ("Attention.", FORBIDDEN, "mask-inverted"),
        ("The mask is bool.", "scores + mask.float()", "mask-too-weak"),
    ],
)
def test_another_convention_of_the_mask_must_be_said(said, masked, finding, tmp_path):
    (file := tmp_path / "mine.py").write_text(SCALED.format(said=said, masked=masked))
    right = [("scaled_dot_product_attention", finding)] if finding else []
    assert findings(outcome_of(file)) == right


WRAPPER = """
import torch
from torch import nn


class Wrapper(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.inner = nn.MultiheadAttention(embed_dim, num_heads, batch_first=True)

    def forward(self, query, key, value, key_padding_mask=None, attn_mask=None):
        return self.inner(query, key, value, key_padding_mask=PADDING, attn_mask=MASK)
"""


@pytest.mark.parametrize(
    ("padding", "mask", "found"),
    [
        ("key_padding_mask", "attn_mask", []),
        ("key_padding_mask", "None", ["attention-mask-not-used"]),
        (
            "None if attn_mask is not None else key_padding_mask",
            "attn_mask",
            ["attention-mask-alone"],
        ),
        (
            "key_padding_mask",
            "None if attn_mask is None else ~attn_mask",
            ["attention-mask-inverted"],
        ),
        ("None", "attn_mask", ["no-key-mask"]),
    ],
)
def test_modules_with_the_arguments_of_torch_are_checked_under_any_name(
    padding, mask, found, tmp_path
):
    text = WRAPPER.replace("=PADDING", f"={padding}").replace("=MASK", f"={mask}")
    (file := tmp_path / "mine.py").write_text(text)
    outcome = outcome_of(file)
    assert outcome.parts.keys() == {"Wrapper"}
    assert [finding for _, finding in findings(outcome)] == found


def test_a_softmax_that_raises_without_words_is_a_note(tmp_path):
    text = """
import torch


def masked_softmax(X, valid_lens):
    if valid_lens is None:
        valid_lens = torch.full(X.shape[:1], X.shape[2])
    result = torch.zeros_like(X)
    for b in range(X.shape[0]):
        for q in range(X.shape[1]):
            n = valid_lens[b] if valid_lens.dim() == 1 else valid_lens[b][q]
            row = X[b, q, :n] - X[b, q, :n].max()
            result[b, q, :n] = row.exp() / row.exp().sum()
    return result
"""
    (file := tmp_path / "mine.py").write_text(text)
    outcome = outcome_of(file)
    assert (findings(outcome), outcome.status) == ([], 0)
    assert "A review without words raises" in sentences(outcome)


def test_the_lab_may_decode_a_constant_number_of_steps(tmp_path):
    text = (FOLDER / "sheets" / "lab_gru.py").read_text()
    steps = "for t in range(decoder_X.shape[1])"
    assert steps in text
    text = text.replace(steps, "for t in range(SEQ_LENGTH)")
    (file := tmp_path / "mine.py").write_text(f"{text}\n\nSEQ_LENGTH = 12\n")
    assert findings(outcome_of(file)) == []
    file.write_text(file.read_text().replace("    out, hidden_state =", "    out, _ ="))
    assert ("Seq2SeqModel", "state-not-carried") in findings(outcome_of(file))


# --- kinds of mistakes that are told apart --------------------------------------------------------


def the_finding(file: Path) -> dict:
    """The only finding of the file."""
    (found,) = outcome_of(file).of(False)
    return found


def test_what_to_change_belongs_to_the_mistake(tmp_path):
    text = (FOLDER / "sheets" / "course_bool.py").read_text()
    back = "y.transpose(1, 2).contiguous()"
    assert back in text
    (file := tmp_path / "mine.py").write_text(text.replace(back, "y.contiguous()"))
    found = the_finding(file)
    assert found["finding"] == "heads-mix-words"
    assert "transpose(1, 2)" in found["fix"]
    assert "later words" not in found["fix"]
    assert "1 review of 1 word," not in found["example"], "one word has no other to be mixed with"


CONTEXT = "context = self.get_context_vector(encoder_out, hidden_state)"
TOKEN = "x = torch.cat([self.dec_embedding(input_X), context], dim=-1)"
STEP = "        out, hidden_state = self.decoder(x, hidden_state)\n        logits"
ENCODED = "        encoder_out, hidden_state = self.encoding(encoder_X)\n"
ALL_STEPS = "self.classifier(torch.cat(outputs, dim=1))"


@pytest.mark.parametrize(
    ("finding", "old", "new"),
    [
        ("prediction-without-context", TOKEN, TOKEN.replace("context]", "context * 0]")),
        ("prediction-without-token", TOKEN, TOKEN.replace("(input_X)", "(input_X * 0)")),
        ("prediction-other-embedding", TOKEN, TOKEN.replace("dec_emb", "enc_emb")),
        ("prediction-old-state", STEP, STEP.replace("out, hidden_state =", "out, _ =")),
        ("prediction-not-largest", "logits.argmax(-1)", "logits.argmin(-1)"),
        (
            "encoder-first-state",
            ENCODED,
            f"{ENCODED}        hidden_state = encoder_out[:, :1].transpose(0, 1).contiguous()\n",
        ),
        (
            "results-reshaped",
            ALL_STEPS,
            "self.classifier(torch.cat(outputs).view(*decoder_X.shape, -1))",
        ),
        ("layer-not-used", "embedded = self.dec_embedding", "embedded = self.enc_embedding"),
        ("logits-not-negative", ALL_STEPS, f"{ALL_STEPS}.relu()"),
        ("sees-later-tokens", "embedded[:, t : t + 1]", "embedded.roll(-1, 1)[:, t : t + 1]"),
        (
            "one-step-late",
            "outputs.append(out)",
            "outputs.append(context + 0 * out if t == 0 else before)\n            before = out",
        ),
        ("same-at-each-step", ALL_STEPS, "self.classifier(torch.cat([out] * len(outputs), dim=1))"),
    ],
)
def test_the_lab_says_what_differs(finding, old, new, tmp_path):
    found = the_finding(changed(tmp_path, "sheets/lab_gru", old, new))
    assert (found["part"], found["finding"]) == ("Seq2SeqModel", finding)


def test_a_wrong_context_hides_no_other_mistake_and_is_found_once(tmp_path):
    file = changed(tmp_path, "sheets/lab_gru", "F.softmax(score, dim=1)", "F.softmax(score, dim=0)")
    assert findings(outcome_of(file)) == [("get_context_vector", "softmax-over-batch")]
    file.write_text(file.read_text().replace("logits.argmax(-1)", "logits.argmin(-1)"))
    assert findings(outcome_of(file)) == [
        ("get_context_vector", "softmax-over-batch"),
        ("Seq2SeqModel", "prediction-not-largest"),
    ]


@pytest.mark.parametrize(
    ("finding", "new"),
    [
        ("no-softmax", "score"),
        ("no-softmax", "score.exp()"),
        ("sigmoid-not-softmax", "score.sigmoid()"),
        ("outputs-projected", "F.softmax(score, dim=1)"),
    ],
)
def test_weights_that_are_no_softmax_have_names(finding, new, tmp_path):
    file = changed(tmp_path, "sheets/lab_gru", "F.softmax(score, dim=1)", new)
    if finding == "outputs-projected":
        text = file.read_text().replace(
            "transpose(1, 2), encoder_out)", "transpose(1, 2), self.attention_W(encoder_out))"
        )
        file.write_text(text)
    assert findings(outcome_of(file)) == [("get_context_vector", finding)]


OUTPUTS = "return outputs.transpose(0, 1), hidden_state, enc_valid_lens"
SCORED = "scores = self.w_v(hidden.tanh())[..., 0]"


@pytest.mark.parametrize(
    ("part", "finding", "old", "new"),
    [
        (
            "Seq2SeqAttentionDecoder",
            "outputs-reshaped",
            OUTPUTS,
            OUTPUTS.replace("transpose(0, 1)", "reshape(outputs.shape[1], outputs.shape[0], -1)"),
        ),
        (
            "Seq2SeqAttentionDecoder",
            "context-without-attention",
            "context = self.attention(hidden[-1][:, None], memory, memory, lens)",
            "context = memory.mean(1, keepdim=True)",
        ),
        (
            "DotProductAttention",
            "cosine-scores",
            "queries, keys) * queries.shape[-1] ** -0.5",
            "*(x / x.norm(dim=-1, keepdim=True) for x in (queries, keys)))",
        ),
        (
            "DotProductAttention",
            "wrong-scale",
            "queries.shape[-1] ** -0.5",
            "values.shape[-1] ** -0.5",
        ),
        (
            "MultiHeadAttention",
            "projected-twice",
            "self.cut(self.W_q(queries))",
            "self.cut(F.linear(self.W_q(queries), self.W_q.weight))",
        ),
        (
            "AdditiveAttention",
            "scores-added-up",
            SCORED,
            f"{SCORED}.sum(1, keepdim=True).expand(-1, queries.shape[1], -1)",
        ),
        (
            "AdditiveAttention",
            "function-of-values",
            "valid_lens)) @ values",
            "valid_lens)) @ values.tanh()",
        ),
        (
            "masked_softmax",
            "lengths-from-the-end",
            "device=X.device) >= lens",
            "device=X.device).flip(0) >= lens",
        ),
        (
            "AdditiveAttention",
            "softmax-over-one",
            SCORED,
            "scores = self.w_v(hidden.tanh()).softmax(-1)[..., 0]",
        ),
        (
            "AdditiveAttention",
            "weights-do-not-sum-to-1",
            "self.dropout(masked_softmax(scores, valid_lens)) @ values",
            "self.dropout(masked_softmax(scores, valid_lens)) @ values / keys.shape[1]",
        ),
        (
            "DotProductAttention",
            "wrong-scale",
            "queries.shape[-1] ** -0.5",
            "0.4",
        ),
    ],
)
def test_the_textbooks_mistakes_have_names(part, finding, old, new, tmp_path):
    found = the_finding(changed(tmp_path, "sheets/textbook_lazy", old, new))
    assert (found["part"], found["finding"]) == (part, finding)


ADDED = """
import torch
from torch import nn


class SelfAttention(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(dim, dim) for _ in range(3))

    def forward(self, x, mask):
        scores = self.q(x) @ self.k(x).mT / x.shape[-1] ** 0.5
        return x + scores.masked_fill(~mask[:, None], -1e9).softmax(-1) @ self.v(x)
"""
AGAIN = """

class ResidualBlock(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.attention = SelfAttention(dim)

    def forward(self, x, mask):
        return x + self.attention(x, mask)
"""


def test_attention_may_add_its_input_if_no_other_class_adds_it_again(tmp_path):
    (file := tmp_path / "mine.py").write_text(ADDED)
    assert findings(outcome_of(file, "self_attention")) == []
    file.write_text(ADDED + AGAIN)
    found = findings(outcome_of(file, "self_attention"))
    assert ("SelfAttention", "skip-in-attention") in found


@pytest.mark.parametrize(
    ("said", "finding"),
    [("mask (B, T): True for words", []), ("mask (B, T): True on padding", ["mask-inverted"])],
)
def test_a_mask_is_what_the_docstring_says(said, finding, tmp_path):
    text = ADDED.replace("return x + ", "return ")
    text = text.replace("    def __init__", f'    """{said}."""\n\n    def __init__', 1)
    (file := tmp_path / "mine.py").write_text(text)
    assert [name for _, name in findings(outcome_of(file, "self_attention"))] == finding


def test_an_inverted_mask_of_torchs_layers_has_its_name(tmp_path):
    text = """
import torch
from torch import nn


class Encoded(nn.Module):
    def __init__(self, vocab_size, d_model, num_classes):
        super().__init__()
        self.embed = nn.Embedding(vocab_size, d_model)
        layer = nn.TransformerEncoderLayer(d_model, 2, 32, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(d_model, num_classes)

    def forward(self, tokens, lengths):
        padding = torch.arange(tokens.shape[1]) >= lengths[:, None]
        y = self.encoder(self.embed(tokens), src_key_padding_mask=padding)
        return self.head(y.masked_fill(padding[..., None], 0).sum(1) / lengths[:, None])
"""
    (file := tmp_path / "mine.py").write_text(text)
    assert findings(outcome_of(file)) == []
    file.write_text(text.replace("mask=padding)", "mask=~padding)"))
    assert findings(outcome_of(file)) == [("Encoded", "mask-inverted")]


TAKES_VECTORS = (
    ADDED.replace("class SelfAttention", "class Layer")
    + """

class Model(nn.Module):
    def __init__(self, dim=8, n_classes=2):
        super().__init__()
        self.layer, self.head = Layer(dim), nn.Linear(dim, n_classes)

    def forward(self, x, mask):
        total = (self.layer(x, mask) * mask[..., None]).sum(1)
        return self.head(total / mask.sum(1, keepdim=True))
"""
)


@pytest.mark.parametrize(
    ("old", "new", "wanted"),
    [("", "", set()), ("mask.sum(1, keepdim=True)", "x.shape[1]", {"divides-by-padded-length"})],
)
def test_a_model_that_takes_vectors_is_given_vectors(old, new, wanted, tmp_path):
    (file := tmp_path / "model.py").write_text(TAKES_VECTORS.replace(old, new))
    outcome = outcome_of(file)
    assert any(part == "Model" for part in outcome.parts)
    assert {finding for _, finding in findings(outcome)} == wanted


def test_a_layer_made_in_forward_is_named(tmp_path):
    text = TAKES_VECTORS.replace("self.v(x)", "nn.Linear(x.shape[-1], x.shape[-1])(x)")
    (file := tmp_path / "model.py").write_text(text)
    assert ("Layer", "made-in-forward") in findings(outcome_of(file))


@pytest.mark.parametrize(
    ("finding", "file", "old", "new"),
    [
        ("softmax-over-heads", "self_heads", "a = self.drop(s.softmax(-1))", "a = s.softmax(1)"),
        (
            "reshaped-not-transposed",
            "lab_plain",
            "self.encoder(self.embed_in(encoder_X))",
            "self.encoder(self.embed_in(encoder_X).view(*encoder_X.shape[::-1], -1).mT.mT"
            ".transpose(0, 1))",
        ),
        ("prediction-old-state", "lab_plain", "out, hidden_state = self", "out, _ = self"),
        ("layer-not-used", "lab_plain", "return self.linear(out), h", "return out, h"),
        ("shared-projections", "textbook_older", "self.W_k(key)", "self.W_q(key)"),
        (
            "positions-not-added",
            "self_one_class",
            "return x + self.pe[: x.size(1)].unsqueeze(0)",
            "return self.pe[: x.size(1)].unsqueeze(0)",
        ),
        (
            "layer-not-used",
            "textbook_older",
            "self.dense(torch.cat(outputs, dim=0))",
            "torch.cat(outputs, dim=0)",
        ),
        ("no-scale", "self_one_class", " / math.sqrt(h.size(2))", ""),
        ("result-not-used", "self_heads", "x = b(x, pad_mask)", "b(x, pad_mask)"),
    ],
)
def test_mistakes_are_read_from_the_operations(finding, file, old, new, tmp_path):
    found = findings(outcome_of(changed(tmp_path, f"sheets/{file}", old, new)))
    assert finding in [name for _, name in found], found


HEADS = """
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, d, h=2):
        super().__init__()
        self.h, self.qkv, self.out = h, nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.norm = nn.LayerNorm(d)

    def forward(self, x, mask):
        y = self.norm(x)
        q, k, v = self.qkv(y).chunk(3, -1)
        made = []
        for a, b, c in zip(q.chunk(self.h, -1), k.chunk(self.h, -1), v.chunk(self.h, -1)):
            s = a @ b.mT / a.shape[-1] ** 0.5
            made.append((s + (1 - mask)[:, None] * -1e9).softmax(-1) @ c)
        return x + self.out(torch.cat(made, -1))


class Net(nn.Module):
    def __init__(self, E):
        super().__init__()
        self.E, d = nn.Parameter(E.clone()), E.shape[1]
        self.one, self.two, self.head = Attention(d), Attention(d), nn.Linear(d, 2)

    def forward(self, tokens, lengths):
        mask = (torch.arange(tokens.shape[1]) < lengths[:, None]).to(self.E.dtype)
        x = self.E[tokens]
        x = self.two(self.one(x, mask), mask)
        return self.head((x * mask[..., None]).sum(1) / lengths[:, None])
"""
LAYERS = "self.two(self.one(x, mask), mask)"


def test_settings_in_a_class_of_their_own_are_no_layer(tmp_path):
    text = """
import torch
from dataclasses import dataclass
from torch import nn


@dataclass
class AttentionConfig:
    width: int = 8
    epsilon: float = 1e-5


class Attention(nn.Module):
    def __init__(self, cfg: AttentionConfig):
        super().__init__()
        self.norm = nn.LayerNorm(cfg.width, eps=cfg.epsilon)
        self.q, self.k, self.v = (nn.Linear(cfg.width, cfg.width) for _ in range(3))

    def forward(self, x, mask):
        y = self.norm(x)
        scores = self.q(y) @ self.k(y).mT / x.shape[-1] ** 0.5
        return x + scores.masked_fill(~mask[:, None], -1e9).softmax(-1) @ self.v(y)
"""
    (file := tmp_path / "mine.py").write_text(text)
    outcome = outcome_of(file)
    assert (findings(outcome), outcome.status, [*outcome.parts]) == ([], 0, ["Attention"])


def test_a_model_is_recognized_by_its_result_and_a_mask_may_be_of_numbers(tmp_path):
    (file := tmp_path / "mine.py").write_text(HEADS)
    outcome = outcome_of(file)
    assert (findings(outcome), outcome.status) == ([], 0)
    assert "the mask is 1 on words" in sentences(outcome)
    assert "mean" in outcome.parts["Net"]


@pytest.mark.parametrize(
    ("part", "finding", "old", "new"),
    [
        ("Net", "depends-on-padding", "x * mask[..., None]", "x"),
        ("Net", "layers-in-parallel", LAYERS, "self.one(x, mask) + self.two(x, mask)"),
        ("Net", "positions-added-often", LAYERS, "self.two(self.one(x + P, mask) + P, mask)"),
        (
            "Net",
            "reviews-reordered",
            "self.E[tokens]",
            "self.E[tokens][lengths.argsort()]\n        mask = mask[lengths.argsort()]\n"
            "        lengths = lengths.sort().values",
        ),
        ("Attention", "skip-twice", "return x +", "return x + x +"),
        ("Attention", "norm-on-skip", "return x +", "return y +"),
        (
            "Attention",
            "no-norm",
            "self.qkv(y).chunk(3, -1)",
            "(a if n else b for n, (a, b) in enumerate(zip(self.qkv(x).chunk(3, -1),"
            " self.qkv(y).chunk(3, -1))))",
        ),
    ],
)
def test_mistakes_of_layers_and_models_have_names(part, finding, old, new, tmp_path):
    assert old in HEADS
    text = HEADS.replace(old, new, 1)
    if " P" in new:
        angle = "torch.arange(9.0)[:, None] / 10000 ** (torch.arange(16) // 2 * 2 / 16)"
        table = f"torch.where(torch.arange(16) % 2 == 0, ({angle}).sin(), ({angle}).cos())"
        text = text.replace(
            "        x = self.E", f"        P = ({table})[: tokens.shape[1]]\n        x = self.E"
        )
    (file := tmp_path / "mine.py").write_text(text)
    assert findings(outcome_of(file)) == [(part, finding)]


ONE = """
import torch
from torch import nn


class AdditiveAttention(nn.Module):
    def __init__(self, num_hiddens, dropout):
        super().__init__()
        self.W_q, self.W_k = (nn.Linear(num_hiddens, num_hiddens, bias=False) for _ in range(2))
        self.w_v = nn.Linear(num_hiddens, 1, bias=False)

    def forward(self, queries, keys, values, valid_lens):
        s = self.w_v((self.W_q(queries)[:, :, None] + self.W_k(keys)[:, None]).tanh())[..., 0]
        if valid_lens is not None:
            n = valid_lens.view(len(s), -1, 1)
            s = s.masked_fill(torch.arange(s.shape[-1]) >= n, -1e6)
        return s.softmax(-1) @ values
"""


@pytest.mark.parametrize(
    ("old", "new", "wanted"),
    [
        ("", "", []),
        ("self.W_k(keys)", "self.W_q(keys)", ["shared-projections"]),
        ("s = self.w_v(", "s = -self.w_v(", ["scores-negated"]),
        (".tanh())[..., 0]", ".tanh())[..., 0] ** 2", ["function-of-scores"]),
        (".tanh())[..., 0]", ".tanh())[..., 0].cumsum(-1)", ["scores-added-up"]),
        (
            "s.softmax(-1) @",
            "s.softmax(-1).mean(1, keepdim=True).expand_as(s) @",
            ["weights-averaged"],
        ),
        (
            "self.W_k(keys)[:, None]",
            "self.W_k(queries)[:, :, None] + 0 * keys[:, None]",
            ["no-attention"],
        ),
    ],
)
def test_additive_attention_of_one_width_is_checked_with_it(old, new, wanted, tmp_path):
    (file := tmp_path / "mine.py").write_text(ONE.replace(old, new, 1))
    outcome = outcome_of(file)
    assert [name for _, name in findings(outcome)] == wanted
    assert "AdditiveAttention" in outcome.parts


FOUR = """
import torch


def scaled_dot_product_attention(query, key, value, mask=None):
    s = query @ key.permute(0, 1, 3, 2) / query.shape[3] ** 0.5
    if mask is not None:
        s = s.masked_fill(~mask, float("-inf"))
    return s.softmax(-1) @ value
"""


@pytest.mark.parametrize(
    ("new", "wanted"),
    [
        ("s.softmax(-1)", []),
        ("s.flatten(2).softmax(-1).view_as(s)", ["softmax-over-all"]),
        ("(s.exp() / (s.exp().sum((-1, -2), keepdim=True) + 1))", ["weights-do-not-sum-to-1"]),
    ],
)
def test_attention_may_be_called_with_an_axis_of_heads(new, wanted, tmp_path):
    (file := tmp_path / "mine.py").write_text(FOUR.replace("s.softmax(-1)", new))
    assert [name for _, name in findings(outcome_of(file))] == wanted


@pytest.mark.parametrize(
    ("finding", "file", "old", "new"),
    [
        (
            "prediction-other-layer",
            "lab_plain",
            "logits, hidden_state = self.decoding(input_X, hidden_state)",
            "out, hidden_state = self.encoder(self.embed_out(input_X), hidden_state)\n"
            "        logits = self.linear(out)",
        ),
        (
            "query-of-the-word",
            "textbook_lazy",
            "self.attention(hidden[-1][:, None],",
            "self.attention(hidden[-1][:, None] + word.sum(-1, keepdim=True),",
        ),
        (
            "no-key-mask",
            "self_heads",
            "s = s.masked_fill(pad_mask[:, None, None, :], -1e9)",
            "s[:, :1] = s[:, :1].masked_fill(pad_mask[:, None, None, :], -1e9)",
        ),
        (
            "heads-mix-words",
            "textbook_lazy",
            "x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2).flatten(0, 1)",
            "x.reshape(x.shape[1], x.shape[0] * self.num_heads, -1).transpose(0, 1)",
        ),
        (
            "depends-on-padding",
            "self_config",
            "(x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)",
            "x.mean(1)",
        ),
        (
            "sees-later-words",
            "course_config",
            "torch.triu(torch.ones(T, T, dtype=torch.bool), diagonal=1)",
            "torch.tril(torch.ones(T, T, dtype=torch.bool), diagonal=-1)",
        ),
        (
            "positions-run-on",
            "self_residual",
            "x + self.pe[: x.size(1)]",
            "x + self.pe[: x.size(0) * x.size(1)].view(x.shape)",
        ),
        ("columns-overwritten", "self_residual", "pe[:, 1::2] =", "pe[:, 0::2] ="),
        ("added-mask-changed", "course_additive", "scores + mask, dim", "scores + mask / 2, dim"),
        (
            "norm-over-words",
            "self_one_class",
            "h = self.ln(x)",
            "h = (x - x.mean((1, 2), True)) / x.std((1, 2), keepdim=True) * self.ln.weight"
            " + self.ln.bias",
        ),
        (
            "not-batch-first",
            "lab_plain",
            "_, hidden_state = self.encoder(self.embed_in(encoder_X))",
            "self.encoder.batch_first = False\n"
            "        hidden_state = self.encoder(self.embed_in(encoder_X))[0][:, -1][None]",
        ),
        (
            "prediction-without-state",
            "lab_plain",
            "self.decoding(input_X, hidden_state)",
            "self.decoding(input_X, hidden_state * 0)",
        ),
        ("no-scale", "self_bias", " / x.shape[-1] ** 0.5", ""),
        (
            "not-a-mean",
            "self_bias",
            "mask.sum(1, keepdim=True))",
            "mask.sum(1, keepdim=True).sqrt())",
        ),
        (
            "divides-by-all-words",
            "self_bias",
            "mask.sum(1, keepdim=True))",
            "mask.sum(1).double().mean())",
        ),
        (
            "logits-summed",
            "self_bias",
            "self.out((x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True))",
            "(self.out(x) * mask[..., None]).sum(1)",
        ),
        (
            "positions-scaled",
            "self_residual",
            "return x + self.pe[: x.size(1)]",
            "return 3 * (x + self.pe[: x.size(1)])",
        ),
        (
            "one-query-only",
            "textbook_lazy",
            "hidden = self.W_q(queries)[:, :, None]",
            "hidden = self.W_q(queries)[:, :1, None].expand(-1, queries.shape[1], -1, -1)",
        ),
        (
            "one-head-used",
            "textbook_lazy",
            "self.cut(self.W_v(values))",
            "self.cut(self.W_v(values).unflatten(-1, (self.num_heads, -1))[..., :1, :]"
            ".expand(-1, -1, self.num_heads, -1).flatten(-2))",
        ),
        (
            "columns-overwritten",
            "self_one_class",
            "pe[:, 1::2] = torch.cos(position * div)",
            "pe *= 0\n        for i in range(d_model // 2):\n"
            "            pe[:, i] = torch.sin(position * div)[:, i]\n"
            "            pe[:, i + 1] = torch.cos(position * div)[:, i]",
        ),
        (
            "other-pairs",
            "textbook_lazy",
            "hidden = self.W_q(queries)[:, :, None] + self.W_k(keys)[:, None]",
            "Q, T = queries.shape[1], keys.shape[1]\n"
            "        q, k = self.W_q(queries).repeat(1, T, 1), self.W_k(keys).repeat(1, Q, 1)\n"
            "        hidden = (q + k).unflatten(1, (Q, T))",
        ),
        (
            "argument-not-used",
            "textbook_lazy",
            "hidden = self.W_q(queries)[:, :, None] + self.W_k(keys)[:, None]",
            "hidden = self.W_q(queries)[:, :, None] * 0 + self.W_k(keys)[:, None]",
        ),
        (
            "heads-mix-reviews",
            "textbook_lazy",
            "y = self.attention(q, k, v, valid_lens).unflatten(0, (-1, self.num_heads))",
            "y = self.attention(q, k, v, valid_lens)\n"
            "        y = y.unflatten(0, (self.num_heads, -1)).transpose(0, 1)",
        ),
        (
            "lengths-of-other-reviews",
            "textbook_lazy",
            "y = self.attention(q, k, v, valid_lens).unflatten(0, (-1, self.num_heads))",
            "q, k, v = (x.unflatten(0, (-1, self.num_heads)).transpose(0, 1).flatten(0, 1)\n"
            "            for x in (q, k, v))\n"
            "        y = self.attention(q, k, v, valid_lens).unflatten(0, (self.num_heads, -1))\n"
            "        y = y.transpose(0, 1)",
        ),
        (
            "one-head-used",
            "textbook_lazy",
            "self.cut(self.W_k(keys))",
            "self.cut(self.W_k(keys).chunk(self.num_heads, -1)[0].repeat(1, 1, self.num_heads))",
        ),
        (
            "sizes-exchanged",
            "textbook_loops",
            "self.qs = nn.ModuleList([nn.Linear(query_size, d",
            "self.qs = nn.ModuleList([nn.Linear(key_size, d",
        ),
        (
            "softmax-over-all",
            "textbook_lazy",
            "return X.masked_fill(hidden, -1e6).softmax(-1)",
            "e = (X - X.amax(-1, keepdim=True)).exp() * ~hidden\n"
            "    return e / e.sum((1, 2), keepdim=True)",
        ),
        (
            "weights-do-not-sum-to-1",
            "textbook_lazy",
            "return X.masked_fill(hidden, -1e6).softmax(-1)",
            "e = (X - X.amax(-1, keepdim=True)).exp() * ~hidden\n"
            "    return e / (X.exp() * ~hidden).sum(-1, keepdim=True)",
        ),
        (
            "function-of-scores",
            "textbook_lazy",
            "return X.masked_fill(hidden, -1e6).softmax(-1)",
            "return (X - X.amax(1, keepdim=True)).masked_fill(hidden, -1e6).softmax(-1)",
        ),
        (
            "no-softmax",
            "course_bool",
            "y = F.softmax(att, dim=-1) @ v",
            "y = att.masked_fill(att == float('-inf'), -1e9) @ v",
        ),
        (
            "changes-its-input",
            "course_bool",
            "scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(d_k)",
            "query /= math.sqrt(d_k)\n    scores = torch.matmul(query, key.transpose(-2, -1))",
        ),
        (
            "mask-as-length",
            "course_bool",
            "scores = scores.masked_fill(mask == 0, -1e9)",
            "number = mask.sum(-1, keepdim=True)\n"
            "        places = torch.arange(scores.shape[-1])\n"
            "        scores = scores.masked_fill(places >= number, -1e9)",
        ),
        (
            "wrong-angle",
            "self_one_class",
            "pe[:, 1::2] = torch.cos(position * div)",
            "pe[:, 1::2] = torch.cos(position + div)",
        ),
        (
            "not-sin-and-cos",
            "self_one_class",
            "pe[:, 1::2] = torch.cos(position * div)",
            "pe[:, 1::2] = position * div",
        ),
        (
            "not-a-mean",
            "self_bias",
            "mask.sum(1, keepdim=True))",
            "mask.sum(1, keepdim=True) ** 3)",
        ),
        (
            "state-of-another-review",
            "lab_gru",
            "query = hidden_state.transpose(0, 1)",
            "query = hidden_state[:, -1:].expand_as(hidden_state).transpose(0, 1)",
        ),
    ],
)
def test_what_differs_is_said(finding, file, old, new, tmp_path):
    found = findings(outcome_of(changed(tmp_path, f"sheets/{file}", old, new)))
    assert finding in [name for _, name in found], found


DECODER = """
import torch
from torch import nn


class Seq2SeqAttentionDecoder(nn.Module):
    def __init__(self, vocab_size, embed_size, num_hiddens, num_layers, dropout=0):
        super().__init__()
        self.embed = nn.Embedding(vocab_size, embed_size)
        self.q, self.k = (nn.Linear(num_hiddens, num_hiddens) for _ in range(2))
        self.v = nn.Linear(num_hiddens, 1)
        self.rnn = nn.GRU(embed_size + num_hiddens, num_hiddens, num_layers)
        self.out = nn.Linear(num_hiddens, vocab_size)

    def init_state(self, enc_outputs, enc_valid_lens):
        return enc_outputs[0].transpose(0, 1), enc_outputs[1], enc_valid_lens

    def forward(self, X, state):
        memory, h, lens = state
        steps, keys = [], self.k(memory)
        for word in self.embed(X).transpose(0, 1):
            scores = self.v(torch.tanh(self.q(h[-1])[:, None] + keys))[..., 0]
            if lens is not None:
                scores[torch.arange(scores.shape[1]) >= lens[:, None]] = -1e9
            context = (scores.softmax(-1)[:, None] @ memory)[:, 0]
            y, h = self.rnn(torch.cat([context, word], -1)[None], h)
            steps.append(self.out(y))
        return torch.cat(steps).transpose(0, 1), (memory, h, lens)
"""


@pytest.mark.parametrize(
    ("averaged", "wanted"),
    [("memory", []), ("keys", [("Seq2SeqAttentionDecoder", "keys-not-outputs")])],
)
def test_the_context_is_a_mean_of_the_encoders_outputs(averaged, wanted, tmp_path):
    text = DECODER.replace("[:, None] @ memory", f"[:, None] @ {averaged}")
    (file := tmp_path / "mine.py").write_text(text)
    assert findings(outcome_of(file)) == wanted


INLINE = """
import torch
from torch import nn


class Classify(nn.Module):
    def __init__(self, E):
        super().__init__()
        self.E, d = nn.Embedding.from_pretrained(E), E.shape[1]
        self.qkv, self.out, self.head = nn.Linear(d, 3 * d), nn.Linear(d, d), nn.Linear(d, 2)

    def forward(self, tokens, lengths):
        words = torch.arange(tokens.shape[1]) < lengths[:, None]
        x = self.E(tokens)
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        s = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~words[:, None, None], -1e9)
        x = x + self.out((s.softmax(-1) @ v).transpose(1, 2).flatten(2))
        return self.head((x * words[..., None]).sum(1) / lengths[:, None])
"""


@pytest.mark.parametrize(
    ("finding", "old", "new"),
    [
        ("", "", ""),
        ("softmax-over-heads", "s.softmax(-1)", "(s.softmax(1) * words[:, None, None])"),
        ("no-scale", " / q.shape[-1] ** 0.5", ""),
    ],
)
def test_attention_within_a_model_is_read_from_its_operations(finding, old, new, tmp_path):
    assert old in INLINE
    (file := tmp_path / "mine.py").write_text(INLINE.replace(old, new, 1))
    outcome = outcome_of(file)
    assert {name for _, name in findings(outcome)} == ({finding} if finding else set())
    assert "Classify" in outcome.parts


HELPER = """
import torch
from torch import nn


class AdditiveAttention(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(n, n), nn.Linear(n, n), nn.Linear(n, 1)

    def forward(self, query, memory, lens):
        s = self.v(torch.tanh(self.q(query)[:, None] + self.k(memory)))[..., 0]
        if lens is not None:
            s = s.masked_fill(torch.arange(memory.shape[1]) >= lens[:, None], -1e9)
        return (s.softmax(1)[..., None] * memory).sum(1)


class Seq2SeqAttentionDecoder(nn.Module):
    def __init__(self, vocab_size, embed_size, num_hiddens, num_layers, dropout=0):
        super().__init__()
        self.embed = nn.Embedding(vocab_size, embed_size)
        self.attention = AdditiveAttention(num_hiddens)
        self.rnn = nn.GRU(embed_size + num_hiddens, num_hiddens, num_layers)
        self.out = nn.Linear(num_hiddens, vocab_size)

    def init_state(self, enc_outputs, enc_valid_lens):
        return enc_outputs[0].transpose(0, 1), enc_outputs[1], enc_valid_lens

    def forward(self, X, state):
        memory, h, lens = state
        steps = []
        for word in self.embed(X).transpose(0, 1):
            context = self.attention(h[-1], memory, lens)
            y, h = self.rnn(torch.cat([context, word], -1)[None], h)
            steps.append(y)
        return self.out(torch.cat(steps)).transpose(0, 1), (memory, h, lens)
"""


@pytest.mark.parametrize(
    ("old", "new", "wanted"),
    [
        ("", "", []),
        (
            "self.out(torch.cat(steps)).transpose(0, 1)",
            "self.out(torch.cat(steps)).view(*X.shape, -1)",
            [("Seq2SeqAttentionDecoder", "results-reshaped")],
        ),
        (
            "s = self.v(torch.tanh(self.q(query)[:, None] + self.k(memory)))[..., 0]",
            "s = (self.q(query)[:, None] @ self.k(memory).mT)[:, 0] / memory.shape[-1]",
            [
                ("Seq2SeqAttentionDecoder", "layer-not-used"),
                ("Seq2SeqAttentionDecoder", "wrong-scale"),
            ],
        ),
    ],
)
def test_a_decoder_may_have_an_attention_with_other_arguments(old, new, wanted, tmp_path):
    (file := tmp_path / "mine.py").write_text(HELPER.replace(old, new, 1))
    outcome = outcome_of(file)
    assert (findings(outcome), outcome.error) == (wanted, "")
    assert "It is called by Seq2SeqAttentionDecoder with other arguments" in sentences(outcome)


LAYER = """
import torch
from torch import nn


class Attentive(nn.Module):
    def f(self, x, mask):
        raise NotImplementedError

    def forward(self, x, mask):
        return self.norm(x + self.f(x, mask))


class Auto(Attentive):
    def __init__(self, d):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(d, d) for _ in range(4))
        self.norm = nn.LayerNorm(d)

    def f(self, x, mask):
        q, k, v = (g(x).unflatten(-1, (2, -1)) for g in (self.q, self.k, self.v))
        s = torch.einsum("bihd,bjhd->bhij", q, k) * q.shape[-1] ** -0.5
        w = s.masked_fill(~mask[:, None, None], -1e9).softmax(-1)
        return self.o(torch.einsum("bhij,bjhd->bihd", w, v).flatten(2))
"""


@pytest.mark.parametrize(
    ("old", "new", "wanted"),
    [
        ("", "", []),
        ("(self.q, self.k, self.v))\n", "(self.q, self.k, self.k))\n", ["shared-projections"]),
        ('torch.einsum("bihd,bjhd->bhij", q, k)', 'torch.einsum("bihd,bjhd->bhij", v, k)', None),
        ("s.masked_fill(~mask[:, None, None], -1e9)", "(s * mask[:, None, None])", None),
    ],
)
def test_layers_under_any_name_are_found_and_base_classes_are_not(old, new, wanted, tmp_path):
    (file := tmp_path / "mine.py").write_text(LAYER.replace(old, new, 1))
    outcome = outcome_of(file)
    assert not outcome.error
    assert {part for part, _ in findings(outcome)} <= {"Auto"}
    names = [name for _, name in findings(outcome)]
    assert names == wanted if wanted is not None else names


MODEL = """
import torch
from torch import nn


def attention(q, k, v, pad_mask):
    s = q @ k.transpose(-1, -2) / q.size(-1) ** 0.5
    return s.masked_fill(pad_mask[:, None, None, :], float("-inf")).softmax(-1) @ v


class ResidualAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x, pad_mask):
        qkv = self.qkv(x).chunk(3, -1)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in qkv)
        return x + self.out(attention(q, k, v, pad_mask).transpose(1, 2).flatten(2))


class Classifieur(nn.Module):
    def __init__(self, dim=8, heads=2):
        super().__init__()
        self.register_buffer("table", torch.arange(64.0)[:, None].expand(-1, dim).sin())
        self.layers = nn.ModuleList(ResidualAttention(dim, heads) for _ in range(3))
        self.head = nn.Linear(dim, 2)

    def forward(self, x, pad_mask):
        for layer in self.layers:
            x = layer(x, pad_mask)
        n = (~pad_mask).sum(1)
        means = [x[b, : int(n[b])].mean(0) for b in range(len(x))]
        return self.head(torch.stack(means))
"""


@pytest.mark.parametrize(
    ("old", "new", "wanted"),
    [
        ("", "", []),
        ("x[b, : int(n[b])]", "x[b, 1 : int(n[b])]", [("Classifieur", "one-position-too-few")]),
        (".mean(0)", ".sum(0) / x.shape[1]", [("Classifieur", "divides-by-padded-length")]),
    ],
)
def test_a_model_of_word_vectors_may_have_a_table_of_positions(old, new, wanted, tmp_path):
    (file := tmp_path / "mine.py").write_text(MODEL.replace(old, new, 1))
    outcome = outcome_of(file)
    assert (findings(outcome), outcome.error) == (wanted, "")


def test_a_module_that_is_no_part_is_named_with_the_reason(tmp_path):
    text = MODEL.replace("return self.head(torch.stack(means))", "return self.head(means)")
    text = text.replace('self.register_buffer("table"', 'setattr(self, "table"')
    (file := tmp_path / "mine.py").write_text(text)
    assert "It was not checked: as a model it raises linear()" in sentences(outcome_of(file))


@pytest.mark.parametrize(
    ("said", "wanted"),
    [("x is (T, B, D)", ["positions-of-reviews"]), ("x is (B, T, D)", []), ("", [])],
)
def test_positions_are_added_along_the_axis_that_the_docstring_says(said, wanted, tmp_path):
    file = changed(
        tmp_path,
        "sheets/self_residual",
        "        return x + self.pe[: x.size(1)]",
        f'        """Adds the positions. {said}"""\n        return x + self.pe[: x.size(1)]',
    )
    found = [name for part, name in findings(outcome_of(file)) if part == "PositionalEncoding"]
    assert found == wanted


def test_the_lab_may_have_its_embeddings_as_parameters(tmp_path):
    text = (FOLDER / "sheets/lab_loops.py").read_text()
    assert "nn.Embedding" in text
    table = "def Table(count, width):\n    return nn.Embedding(count, width).weight\n\n\nclass "
    text = text.replace("class ", table, 1)
    (file := tmp_path / "mine.py").write_text(text)
    outcome = outcome_of(file)
    assert (findings(outcome), outcome.error) == ([], "")


@pytest.mark.parametrize(
    ("mask", "finding"),
    [
        ("scores = scores + mask", None),
        ("scores = scores + mask / 2", "added-mask-changed"),
        ("scores = scores + scores + mask", "attention-mask-changes-scores"),
    ],
)
def test_an_attn_mask_of_numbers_is_added_as_it_is(mask, finding, tmp_path):
    file = changed(
        tmp_path,
        "sheets/course_additive",
        "key_padding_mask=None, need_weights=True",
        "key_padding_mask=None, need_weights=True, attn_mask=None",
    )
    text = file.read_text().replace(
        "        weights = self.drop(scores.softmax(-1))",
        "        if attn_mask is not None:\n"
        "            mask = attn_mask\n"
        "            if mask.dtype == torch.bool:\n"
        "                mask = torch.zeros(mask.shape).masked_fill(mask, -1e9)\n"
        f"            {mask}\n"
        "        weights = self.drop(scores.softmax(-1))",
    )
    file.write_text(text)
    assert [name for _, name in findings(outcome_of(file))] == ([finding] if finding else [])
