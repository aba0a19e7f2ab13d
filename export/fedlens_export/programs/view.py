"""The program `view`: a random augmentation of photos as a function of uniform random numbers.

`contrast` is FedClassAvg's (Jang et al., ICPP 2022), which is SupCon's (Khosla et al., NeurIPS 2020, section 4.1), in
torchvision's terms: RandomResizedCrop(scale 0.2 to 1, ratio 3/4 to 4/3, bilinear), RandomHorizontalFlip(0.5),
ColorJitter(0.4, 0.4, 0.4, 0.1) with probability 0.8, RandomGrayscale(0.2).

    uniform  determines
    0, 1     area of the crop, 0.2 to 1 of the photo, and the logarithm of its width by its height
    2, 3     its top and its left, in whole pixels
    4        whether the photo is mirrored
    5        whether colours change at all
    6 to 9   factors of brightness, contrast and saturation, 0.6 to 1.4, and turn of hue, -0.1 to 0.1
    10       whether it becomes grey

Deviations, so that the number of uniforms is fixed: a side of the crop longer than the photo is cut (torchvision
draws up to ten times), and the changes of colour have a fixed order, as in the table (that of torchvision is random).

`crop-flip` is the code of NIID-Bench (Li et al., ICDE 2022), which FedConcat's is made from: Pad(4, reflect) for photos
of 32 pixels, an eighth of the side for others; RandomCrop of the photo's size; RandomHorizontalFlip(0.5).

    uniform  determines
    0, 1     the top and the left of the crop, in whole pixels of the padded photo
    2        whether the photo is mirrored
"""

from collections.abc import Callable
from math import log
from typing import NamedTuple

import torch
from torch import Tensor

from fedlens_export.programs.steps import ProgramSource, float_slot
from fedlens_proto.v1 import manifest_pb2 as pb

_LEAST_AREA = 0.2
_LOG_RATIO = log(4 / 3)
_FLIPPED = 0.5
_JITTERED = 0.8
_STRENGTH = 0.4
_HUE = 0.1
_GREY = 0.2
_PADDED = 8  # the padding is the side divided by this


def view(augmentation: str, photo_shape: tuple[int, int, int], batch: int) -> ProgramSource:
    """The program `view` for photos [3, H, W]; `augmentation` is one of `AUGMENTATIONS`."""
    count, function = AUGMENTATIONS[augmentation]
    photos = float_slot(pb.SLOT_KIND_INPUT, (batch, *photo_shape))
    uniforms = float_slot(pb.SLOT_KIND_UNIFORM, (batch, count))
    views = float_slot(pb.SLOT_KIND_PHOTO, (batch, *photo_shape))
    return ProgramSource("view", (photos, uniforms), (views,), lambda *given: (function(*given),))


def shifted(photos: Tensor, uniforms: Tensor) -> Tensor:
    """One view of each photo by `crop-flip`; `uniforms` is float32 [B, 3], all else as in `augmented`."""
    height, width = photos.shape[2:]
    down, across = (torch.floor(uniforms[:, i] * (2 * _padding(side) + 1)) for i, side in enumerate((height, width)))
    rows = _shifting(down, height)
    columns = _shifting(across, width, uniforms[:, 2] < _FLIPPED)
    return _resampled(photos, rows, columns)


def augmented(photos: Tensor, uniforms: Tensor) -> Tensor:
    """One view of each photo by `contrast`, float32 [B, 3, H, W] in 0..1.

    Args:
        photos: float32 [B, 3, H, W] in 0..1.
        uniforms: float32 [B, 11] in 0..1, 1 excluded.
    """
    height, width = photos.shape[2:]
    u = [uniforms[:, i] for i in range(uniforms.shape[1])]
    area = height * width * (_LEAST_AREA + (1 - _LEAST_AREA) * u[0])
    ratio = torch.exp(_LOG_RATIO * (2 * u[1] - 1))
    rows = _whole(torch.sqrt(area / ratio), height)
    columns = _whole(torch.sqrt(area * ratio), width)
    top = torch.floor(u[2] * (height + 1 - rows))
    left = torch.floor(u[3] * (width + 1 - columns))
    cropped = resized_crop(photos, top, rows, left, columns, u[4] < _FLIPPED)

    def factor(uniform: Tensor) -> Tensor:
        return _each(1 + _STRENGTH * (2 * uniform - 1))

    coloured = brightness(cropped, factor(u[6]))
    coloured = contrast(coloured, factor(u[7]))
    coloured = saturation(coloured, factor(u[8]))
    coloured = hue(coloured, _each(_HUE * (2 * u[9] - 1)))
    jittered = torch.where(_each(u[5]) < _JITTERED, coloured, cropped)
    return torch.where(_each(u[10]) < _GREY, grey(jittered).expand(-1, 3, -1, -1), jittered)


def resized_crop(photos: Tensor, top: Tensor, rows: Tensor, left: Tensor, columns: Tensor, mirrored: Tensor) -> Tensor:
    """A rectangle of each photo at the size of the photo, by bilinear interpolation inside the rectangle.

    Args:
        photos: float32 [B, 3, H, W].
        top: First row, float32 [B], a whole number.
        rows: Number of rows, likewise, at most H.
        left: First column.
        columns: Number of columns.
        mirrored: bool [B], whether left and right are exchanged.
    """
    height, width = photos.shape[2:]
    return _resampled(photos, _resampling(top, rows, height), _resampling(left, columns, width, mirrored))


