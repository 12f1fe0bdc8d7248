"""Whether a tensor still holds what it held: whatever its type, layout and length."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ddparity.capture._contents import Contents

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64, torch.int32, torch.int8]


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(DTYPES), st.integers(1, 40), st.integers(0, 3), st.booleans(), st.data())
def test_a_change_of_one_element_is_seen_and_none_is_none(dtype, size, offset, turned, data):
    base = torch.arange(2 * (size + offset), dtype=torch.float64).to(dtype)
    tensor = base[2 * offset :].view(2, size)
    tensor = tensor.t() if turned else tensor
    contents = Contents()
    assert not contents.changed(tensor), "what was never kept cannot have changed"
    contents.keep(tensor)
    assert not contents.changed(tensor)
    tensor.copy_(tensor.clone())
    assert not contents.changed(tensor)
    at = data.draw(st.integers(0, tensor.numel() - 1))
    tensor[at // tensor.shape[1], at % tensor.shape[1]] += 1
    assert contents.changed(tensor) == (not torch.equal(base.to(dtype), torch.arange(len(base)).to(dtype)))
    contents.keep(tensor)
    assert not contents.changed(tensor)


def test_changes_that_autograd_does_not_count_are_seen():
    parameter = torch.nn.Parameter(torch.ones(5))
    contents = Contents()
    contents.keep(parameter)
    parameter.data.mul_(2.0)
    assert contents.changed(parameter)
    contents.clear()
    assert not contents.changed(parameter)


@pytest.mark.parametrize("make", [lambda: torch.ones(3, device="meta"), lambda: torch.eye(3).to_sparse()])
def test_what_cannot_be_read_is_not_called_changed(make):
    tensor = make()
    contents = Contents()
    contents.keep(tensor)
    assert not contents.changed(tensor)
