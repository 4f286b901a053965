"""A full disk, a read-only folder or a killed writer leaves the old file, no partial file, and one clear line."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from imdbattn.errors import UserError
from imdbattn.files import build_once, write_atomically
from imdbattn.runs.fit import fit

TINY = ("model=mean", "trainer.max_epochs=1")


@pytest.fixture
def disk(tmp_path) -> Iterator[Callable[[str], Path]]:
    """disk("size=64k"): a real file system of its own."""
    place = tmp_path / "disk"
    place.mkdir()

    def mount(options: str) -> Path:
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)]
        try:
            subprocess.run(command, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"file systems cannot be mounted here: {error}")
        return place

    yield mount
    subprocess.run(["umount", "--lazy", str(place)], check=False, capture_output=True)


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("size", ["4k", "12k", "24k", "40k"])  # from the first file to the last results
def test_a_run_that_does_not_fit_on_the_disk_prints_one_line_and_is_not_finished(disk, settings, small, size):
    place = disk(f"size={size}")
    with pytest.raises(
        UserError, match=rf"{place}/run.* cannot be written \(No space left.*\): free some space, or"
    ) as e:
        fit(settings(*small, *TINY), place / "run")
    assert "\n" not in str(e.value)
    assert not (place / "run" / "metrics.json").exists()
    assert not list(place.rglob("*.tmp"))


KILLED = """
import os, signal, sys
from pathlib import Path
from imdbattn import files as cache
folder = Path(sys.argv[1])
def die(*_): os.kill(os.getpid(), signal.SIGKILL)
def build(folder):
    (folder / "half").write_text("half")
    die()
if sys.argv[2] == "build":
    cache.build_once(folder / "key", build)
setattr(os, sys.argv[2], die)  # with all bytes written, or all but the rename done
cache.write_atomically(folder / "file", "new")
"""


@pytest.mark.parametrize("moment", ["fsync", "replace", "build"])
def test_a_killed_writer_leaves_the_old_file_and_does_not_block_later_ones(tmp_path, moment):
    write_atomically(tmp_path / "file", "old")
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path), moment], cwd=Path(__file__).parents[1], check=False
    )
    assert done.returncode == -signal.SIGKILL
    left = files(tmp_path)
    assert left["file"] == b"old"
    assert [name for name in left if ".tmp" in name], "it was not killed in the middle"
    assert not (tmp_path / "key").exists()
    write_atomically(tmp_path / "file", "newer")
    assert files(tmp_path)["file"] == b"newer"
    key = build_once(tmp_path / "key", lambda folder: (folder / "whole").touch())
    assert sorted(os.listdir(key)) == ["checksums.json", "whole"]
