"""What kernels of the CPU hold while they run and no dispatch sees: the private copies of oneDNN's convolutions.

oneDNN computes convolutions on tensors in blocks of 8 or 16 channels. Each call copies what it reads into that layout,
computes into it, and copies the result out; the copies go when the call ends. So a call holds, beyond its arguments:

* forward: input, weight and output in blocks, or the output in both layouts;
* backward: the gradient of the output and the weight in blocks with the gradient of the input in blocks; then, with the
  gradient of the input in plain layout beside them, input and gradient of the output in blocks and the gradient of the
  weight in blocks. Where it strides and has one group, the gradient of the input is copied out by
  way of channels_last.

Tensors that already are in channels_last, and inputs of less channels than a block (images), are read as they are. A
dilated convolution reads all tensors as they are for the gradient of its weight, with scratch of several times the
weight, which depends on the processor and is not counted.
https://uxlfoundation.github.io/oneDNN/dev_guide_understanding_memory_formats.html
"""

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, UnsupportedFakeTensorException
from torch.utils._pytree import tree_leaves

_MIN_CHANNELS = 8
_MIN_SAMPLES, _SMALL_KERNEL, _SMALL_INPUT = 16, 3, 20480
_RECURRENT = ("mkldnn_rnn_layer", "_cudnn_rnn", "miopen_rnn")


def workspace(func: Any, args: Any, result: Any) -> int:
    """Return the most that an operation holds on a CPU beyond its arguments, its results counted; 0 if unknown."""
    if not torch.backends.mkldnn.enabled or not torch.backends.mkldnn.is_available():
        return 0
    if func is torch.ops.aten.convolution.default:
        x, weight, _, strides, _, dilations, transposed = args[:7]
        used = _by_onednn(x, weight, strides, dilations, args[8], transposed=transposed)
        return _forward(x, weight, result) if used else 0
    if func is torch.ops.aten.convolution_backward.default:
        grad, x, weight, _, strides, _, dilations, transposed = args[:8]
        used = _by_onednn(x, weight, strides, dilations, args[9], transposed=transposed)
        return _backward(grad, x, weight, dilations, result, turns=args[9] == 1 and max(strides) > 1) if used else 0
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


def _by_onednn(
    x: torch.Tensor, weight: torch.Tensor, strides: Any, dilations: Any, groups: int, *, transposed: bool
) -> bool:
    """Say whether PyTorch gives a convolution to oneDNN; its own kernels do small ones (``ConvParams::use_mkldnn``)."""
    if transposed or x.dtype not in (torch.float32, torch.bfloat16, torch.float16) or x.ndim not in (4, 5):
        return False
    if x.dtype != torch.float32:
        return True
    kernel = weight.shape[2:]
    plain = max(kernel) == 1 and max(strides) == 1 and max(dilations) == 1
    if plain and x.shape[0] < _MIN_SAMPLES and torch.get_num_threads() == 1:
        return False
    return groups > 1 or min(kernel) > _SMALL_KERNEL or x.shape[0] > 1 or x.numel() > _SMALL_INPUT


def _forward(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> int:
    private = _private(out)
    return max(_private(x) + _bytes(weight) + (private or _bytes(out)), private + _bytes(out))


def _backward(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, dilations: Any, result: Any, *, turns: bool
) -> int:
    to_input = result[0] is not None
    grads, inputs, weights = _private(grad), _private(x), _bytes(weight)
    first = grads + weights + inputs if to_input else 0
    turned = inputs + _bytes(x) * (2 if turns else 1) if to_input else 0
    plain = _bytes(x) if to_input else 0
    copies = 0 if max(dilations) > 1 else grads + inputs
    second = plain + copies + weights if result[1] is not None else plain
    return max(first, turned, second, plain + 2 * weights if result[1] is not None else 0)


def _private(tensor: torch.Tensor) -> int:
    """Return what the copy of a tensor in blocks of channels takes, 0 where there is none."""
    if tensor.shape[1] < _MIN_CHANNELS or not tensor.is_contiguous():
        return 0
    return _bytes(tensor) * _padded(tensor.shape[1]) // tensor.shape[1]


def _padded(channels: int) -> int:
    block = 16 if "AVX512" in torch.backends.cpu.get_cpu_capability() else 8
    return -(-channels // block) * block


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
