"""Input from outside is text and numbers, never code; secrets are not written anywhere."""

import re
import shutil
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import yaml
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

import imdbattn
from imdbattn.errors import UserError
from imdbattn.launch.resumed_settings import resumed_settings
from imdbattn.report.comparison_page import report_of
from imdbattn.report.pages import PAGE_POLICY
from imdbattn.report.prediction_page import page
from imdbattn.runs.evaluate import evaluate_run
from imdbattn.settings.credentials import credentials, refuse_credentials
from imdbattn.settings.keys import conf_dir
from imdbattn.settings.logger_places import logger_places
from imdbattn.settings.trust import TRUSTED, untrusted
from imdbattn.tasks.prediction import AttentionWeights, Classification, Translation
from imdbattn.tools.faithfulness.page import report_of as faithfulness_report
from tests.commands import label_texts
from tests.made_up import ENVIRONMENT, Page, drawn_page, made_up, made_up_faithfulness
from tests.world import load


@pytest.fixture
def stranger(trained, tmp_path):
    """stranger(change): a copy of a run. change alters the settings in its config.yaml, or returns
    another text for it.
    """

    def run(change) -> Path:
        folder = shutil.copytree(trained("residual_pe")[0], tmp_path / "stranger")
        config = folder / "config.yaml"
        settings = yaml.safe_load(config.read_text())
        config.write_text(change(settings) or yaml.safe_dump(settings))
        return folder

    return run


def put(key: str, value):
    """A change that sets a dotted key."""

    def change(settings: dict) -> None:
        *path, last = key.split(".")
        for part in path:
            settings = settings[part]
        settings[last] = value

    return change


def evil(target: str, **arguments) -> dict:
    return {"_target_": target, **arguments}


def test_a_logger_of_a_run_folder_writes_nowhere_else(stranger, composed, tmp_path):
    logger = evil(
        "lightning.pytorch.loggers.CSVLogger", save_dir=str(tmp_path), name="", version=""
    )
    folder = stranger(put("logger.own", logger))
    typed = [f"resume={folder}", "test=true"]
    with pytest.raises(UserError, match=r"logger\.own\.\w+=.* may name a place outside .*: repeat"):
        resumed_settings(composed(*typed), typed, folder)
    own = [f"+logger.own.{key}={value or repr('')}" for key, value in logger.items()]
    for allowed in ([*typed, "trust=lightning"], [*typed, *own]):
        assert resumed_settings(composed(*allowed), allowed, folder)["logger"]["own"] == logger
    named = composed("logger=wandb", "logger.wandb.project=mine", "logger.wandb.tags=[a,b]")
    assert not [*logger_places(named["logger"], {})]


STRANGERS = {
    "a function as a part": put("model.net.pooling", evil("os.mkdir", path="CANARY")),
    "a class of another package as a part": put(
        "model.net.pooling", evil("logging.FileHandler", filename="CANARY")
    ),
    "in a list": put("model.net.pooling", [evil("logging.FileHandler", filename="CANARY")]),
    "a function of ours": put(
        "model.net.pooling", evil("imdbattn.io.files.write_atomically", path="CANARY", data="x")
    ),
    "by way of an allowed package": put(
        "model.net.pooling", evil("imdbattn.nn.scores.torch.save", obj=1, f="CANARY")
    ),
    "as the optimizer": put("optim", evil("logging.FileHandler", filename="CANARY")),
    "made by a resolver": put(
        "model.net.pooling", "${oc.create:{_target_: logging.FileHandler, filename: CANARY}}"
    ),
    "our environment in a number": put("optim.lr", "${oc.env:CANARYS_TOKEN}"),
    "hidden from a search of the text": lambda s: yaml.safe_dump(s).replace(
        "lr: ", 'lr: "\\x24{oc.env:CANARYS_TOKEN}" #'
    ),
    "a Python object in YAML": lambda s: (
        yaml.safe_dump(s) + "x: !!python/object/apply:os.mkdir [CANARY]\n"
    ),
    "settings of Hydra": put(
        "hydra", {"callbacks": {"x": evil("logging.FileHandler", filename="CANARY")}}
    ),
}


