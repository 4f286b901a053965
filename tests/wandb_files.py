"""Reads what W&B has written into a run folder."""

import json
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace


def records(file: Path) -> Iterator:
    """The complete records of a .wandb file: 32 KiB blocks of chunks behind 7 bytes (LevelDB)."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, parts = file.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if (left := 32768 - at % 32768) < 7:
            at += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        if at + 7 + length > len(data):  # W&B's own process is writing it
            return
        parts += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            record = Record()
            record.ParseFromString(parts)
            parts = b""
            yield record


def read_back(folder: Path) -> SimpleNamespace:
    """The one W&B run in `folder`: header, config, summary, logged keys and folder of files."""
    (file,) = (folder / "wandb").glob("offline-run-*/run-*.wandb")
    until = time.monotonic() + 20  # W&B's own process may still be writing
    found: list = []
    while not any(record.HasField("exit") for record in found):
        found = list(records(file))
        assert time.monotonic() < until, "the run did not end"
        time.sleep(0.02)
    config: dict = {}
    summary: dict = {}
    logged: set[str] = set()
    for record in found:
        for item in [*record.run.config.update, *record.config.update]:
            config[item.key] = json.loads(item.value_json)
        for item in record.summary.update:
            keys = list(item.nested_key) or [item.key]
            node = summary
            for key in keys[:-1]:
                node = node.setdefault(key, {})
            node[keys[-1]] = json.loads(item.value_json)
        logged |= {(list(item.nested_key) or [item.key])[0] for item in record.history.item}
    (run,) = [record.run for record in found if record.HasField("run")]
    return SimpleNamespace(
        run=run, config=config, summary=summary, logged=logged, files=file.parent / "files"
    )


def table(found: SimpleNamespace, key: str) -> dict:
    return json.loads((found.files / found.summary[key]["path"]).read_text())
