"""What kernels of the CPU hold while they run and no dispatch sees: the private copies of oneDNN's convolutions.

oneDNN computes convolutions on tensors in blocks of 8 or 16 channels. Each call copies what it reads into that layout,
computes into it, and copies the result out; the copies go when the call ends. So a call holds, beyond its arguments:

* forward: input, weight and output in blocks, or the output in both layouts;
* backward: the gradient of the output and the weight in blocks with the gradient of the input in blocks; then, with the
  gradient of the input in plain layout beside them, input and gradient of the output in blocks and the gradient of the
  weight in blocks. Where it strides, the gradient of the input is copied out by way of channels_last.

Tensors that already are in channels_last, and inputs of less channels than a block (images), are read as they are.
https://uxlfoundation.github.io/oneDNN/dev_guide_understanding_memory_formats.html
"""

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, UnsupportedFakeTensorException
from torch.utils._pytree import tree_leaves

_MIN_CHANNELS = 8
_RECURRENT = ("mkldnn_rnn_layer", "_cudnn_rnn", "miopen_rnn")


def workspace(func: Any, args: Any, result: Any) -> int:
    """Return the most that an operation holds on a CPU beyond its arguments, its results counted; 0 if unknown."""
    if not torch.backends.mkldnn.enabled or not torch.backends.mkldnn.is_available():
        return 0
    if func is torch.ops.aten.convolution.default:
        return _forward(args[0], args[1], result, transposed=bool(args[6]))
    if func is torch.ops.aten.convolution_backward.default:
        return _backward(args, result, transposed=bool(args[7]))
    return 0


def refuse_unknown(func: Any, result: Any) -> None:
    """Refuse fake results of operations whose fakes lack what the real ones keep for backward.

    Raises:
        UnsupportedFakeTensorException: The workspace of a recurrent layer is known to its kernel alone.
    """
    if func.__name__.partition(".")[0] in _RECURRENT and any(
        isinstance(each, FakeTensor) for each in tree_leaves(result)
    ):
        raise UnsupportedFakeTensorException(f"{func} keeps a workspace for backward that fake tensors do not have")


def _forward(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, *, transposed: bool) -> int:
    if not _by_onednn(x, weight, transposed=transposed):
        return 0
    private = _private(out)
    return max(_private(x) + _private_weight(weight) + (private or _bytes(out)), private + _bytes(out))


def _backward(args: Any, result: Any, *, transposed: bool) -> int:
    grad, x, weight, _, strides = args[:5]
    if not _by_onednn(x, weight, transposed=transposed):
        return 0
    to_input = result[0] is not None
    grads, weights = _private(grad), _private_weight(weight)
    first = grads + weights + _private(x) if to_input else 0
    turned = _private(x) + _bytes(x) * (2 if max(strides) > 1 else 1) if to_input else 0
    plain = _bytes(x) if to_input else 0
    second = plain + grads + _private(x) + weights if result[1] is not None else plain
    return max(first, turned, second, second - grads - _private(x) + _bytes(weight))


def _by_onednn(x: torch.Tensor, weight: torch.Tensor, *, transposed: bool) -> bool:
    return not transposed and x.dtype in (torch.float32, torch.bfloat16, torch.float16) and x.ndim in (3, 4, 5)


def _private(tensor: torch.Tensor) -> int:
    """Return what the copy of a tensor in blocks of channels takes, 0 where there is none."""
    if tensor.shape[1] < _MIN_CHANNELS or not tensor.is_contiguous():
        return 0
    return _bytes(tensor) * _padded(tensor.shape[1]) // tensor.shape[1]


def _private_weight(weight: torch.Tensor) -> int:
    return _bytes(weight)


def _padded(channels: int) -> int:
    block = 16 if "AVX512" in torch.backends.cpu.get_cpu_capability() else 8
    return -(-channels // block) * block


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
