"""Names inside inputs: those of fields may come along, those that are data themselves may not."""

import re
from collections.abc import Iterator

from ddparity.trace._inputs import InputSpec, InputSpecs

_FIELD = re.compile(r"[A-Za-z_]\w{0,40}(?:\.\w{1,40})*", re.ASCII)
_KNOWN = frozenset(
    {"input_ids", "attention_mask", "token_type_ids", "position_ids", "labels", "label", "targets", "inputs", "image"}
    | {"images", "pixel_values", "pixel_mask", "input_features", "decoder_input_ids", "weight", "bias", "mask", "text"}
    | {"running_mean", "running_var", "num_batches_tracked", "data", "target", "index", "length", "lengths", "idx"}
)
_TIMES = 2


def named_fields(specs: InputSpecs, sources: str) -> InputSpecs:
    """Return descriptions whose dictionaries have fields only; what cannot be kept is named in ``problems``.

    A key is a field if it stands in the sources, is a usual name, or comes back in every batch. A dictionary that is
    keyed by what it holds (patients, files) is data in its keys.
    """
    streams = {name: spec for name, spec in specs.streams.items() if _kept(spec, sources, len(spec.shapes))}
    readers = {name: [_tidy(spec, sources) for spec in calls] for name, calls in specs.readers.items()}
    kept = {name: calls for name, calls in readers.items() if all(_kept(spec, sources, 1) for spec in calls)}
    datasets = {
        name: [each if each is None or _kept(each.item, sources, _TIMES) else None for each in found]
        for name, found in specs.datasets.items()
    }
    lost = [*(specs.streams.keys() - streams.keys()), *(readers.keys() - kept.keys())]
    problems = [f"{name}: the keys of a dictionary are data, not names of fields" for name in sorted(lost)]
    return InputSpecs(streams=streams, readers=kept, datasets=datasets, problems=specs.problems + problems)


def _kept(spec: InputSpec, sources: str, times: int) -> bool:
    return all(_is_field(key, sources, each) for each, key in _keys(spec, times))


def _keys(spec: InputSpec, times: int) -> Iterator[tuple[int, str]]:
    for key, item in zip(spec.keys or [""] * len(spec.items), spec.items, strict=True):
        seen = max(times, len(item.shapes))
        if spec.keys:
            yield seen, key
        yield from _keys(item, times)


def _is_field(key: str, sources: str, times: int) -> bool:
    if not _FIELD.fullmatch(key):
        return False
    parts = [part for part in key.split(".") if not part.isdecimal()]
    return times >= _TIMES or all(part in _KNOWN or _stands_in(part, sources) for part in parts)


def _stands_in(word: str, sources: str) -> bool:
    return re.search(rf"\b{re.escape(word)}\b", sources) is not None


def _tidy(spec: InputSpec, sources: str) -> InputSpec:
    """Leave out of a library's container what the sources never name."""
    if spec.kind != "table":
        return spec
    pairs = [(key, item) for key, item in zip(spec.keys, spec.items, strict=True) if _is_field(key, sources, 1)]
    return InputSpec(kind="table", keys=[key for key, _ in pairs], items=[item for _, item in pairs])
