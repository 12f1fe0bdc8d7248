"""Identities of padded samples: they depend on what the mask shows, not on how wide the batch is."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ddparity.capture._batch import Batches
from ddparity.capture._padding import padding_mask, without_padding

NOWHERE = SimpleNamespace(find=lambda tensors, ids: None, keep=lambda number, keys, tensors: None)
TEXTS = st.lists(st.lists(st.integers(1, 50), min_size=1, max_size=9), min_size=1, max_size=5)


def padded(texts, width, side, pad=0, ignored=-100):
    """Return what a collator makes of texts: ids, mask, labels."""

    def row(text, fill):
        gap = [fill] * (width - len(text))
        return text + gap if side == "right" else gap + text

    ids = torch.tensor([row(text, pad) for text in texts])
    mask = torch.tensor([row([1] * len(text), 0) for text in texts])
    labels = torch.tensor([row(text, ignored) for text in texts])
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def identities(inputs):
    batch, _ = Batches(0, NOWHERE).enter((), inputs)
    return batch.keys.ids


@given(texts=TEXTS, more=st.integers(0, 12), side=st.sampled_from(["left", "right"]), pad=st.sampled_from([0, 1, 63]))
def test_identities_do_not_depend_on_the_width_the_side_or_the_padding(texts, more, side, pad):
    longest = max(map(len, texts))
    tight = identities(padded(texts, longest, "right"))
    assert np.array_equal(identities(padded(texts, longest + more, side, pad=pad)), tight)
    each = [identities(padded([text], len(text), "right"))[0] for text in texts]
    assert np.array_equal(each, tight)


@given(texts=TEXTS)
def test_another_text_has_another_identity(texts):
    width = max(map(len, texts)) + 2
    other = [[*text[:-1], text[-1] + 1] for text in texts]
    longer = [[*text, 7] for text in texts]
    mine = identities(padded(texts, width, "right"))
    for changed in (other, longer):
        assert not (mine == identities(padded(changed, width, "right"))).any()


def test_a_mask_of_anything_but_one_end_is_none_of_padding():
    holes = torch.tensor([[1, 0, 1]])
    assert padding_mask([("1.attention_mask", holes)]) is None
    assert padding_mask([("1.attention_mask", torch.ones(2, 3))]) is None
    assert padding_mask([("1.labels", torch.tensor([[1, 0]]))]) is None
    assert padding_mask([("attention_mask", torch.tensor([[1, 0], [1, 1]]))]) is not None


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor([[5, 6, 7], [8, 9, 9]]),  # more than one value where the mask says padding
        torch.rand(2, 3, 4),
        torch.arange(2),
        torch.arange(8).reshape(2, 4),
    ],
)
def test_what_does_not_look_like_padded_integers_stays(tensor):
    mask = torch.tensor([[1, 0, 0], [1, 1, 0]]) != 0
    assert without_padding(tensor, mask) is tensor


def test_positions_with_several_numbers_are_moved_as_wholes():
    mask = torch.tensor([[0, 1, 1]]) != 0
    boxes = torch.tensor([[[9, 9], [1, 2], [3, 4]]])
    assert without_padding(boxes, mask).tolist() == [[[1, 2], [3, 4], [0, 0]]]