def _resampled(photos: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Photos [B, 3, H, W] with new rows and columns, by the weights of the given ones: [B, H, H] and [B, W, W]."""
    batch, colours, height, width = photos.shape
    # Gathering pixels is slow on phones; a product with the weights of all pixels is fast.
    wide = torch.bmm(photos.reshape(batch, colours * height, width), columns.transpose(1, 2))
    wide = wide.reshape(batch, colours, height, width).transpose(1, 2).reshape(batch, height, colours * width)
    return torch.bmm(rows, wide).reshape(batch, height, colours, width).transpose(1, 2)


def _resampling(start: Tensor, length: Tensor, size: int, mirrored: Tensor | None = None) -> Tensor:
    """The weight of each of `size` given pixels in each of `size` new ones, float32 [B, new, given]."""
    length = length.unsqueeze(1)
    inside = ((_new_pixels(size, mirrored) + 0.5) * (length / size) - 0.5).clamp(min=0)
    return _weights(torch.minimum(inside, length - 1) + start.unsqueeze(1), size)


def _shifting(start: Tensor, size: int, mirrored: Tensor | None = None) -> Tensor:
    """As `_resampling`, for a crop of a side padded by reflection, from pixel `start` of the padding on."""
    place = (_new_pixels(size, mirrored) + start.unsqueeze(1) - _padding(size)).abs()
    return _weights(size - 1 - (size - 1 - place).abs(), size)


def _new_pixels(size: int, mirrored: Tensor | None) -> Tensor:
    """The numbers of the new pixels, float32 [B or 1, size]."""
    new = torch.arange(size, dtype=torch.float32).unsqueeze(0)
    return new if mirrored is None else torch.where(mirrored.unsqueeze(1), size - 1 - new, new)


def _weights(place: Tensor, size: int) -> Tensor:
    """The weight of each of `size` given pixels, by its distance to the places [B, new] of new pixels."""
    return (1 - (place.unsqueeze(2) - torch.arange(size, dtype=torch.float32)).abs()).clamp(min=0)


def _padding(side: int) -> int:
    return (side + _PADDED // 2) // _PADDED


def brightness(photos: Tensor, factor: Tensor) -> Tensor:
    """Photos [B, 3, H, W] times a factor [B, 1, 1, 1]."""
    return (photos * factor).clamp(0, 1)


def contrast(photos: Tensor, factor: Tensor) -> Tensor:
    """Photos [B, 3, H, W] with their distance to the mean grey times a factor [B, 1, 1, 1]."""
    return _blended(photos, grey(photos).mean((1, 2, 3), keepdim=True), factor)


def saturation(photos: Tensor, factor: Tensor) -> Tensor:
    """Photos [B, 3, H, W] with their distance to grey times a factor [B, 1, 1, 1]."""
    return _blended(photos, grey(photos), factor)


def grey(photos: Tensor) -> Tensor:
    """The grey of photos [B, 3, H, W], float32 [B, 1, H, W]."""
    return (0.2989 * photos[:, 0] + 0.587 * photos[:, 1] + 0.114 * photos[:, 2]).unsqueeze(1)


def hue(photos: Tensor, turn: Tensor) -> Tensor:
    """Photos [B, 3, H, W] with their hue moved by `turn`, [B, 1, 1, 1], in turns of the circle of colours."""
    red, green, blue = photos[:, 0], photos[:, 1], photos[:, 2]
    greatest = torch.maximum(torch.maximum(red, green), blue)
    spread = greatest - torch.minimum(torch.minimum(red, green), blue)
    by = torch.where(spread > 0, spread, 1.0)
    # In sixths of the circle: red is 0, green 2, blue 4.
    from_green, from_blue = 2 + (blue - red) / by, 4 + (red - green) / by
    angle = torch.where(
        red == greatest, (green - blue) / by, torch.where(green == greatest, from_green, from_blue)
    ) + 6 * turn.squeeze(1)

    def colour(offset: int) -> Tensor:
        place = angle + offset
        place = place - 6 * torch.floor(place / 6)
        return greatest - spread * torch.minimum(place, 4 - place).clamp(0, 1)

    return torch.stack([colour(5), colour(3), colour(1)], 1).clamp(0, 1)


def _blended(photos: Tensor, other: Tensor, factor: Tensor) -> Tensor:
    return (factor * photos + (1 - factor) * other).clamp(0, 1)


def _each(value: Tensor) -> Tensor:
    return value.reshape(-1, 1, 1, 1)


def _whole(side: Tensor, longest: int) -> Tensor:
    return torch.floor(side + 0.5).clamp(1, longest)


class _Augmentation(NamedTuple):
    """The number of uniforms for a photo, and the function of photos and uniforms."""

    uniforms: int
    function: Callable[[Tensor, Tensor], Tensor]


CONTRAST, CROP_FLIP = "contrast", "crop-flip"
AUGMENTATIONS = {CONTRAST: _Augmentation(11, augmented), CROP_FLIP: _Augmentation(3, shifted)}
"""Every augmentation, by name."""
