"""Reading other people's PyTorch state dicts without running code from them, and loading them into modules."""

from collections.abc import Collection, Mapping
from pathlib import Path
from pickle import UnpicklingError

import torch
from torch import Tensor, nn

from fedlens_export.errors import WeightsUnusable
from fedlens_export.network import COUNTER

_FLOATS = {torch.float16, torch.bfloat16, torch.float32, torch.float64}


def read(path: Path) -> dict[str, Tensor]:
    """The tensors of a file from `torch.save(model.state_dict(), path)`, or of safetensors by its suffix, on the CPU.

    Raises:
        WeightsUnusable: It cannot be read without running code, is damaged, or holds something else.
    """
    if path.suffix == ".safetensors":
        return _safetensors(path)
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise WeightsUnusable(f"{path} cannot be read: there is no such file") from error
    except UnpicklingError as error:
        # torch's text would advise to load it anyway.
        raise WeightsUnusable(f"{path} is no plain dict of tensors, and is not loaded") from error
    except Exception as error:  # what torch raises for a damaged archive or pickle is not limited to a few types
        # The text of a KeyError or IndexError is a bare number.
        first = isinstance(error, OSError | RuntimeError) and str(error).partition("\n")[0]
        reason = first or "it is damaged, or torch.save did not write it"
        raise WeightsUnusable(f"{path} cannot be read as a state dict: {reason}") from error
    if not isinstance(state, dict):
        raise WeightsUnusable(
            f"{path} cannot be read as a state dict: it holds a {type(state).__name__}, not a dict of tensors"
        )
    for name, tensor in state.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            raise WeightsUnusable(
                f"{path} is no state dict: {name!r} is {type(tensor).__name__}, not a tensor by name; "
                "save `model.state_dict()` alone"
            )
        if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type != "cpu":
            raise WeightsUnusable(f"{path}: tensor {name!r} is sparse, quantised or without data; save a dense one")
    return {name: tensor.detach() for name, tensor in state.items()}


def load_into(
    module: nn.Module, given: Mapping[str, Tensor], source: str, optional: Collection[str] = ()
) -> tuple[str, ...]:
    """Replace the tensors of a module.

    Args:
        module: Its counters of batches may be missing in `given`.
        given: By the module's names.
        source: Origin of the tensors, for errors.
        optional: Tensors that may be missing or have another shape; these keep their values.

    Returns:
        The optional tensors that kept their values, sorted.

    Raises:
        WeightsUnusable: Names, shapes or dtypes do not fit, or a value is not finite; the text names the tensor.
    """
    wanted = module.state_dict()
    counters = {name for name in wanted if name.endswith(COUNTER)}
    if missing := sorted(wanted.keys() - given.keys() - counters - set(optional)):
        raise WeightsUnusable(f"{source}: {len(missing)} tensors are missing, the first is {missing[0]!r}")
    if unknown := sorted(given.keys() - wanted.keys()):
        raise WeightsUnusable(f"{source}: the model has no tensor {unknown[0]!r} ({len(unknown)} are unknown)")
    unchanged = {name for name in optional if name not in given or given[name].shape != wanted[name].shape}
    loaded = {name: tensor for name, tensor in given.items() if name not in unchanged}
    for name, tensor in loaded.items():
        if tensor.shape != wanted[name].shape:
            raise WeightsUnusable(f"{source}: {name!r} is {list(tensor.shape)}, not {list(wanted[name].shape)}")
        if tensor.dtype != wanted[name].dtype and not {tensor.dtype, wanted[name].dtype} <= _FLOATS:
            raise WeightsUnusable(f"{source}: {name!r} is {tensor.dtype}, which is no {wanted[name].dtype}; convert it")
        if not torch.isfinite(tensor).all():
            raise WeightsUnusable(f"{source}: {name!r} holds a NaN or an infinity")
    module.load_state_dict(loaded, strict=False)
    return tuple(sorted(unchanged))


def _safetensors(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise WeightsUnusable(f"{path} cannot be read as a state dict: {error}") from error
