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


class Reader(torch.nn.Module):
    """Reads texts of (rows, length) whose embedding knows the token of padding, or whose call says where texts end."""

    def __init__(self, fill: int | None = None) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(64, 2, padding_idx=fill)

    def forward(self, text, lengths=None, key_padding_mask=None):
        return self.table(text).sum((1, 2))


def entered(module, *args, **kwargs):
    batch, _ = Batches(0, NOWHERE).enter(args, kwargs, module=module)
    return batch.keys.ids


@given(texts=TEXTS, more=st.integers(0, 12), side=st.sampled_from(["left", "right"]), fill=st.sampled_from([0, 63]))
def test_padding_that_an_embedding_knows_is_no_part_of_a_sample(texts, more, side, fill):
    longest = max(map(len, texts))
    tight = entered(Reader(fill), padded(texts, longest, "right", pad=fill)["input_ids"])
    wide = padded(texts, longest + more, side, pad=fill)["input_ids"]
    assert np.array_equal(entered(Reader(fill), wide), tight)
    assert np.array_equal([entered(Reader(fill), torch.tensor([text]))[0] for text in texts], tight)
    if more and fill:  # zeros at the end of a row leave its hash as it is
        assert not np.array_equal(entered(Reader(), wide), tight), "who knows nothing of padding takes it for tokens"


@given(texts=TEXTS, more=st.integers(1, 12), pad=st.sampled_from([0, 5, 63]), by_name=st.booleans())
def test_padding_behind_lengths_and_under_inverted_masks_is_no_part_of_a_sample(texts, more, pad, by_name):
    longest = max(map(len, texts))
    lengths = torch.tensor([len(text) for text in texts])

    def told(width, pad):
        text = padded(texts, width, "right", pad=pad)
        hidden = text["attention_mask"] == 0
        return text["input_ids"], lengths, hidden

    for which in ("lengths", "key_padding_mask"):
        at = 1 if which == "lengths" else 2

        def ids(width, pad, which=which, at=at):
            made = told(width, pad)
            named = {which: made[at]}
            given = (made[0], made[1]) if which == "lengths" and not by_name else (made[0],)
            return entered(Reader(), *given, **(named if len(given) == 1 else {}))

        assert np.array_equal(ids(longest + more, pad), ids(longest + more + 1, 9 if pad != 9 else 8)), which


def test_a_token_of_padding_in_the_middle_of_a_text_is_one_of_its_tokens():
    one, other = torch.tensor([[3, 0, 4, 0, 0]]), torch.tensor([[3, 4, 0, 0, 0]])
    assert not np.array_equal(entered(Reader(0), one), entered(Reader(0), other))
