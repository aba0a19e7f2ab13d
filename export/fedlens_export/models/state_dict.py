"""Reading PyTorch state dicts that somebody else wrote, without running code from them."""

from pathlib import Path
from pickle import UnpicklingError

import torch
from torch import Tensor

from fedlens_export.errors import WeightsUnusable


def read(path: Path) -> dict[str, Tensor]:
    """The tensors of a file that `torch.save(model.state_dict(), path)` wrote, on the CPU.

    Raises:
        WeightsUnusable: It cannot be read without running code, is damaged, or holds something else.
    """
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise WeightsUnusable(f"{path} cannot be read: there is no such file") from error
    except UnpicklingError as error:
        # torch's text would advise to load it anyway.
        raise WeightsUnusable(f"{path} is no plain dict of tensors, and is not loaded") from error
    except Exception as error:  # what torch raises for a damaged archive or pickle is not limited to a few types
        raise WeightsUnusable(
            f"{path} cannot be read as a state dict: {_first_line(error) or 'it is cut short'}"
        ) from error
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


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "")
