"""The value of --steps, and which environment variables may be recorded."""

import pytest

from ddparity._errors import ExitCode, UsageError
from ddparity.trace._environment import MAX_VALUE, allowed_environment
from ddparity.trace._windows import parse_windows


@pytest.mark.parametrize(
    ("steps", "windows"),
    [
        ("3", [(0, 3)]),
        (" 1 ", [(0, 1)]),
        ("0:3", [(0, 3)]),
        ("0:3,500:503", [(0, 3), (500, 503)]),
        ("500:503, 0:3", [(0, 3), (500, 503)]),
        ("0:3,2:5", [(0, 5)]),
        ("0:3,3:5", [(0, 5)]),
        ("0:9,2:3,20:21", [(0, 9), (20, 21)]),
    ],
)
def test_windows_are_sorted_and_joined(steps, windows):
    assert parse_windows(steps) == windows


@pytest.mark.parametrize(
    "steps", ["", "0", "-1", "3:3", "5:2", "a", "1.5", "0:3,", "3,5", "0:3:6", "1e3", "٣", "0x3", "9" * 14, "1\n:3"]
)
def test_anything_else_is_refused_with_what_is_allowed(steps):
    with pytest.raises(UsageError, match=r"--steps 3.*--steps 0:3,500:503") as error:
        parse_windows(steps)
    assert error.value.exit_code == ExitCode.USAGE


def test_the_message_names_the_part_that_cannot_be_used():
    with pytest.raises(UsageError) as error:
        parse_windows("0:3,7:5")
    assert str(error.value) == (
        "--steps '0:3,7:5' cannot be used: in '7:5', it holds no step (the first step is 0, and STOP is not part of "
        "the window). Give a number of steps (--steps 3) or windows (--steps 0:3,500:503)."
    )


def test_absurd_sizes_are_refused():
    with pytest.raises(UsageError, match="larger than"):
        parse_windows("0:9999999999999")
    with pytest.raises(UsageError, match="at most 1000"):
        parse_windows(",".join("0:3" for _ in range(1001)))


def test_the_environment_is_an_allow_list():
    env = {
        "RANK": "1",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "NCCL_DEBUG": "INFO",
        "TORCH_DISTRIBUTED_DEBUG": "OFF",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        "SLURM_PROCID": "0",
        "HOME": "/home/somebody",
        "PATH": "/bin",
        "MY_RANK": "7",
    }
    assert set(allowed_environment(env)) == set(env) - {"HOME", "PATH", "MY_RANK"}


@pytest.mark.parametrize(
    "name", ["HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "NCCL_TOKEN", "TORCH_API_KEY", "PYTORCH_DB_PASSWORD", "GLOO_secret_x"]
)
def test_a_name_that_hints_at_a_secret_is_never_recorded(name):
    assert allowed_environment({name: "hunter2"}) == {}


def test_long_values_are_cut():
    assert allowed_environment({"NCCL_X": "a" * 5000}) == {"NCCL_X": "a" * MAX_VALUE}