@pytest.mark.parametrize("how", STRANGERS)
def test_an_untrusted_run_runs_no_code_and_reads_no_environment(
    stranger, settings, tmp_path, monkeypatch, capfd, how
):
    canary = tmp_path / "canary"
    monkeypatch.setenv("CANARYS_TOKEN", "tell-nobody-123")

    def change(cfg: dict) -> str:
        text = STRANGERS[how](cfg) or yaml.safe_dump(cfg)
        return re.sub(r"CANARY(?=[}\]\n])", str(canary), text)

    folder = stranger(change)
    assert "CANARY}" not in (folder / "config.yaml").read_text()
    for command in (
        lambda: evaluate_run(settings(f"run={folder}", config="evaluate")),
        lambda: label_texts(settings(f"run={folder}", config="predict"), ["a film"]),
    ):
        with pytest.raises(UserError) as error:
            command()
        assert "tell-nobody" not in str(error.value)
    assert not canary.exists()
    assert "tell-nobody" not in "".join(capfd.readouterr())


def test_an_interpolation_in_a_run_folder_is_refused_by_whatever_reads_it(
    stranger, settings, composed, monkeypatch
):
    """Also in a text, which could be resolved, sent to a logger and written again."""
    monkeypatch.setenv("CANARYS_TOKEN", "tell-nobody-123")
    folder = stranger(put("data.text_column", "${oc.env:CANARYS_TOKEN}"))
    for read in (
        lambda: evaluate_run(settings(f"run={folder}", config="evaluate")),
        lambda: label_texts(settings(f"run={folder}", config="predict"), ["a film"]),
        lambda: resumed_settings(composed(f"resume={folder}"), [f"resume={folder}"], folder),
        lambda: imdbattn.compare(folder),
    ):
        with pytest.raises(UserError, match="contains an interpolation") as error:
            read()
        assert "tell-nobody" not in str(error.value)


def test_a_name_in_an_archive_is_not_used_as_a_path(world, tmp_path):
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    with zipfile.ZipFile(inner / "vectors.zip", "w") as archive:
        archive.write(world / "vectors.txt", "../../outside.10d.txt")
    vectors = load(inner / "cache", path=str(inner / "vectors.zip"), dim=10)
    assert vectors.words[0] == "the"
    assert not [path for path in tmp_path.rglob("*") if "outside" in path.name]
    assert {path.name for path in inner.iterdir()} == {"vectors.zip", "cache"}


@pytest.mark.parametrize("group", [*TRUSTED, "data", "anything"])
def test_no_class_of_the_standard_library_is_trusted(group):
    for package in sys.stdlib_module_names:
        settings = {group: {"_target_": f"{package}.name"}}
        assert [found for *_, found in untrusted(settings)] == [package]


OWN = "document.title='owned'"
HOSTILE = (
    f"<script>{OWN}</script>",
    f'<img src=x onerror="{OWN}">',
    f'"><svg onload="{OWN}">',
    f"</style><script>{OWN}</script>",
    f"</title></details></table><iframe srcdoc='<script>parent.{OWN}</script>'>",
    f"' onmouseover='{OWN}' autofocus onfocus='{OWN}",
    f'<a href="javascript:{OWN}">&lt;b&gt; {{{{ 7 * 7 }}}} {{% raw %}} ${{oc.env:HOME}}',
)
OURS = """html head meta title style body h1 h2 p ul li span div table thead tbody tr th td caption
figure figcaption img details summary b mark meter"""  # the tags of our pages


def hostile_comparison() -> dict:
    comparison = made_up(HOSTILE, labels=HOSTILE[:3], text="\n".join(HOSTILE))
    comparison |= {"test_set": HOSTILE[0], "fingerprint": HOSTILE[1], "untested": [HOSTILE[3]]}
    comparison["skipped"] = [{"folder": text, "reason": text} for text in HOSTILE]
    hostile = {"platform": HOSTILE[4], "gpu": HOSTILE[2], "torch": HOSTILE[5]}
    comparison["environments"] = [ENVIRONMENT | hostile]
    comparison["method"]["words"] = {HOSTILE[0]: [HOSTILE[1], HOSTILE[2]]}
    comparison["slices"] = {HOSTILE[1]: 9, **comparison["slices"]}
    for variant in comparison["variants"]:
        variant["slices"] = {HOSTILE[1]: 0.5, **variant["slices"]}
    return comparison


def hostile_faithfulness() -> dict:
    summary = made_up_faithfulness(HOSTILE)
    summary |= {"test_set": HOSTILE[0], "fingerprint": HOSTILE[1]}
    summary["skipped"] = [{"folder": text, "reason": text} for text in HOSTILE]
    rows = [row for row in summary["numbers"] if row["measure"] == "pairs"]
    for row, text in zip(rows, HOSTILE, strict=True):
        row["about"] = text
    return summary


