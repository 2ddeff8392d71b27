"""The cache of converted models: one conversion, whatever else happens at the same time or goes wrong."""

import json
import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest

from tileformer.models.conversion_cache import ConversionCache, cache_folder
from tileformer.models.errors import ModelError


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "tileformer"


@pytest.fixture
def source(tmp_path) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF content")
    return path


def convert(source: Path, folder: Path) -> None:
    """Leaves a line in a log beside the source, and two files in the folder, one of them in a subfolder."""
    with (source.parent / "log").open("a") as log:
        log.write("converted\n")
    (folder / "weights").write_bytes(source.read_bytes() * 1000)
    (folder / "sub").mkdir()
    (folder / "sub" / "config").write_text("configuration")


def convert_slowly(source: Path, folder: Path) -> None:
    convert(source, folder)
    time.sleep(0.3)


def convert_forever(source: Path, folder: Path) -> None:
    convert(source, folder)
    time.sleep(60)


def conversions(source: Path) -> int:
    log = source.parent / "log"
    return len(log.read_text().splitlines()) if log.exists() else 0


def make(source: Path, how=convert) -> Path:
    return ConversionCache(source).make(how)


def start(how, source: Path) -> multiprocessing.Process:
    process = multiprocessing.get_context("fork").Process(target=make, args=(source, how))
    process.start()
    return process


def entries(cache: Path) -> list[str]:
    return sorted(path.name for path in (cache / "models").iterdir() if path.is_dir())


def test_an_entry_is_made_once(source, cache):
    assert not ConversionCache(source).is_whole()
    folder = make(source)
    assert folder.parent == cache / "models"
    assert (folder / "weights").read_bytes() == b"GGUF content" * 1000
    assert ConversionCache(source).is_whole()
    assert make(source) == folder
    assert conversions(source) == 1


def test_the_key_is_the_content(source, tmp_path):
    folder = make(source)
    copy = tmp_path / "copy.gguf"
    copy.write_bytes(source.read_bytes())
    assert make(copy) == folder
    source.write_bytes(b"GGUF other")
    assert make(source) != folder
    assert conversions(source) == 2


def test_concurrent_starts_convert_once(source, cache):
    processes = [start(convert_slowly, source) for _ in range(4)]
    for process in processes:
        process.join(30)
    assert [process.exitcode for process in processes] == [0] * 4
    assert conversions(source) == 1
    assert ConversionCache(source).is_whole()
    assert entries(cache) == [ConversionCache(source).key]


def test_a_killed_conversion_leaves_nothing_broken(source, cache):
    process = start(convert_forever, source)
    deadline = time.monotonic() + 30
    while not list((cache / "models").glob("*.partial-*/sub/config")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.join(30)
    assert not ConversionCache(source).is_whole()
    assert len(entries(cache)) == 1  # what the killed process was writing
    make(source)
    assert ConversionCache(source).is_whole()
    assert entries(cache) == [ConversionCache(source).key]


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_a_failed_conversion_leaves_nothing(source, cache, error):
    def fail(source: Path, folder: Path) -> None:
        convert(source, folder)
        raise error

    with pytest.raises(error):
        make(source, fail)
    assert entries(cache) == []
    make(source)
    assert ConversionCache(source).is_whole()


def flip_a_bit(folder: Path) -> None:
    path = folder / "weights"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def truncate(folder: Path) -> None:
    os.truncate(folder / "weights", 100)


def remove_a_file(folder: Path) -> None:
    (folder / "sub" / "config").unlink()


def remove_the_manifest(folder: Path) -> None:
    (folder / "manifest.json").unlink()


def garble_the_manifest(folder: Path) -> None:
    (folder / "manifest.json").write_text("{")


def change_the_manifest(folder: Path) -> None:
    (folder / "manifest.json").write_text(json.dumps({"files": {"weights": 7}}))


@pytest.mark.parametrize(
    "damage",
    [flip_a_bit, truncate, remove_a_file, remove_the_manifest, garble_the_manifest, change_the_manifest],
)
def test_a_corrupt_entry_is_repaired(source, damage):
    folder = make(source)
    damage(folder)
    assert not ConversionCache(source).is_whole()
    assert make(source) == folder
    assert ConversionCache(source).is_whole()
    assert (folder / "weights").read_bytes() == b"GGUF content" * 1000
    assert conversions(source) == 2


def test_a_cache_that_cannot_be_written_is_named(source, cache):
    cache.parent.mkdir()
    cache.write_text("a file where the folder should be")
    with pytest.raises(ModelError, match=r"cannot write the cache folder .*XDG_CACHE_HOME"):
        make(source)


def test_a_relative_cache_home_is_ignored(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_folder() == Path.home() / ".cache" / "tileformer"
