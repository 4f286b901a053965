"""A cached file or folder is whole or absent."""

import errno
import os
import threading
from pathlib import Path

import pytest

from imdbattn.errors import UserError
from imdbattn.files import build_once, cache_root, write_atomically


def test_one_of_several_threads_builds_the_folder_and_all_get_it_whole(tmp_path):
    built, seen, start = [], [], threading.Barrier(4)

    def build(folder: Path) -> None:
        built.append(1)
        threading.Event().wait(0.1)
        (folder / "file").write_text("whole")
        if len(built) == 1:
            raise ValueError("a mistake")

    def work() -> None:
        start.wait()
        seen.append((build_once(tmp_path / "key", build) / "file").read_text())

    with pytest.raises(ValueError, match="a mistake"):
        build_once(tmp_path / "key", build)
    assert os.listdir(tmp_path) == ["key.lock"], "a builder that fails leaves nothing"
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert (len(built), seen) == (2, ["whole"] * 4)


@pytest.mark.parametrize("data", ["text é", b"bytes \x00"])
def test_a_file_is_replaced_as_a_whole(tmp_path, data):
    path = tmp_path / "file"
    path.write_text("old and longer than the new one")
    os.link(path, tmp_path / "reader")  # sees the content for a reader that opened the file before
    write_atomically(path, data)
    assert path.read_bytes() == (data if isinstance(data, bytes) else data.encode())
    assert (tmp_path / "reader").read_text() == "old and longer than the new one"
    assert sorted(os.listdir(tmp_path)) == ["file", "reader"]


def test_a_file_that_cannot_be_written_is_unchanged(tmp_path, monkeypatch):
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    path = tmp_path / "file"
    path.write_text("old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match="No space left"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


def test_the_root_is_the_setting_then_the_environment_then_home(monkeypatch):
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    monkeypatch.setenv("IMDBATTN_CACHE", "/ours")
    assert cache_root("~/given") == Path("/home/someone/given")
    assert cache_root("~nobody-of-that-name/cache") == Path("~nobody-of-that-name/cache")
    assert cache_root(None) == Path("/ours")
    monkeypatch.setenv("IMDBATTN_CACHE", "")
    assert cache_root(None) == Path("/xdg/imdbattn")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_root(None) == Path("/home/someone/.cache/imdbattn")
