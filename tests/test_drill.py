"""What a drill sets stands whatever the caller gave, by name or by position."""

import pytest

from ddparity.capture._drill import _with


def call(backend=None, init_method=None, timeout=None, *more, world_size=-1):
    return backend, init_method, timeout, more, world_size


@pytest.mark.parametrize(
    ("args", "kwargs", "want"),
    [
        ((), {}, (None, None, 10, (), -1)),
        (("gloo",), {"timeout": 1800, "world_size": 2}, ("gloo", None, 10, (), 2)),
        (("gloo", "env://", 1800), {}, ("gloo", "env://", 10, (), -1)),
        (("gloo", "env://", 1800, "x", "y"), {"world_size": 2}, ("gloo", "env://", 10, ("x", "y"), 2)),
    ],
)
def test_it_stands_by_name_and_by_position(args, kwargs, want):
    assert _with(call, {"timeout": 10})(*args, **kwargs) == want
