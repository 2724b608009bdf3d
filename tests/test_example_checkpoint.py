"""The example's checkpoints: whole or not there, whatever happens to disk and process."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Dict, List

import numpy as np
import pytest

from model_zoo_example import checkpoint
from model_zoo_example.checkpoint import CheckpointError
from tests.example import environment
from tests.launch import unmeasured

ARRAYS = {
    "network.weight": np.arange(12.0, dtype=np.float32).reshape(3, 4),
    "optimizer.updates": np.array([3]),
    "scale": np.array(2.0),
}


def save(folder: Path, step: int, keep: int = 3) -> Path:
    return checkpoint.save(folder, ARRAYS, {"step": step, "settings": {"seed": 1}}, keep)


def names(folder: Path) -> List[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_was_saved_is_read_again(tmp_path: Path) -> None:
    read = checkpoint.load(save(tmp_path, 7))
    assert read.facts == {"step": 7, "settings": {"seed": 1}}
    assert read.arrays.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(read.arrays[name], array)
        assert read.arrays[name].dtype == array.dtype
        assert read.arrays[name].shape == array.shape


def test_the_last_few_are_kept_and_a_folder_means_the_newest(tmp_path: Path) -> None:
    for step in (1, 2, 10, 9_999, 100_000):
        save(tmp_path, step)
    assert names(tmp_path) == [f"step-{step:08d}.safetensors" for step in (10, 9_999, 100_000)]
    assert checkpoint.load(tmp_path).facts["step"] == 100_000


@pytest.mark.parametrize("place", [0.0, 0.2, 0.5, 0.9, 1.0])
def test_a_wrong_bit_is_noticed_wherever_it_is(tmp_path: Path, place: float) -> None:
    save(tmp_path, 1)
    path = save(tmp_path, 2)
    content = bytearray(path.read_bytes())
    content[int(place * (len(content) - 1))] ^= 4
    path.write_bytes(bytes(content))
    with pytest.raises(CheckpointError, match=r"00000002\.safetensors") as raised:
        checkpoint.load(tmp_path)
    assert "damaged" in str(raised.value) or "no checkpoint of this program" in str(raised.value)


@pytest.mark.parametrize("length", [0, 5, 200, -1])
def test_a_file_cut_short_is_damaged_and_the_one_before_it_is_named(tmp_path: Path, length: int) -> None:
    earlier = save(tmp_path, 1)
    path = save(tmp_path, 2)
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(CheckpointError, match=r"00000002\.safetensors is damaged.*one before it is .*00000001"):
        checkpoint.load(tmp_path)
    assert checkpoint.load(earlier).facts["step"] == 1


def test_other_files_are_refused_in_words(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    old = tmp_path / "old.ckpt"
    old.write_bytes(b"\x0a\x0b")
    with pytest.raises(CheckpointError, match="earlier versions of this example"):
        checkpoint.load(old)
    other = tmp_path / "other.safetensors"
    save_file(ARRAYS, other)
    with pytest.raises(CheckpointError, match="no checkpoint of this program"):
        checkpoint.load(other)
    with pytest.raises(CheckpointError, match="no checkpoint in the folder"):
        checkpoint.load(tmp_path)
    with pytest.raises(CheckpointError, match="no file or folder"):
        checkpoint.load(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"network.more": np.zeros(1)}, "only this run has network.more"),
        ({"optimizer.updates": None}, "only the file has optimizer.updates"),
        ({"network.weight": np.zeros((4, 3))}, r"network.weight is \(3, 4\) there, \(4, 3\) here"),
    ],
)
def test_tensors_go_by_name(tmp_path: Path, change: Dict[str, object], words: str) -> None:
    wanted = {name: value for name, value in {**ARRAYS, **change}.items() if value is not None}
    with pytest.raises(CheckpointError, match=words):
        checkpoint.check_names(checkpoint.load(save(tmp_path, 1)), wanted)


_SAVE = """
import os, resource, signal, sys
import numpy as np
from pathlib import Path
from model_zoo_example import checkpoint
folder = Path(sys.argv[1])
arrays = {"weight": np.zeros(200_000, np.float32)}
"""


def run(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", _SAVE + code, str(folder)]
    env = unmeasured(environment())
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)


def test_a_full_disk_is_told_and_leaves_what_was_there(tmp_path: Path) -> None:
    earlier = save(tmp_path, 1)
    content = earlier.read_bytes()
    code = """
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))  # no file may grow beyond
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
checkpoint.save(folder, arrays, {"step": 2}, 1)
"""
    done = run(code, tmp_path)
    assert "CheckpointError: cannot write" in done.stderr
    assert "File too large" in done.stderr
    assert f"the last complete checkpoint is {earlier}" in done.stderr
    assert names(tmp_path) == [earlier.name]
    assert earlier.read_bytes() == content


@pytest.mark.parametrize("moment", ["checkpoint._to_disk", "Path.replace"])
def test_kill_9_in_the_middle_of_a_save_leaves_what_was_there(tmp_path: Path, moment: str) -> None:
    """Once before the file is on the disk, once before it has its name."""
    earlier = save(tmp_path, 1)
    done = run(
        f"{moment} = lambda *a: os.kill(os.getpid(), signal.SIGKILL)\n"
        'checkpoint.save(folder, arrays, {"step": 2}, 1)',
        tmp_path,
    )
    assert done.returncode == -signal.SIGKILL
    assert len(names(tmp_path)) == 2  # with the unfinished one
    assert checkpoint.load(tmp_path).path == earlier
    checkpoint.remove_unfinished(tmp_path)
    assert names(tmp_path) == [earlier.name]


def test_kill_9_at_any_moment_leaves_a_checkpoint_that_can_be_read(tmp_path: Path) -> None:
    moments = random.Random(1)
    code = """
for step in range(10**6):
    checkpoint.save(folder, arrays, {"step": step}, 2)
    print(step, flush=True)
"""
    for attempt in range(4):
        folder = tmp_path / str(attempt)
        command = [sys.executable, "-c", _SAVE + code, str(folder)]
        child = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        child.stdout.readline()
        time.sleep(moments.uniform(0.0, 0.3))
        child.kill()
        reported = ["0", *child.stdout.read().split()][-1]
        child.wait()
        assert checkpoint.load(folder).facts["step"] >= int(reported)


def test_what_a_living_process_is_writing_is_not_removed(tmp_path: Path) -> None:
    living = tmp_path / ".step-00000001.1.unfinished"
    living.write_bytes(b"")
    checkpoint.remove_unfinished(tmp_path)
    assert living.exists()