def hostile_review() -> Classification:
    text = " ".join(HOSTILE)
    words = [(match.start(), match.end(), 0.01) for match in re.finditer(r"\S+", text)]
    keys = [text[start:end] for start, end, _ in words]
    attention = AttentionWeights(keys, {1: np.full((1,) + (len(keys),) * 2, 0.1)})
    facts = {"text": text, "output": HOSTILE[0], "probability": 0.5, "model": HOSTILE[3]}
    return Classification(has_words=True, words=words, attention=attention, **facts)


def hostile_sequence() -> Translation:
    words = [*HOSTILE, "$x_{$"]  # which matplotlib would take for a formula, and an invalid one
    facts = {"text": " ".join(words), "output": " ".join(words), "probability": 0.5}
    facts |= {"model": HOSTILE[3], "unknown": list(HOSTILE), "reference": HOSTILE[2]}
    return Translation(source=words, written=words, weights_TS=np.eye(len(words)), **facts)


PAGES = {
    "comparison": lambda: drawn_page(report_of(hostile_comparison())),
    "faithfulness": lambda: drawn_page(faithfulness_report(hostile_faithfulness())),
    "attention": lambda: page([hostile_review()], [None]),
    "notebook": lambda: page([hostile_review()], [None], is_fragment=True),
    "sequence": lambda: page([hostile_sequence()]),
}


@pytest.fixture(scope="module", params=PAGES)
def hostile_page(request) -> str:
    return PAGES[request.param]()


def test_a_hostile_text_does_not_become_a_tag(hostile_page):
    found = Page(hostile_page)
    assert set(found.tags) <= set(OURS.split())
    assert not [name for name, _ in found.attributes if name.startswith("on")]
    links = [value or "" for name, value in found.attributes if name in ("src", "href")]
    assert all(link.startswith("data:image/") for link in links)
    for text in HOSTILE:
        assert text in "".join(found.text)
    policy, _, shown = hostile_page.partition("<title>")
    assert PAGE_POLICY[:11] in policy or not shown  # of a notebook


CREDENTIALS = {
    "logger.api_key": "k" * 40,
    "data.password": 12345678,
    "hydra.job.env_set.WANDB_API_KEY": "x",
    "data.path": "https://me:sesame@example.org/reviews.csv",
    "logger.wandb.project": "copied hf_oddTokenValue123",
    "data.label_names": ["neg", "hf_oddTokenValue123"],
}


@pytest.mark.parametrize("key", CREDENTIALS)
def test_a_setting_that_looks_like_a_credential_is_named_and_not_quoted(monkeypatch, key):
    monkeypatch.setenv("HF_TOKEN", "hf_oddTokenValue123")
    nested = OmegaConf.create({})
    OmegaConf.update(nested, key, CREDENTIALS[key])
    with pytest.raises(
        UserError, match=rf"^{key}.* looks like a credential.*environment \(WANDB_API_KEY, HF"
    ) as error:
        refuse_credentials(OmegaConf.to_container(nested))
    for secret in ("k" * 40, "sesame", "hf_odd", "12345678"):
        assert secret not in str(error.value)


@pytest.mark.parametrize("config", ["train", "evaluate", "predict", "compare", "dashboard"])
def test_no_setting_of_ours_or_hydras_is_taken_for_a_credential(config):
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        cfg = compose(config, return_hydra_config=True)
    settings = OmegaConf.to_container(cfg, resolve=False)
    of_parts = {"tokenizer": {"pad_token": "[PAD]"}, "pooling": {"key": "words"}}
    assert not list(credentials({**settings, "of parts of one's own": of_parts}))


SECRETS = {
    "WANDB_API_KEY": "wandb0odd0key0" + "w" * 30,
    "HF_TOKEN": "hf_oddTokenValue123",
    "AWS_SECRET_ACCESS_KEY": "aws/odd+secret=value",
    "HTTPS_PROXY": "http://me:proxy0sesame@localhost:9",
    "typed": "typed0secret0123456789",
}


@pytest.mark.parametrize(
    "typed",
    [
        ["+logger.api_key=typed0secret0123456789"],
        ["-m", "seed=1,2", "data.path=https://me:typed0secret0123456789@example.org/r.csv"],
    ],
)
def test_a_command_with_a_credential_ends_in_one_line_and_writes_it_nowhere(
    shell, small, tmp_path, typed
):
    words = [*small, "model=mean", *typed]
    done = shell("train", *words, cwd=tmp_path, env=SECRETS, status=2)
    assert re.fullmatch(r"error: [a-z_.]+ looks like a credential[^\n]*\n", done.stderr)
    written = [path.read_text() for path in tmp_path.rglob("*") if path.is_file()]
    said = "".join([done.stdout, done.stderr, *written])
    assert not [secret for secret in SECRETS.values() if secret in said]
