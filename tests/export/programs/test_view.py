"""Random views against torchvision's own operations with the same parameters."""

import numpy as np
import pytest
import torch
from torch import Tensor
from torchvision.transforms import functional  # type: ignore[import-untyped]

from fedlens_export.programs import view
from fedlens_proto import keyed_hash
from tests.export.small import difference

SIDE = 24
# A uniform that leaves colours, and one that leaves the direction, as they are.
STILL, LATE = 0.9, 0.99


def photos(count: int, side: int = SIDE) -> Tensor:
    return torch.rand(count, 3, side, side, generator=torch.Generator().manual_seed(2))


def each(*values: float) -> Tensor:
    return torch.tensor(values).reshape(-1, 1, 1, 1)


def test_each_photo_of_a_batch_is_cropped_and_resized_as_torchvision_does() -> None:
    crops = [(0, 24, 0, 24), (3, 11, 7, 15), (23, 1, 0, 2), (10, 14, 9, 15), (0, 5, 20, 4)]
    given = photos(10)
    tops, rows, lefts, columns = torch.tensor(crops * 2).float().T

    found = view.resized_crop(given, tops, rows, lefts, columns, torch.arange(10) >= 5)

    for i, (top, height, left, width) in enumerate(crops * 2):
        expected = functional.resized_crop(given[i], top, left, height, width, [SIDE, SIDE], antialias=False)
        torch.testing.assert_close(found[i], functional.hflip(expected) if i >= 5 else expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("amount", [0.6, 0.93, 1.0, 1.4])
def test_brightness_contrast_and_saturation_are_torchvisions(amount: float) -> None:
    given = photos(2)

    pairs = [
        (view.brightness, functional.adjust_brightness),
        (view.contrast, functional.adjust_contrast),
        (view.saturation, functional.adjust_saturation),
    ]

    for ours, theirs in pairs:
        torch.testing.assert_close(ours(given, each(amount)), theirs(given, amount), rtol=0, atol=1e-6)


@pytest.mark.parametrize("turn", [-0.1, -0.03, 0.0, 0.1])
def test_hue_is_torchvisions(turn: float) -> None:
    # Greys, whose hue is not defined, and pure colours are among them.
    corners = torch.tensor([[0.0, 0, 0], [1, 1, 1], [1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0], [0.3, 0.3, 0.3]])
    given = torch.cat([photos(1).flatten(2), corners.T.unsqueeze(0)], 2).reshape(1, 3, -1, 1)

    found = view.hue(given, each(turn))

    torch.testing.assert_close(found, functional.adjust_hue(given, turn), rtol=0, atol=1e-5)


def test_grey_is_torchvisions() -> None:
    given = photos(2)

    torch.testing.assert_close(view.grey(given), functional.rgb_to_grayscale(given), rtol=0, atol=1e-6)


def test_the_uniforms_decide_as_the_table_says() -> None:
    # Area 0.2 + 0.8 * 0.5 = 0.6 of 576 pixels = 345.6; ratio (4/3)^(2 * 0.75 - 1) = 1.1547: sqrt(345.6 / 1.1547)
    # = 17.3 gives 17 rows, sqrt(345.6 * 1.1547) = 19.98 gives 20 columns. Top 0.5 * 8 = 4, left 0.9 * 5 = 4.5 gives 4.
    # Factors 1 + 0.4 * (2u - 1): 0.75 gives 1.2, 0.25 gives 0.8, 0.5 gives 1; hue 0.1 * (2 * 0.7 - 1) = 0.04.
    given = photos(1)
    uniforms = torch.tensor([[0.5, 0.75, 0.5, 0.9, 0.3, 0.79, 0.75, 0.25, 0.5, 0.7, 0.5]])

    found = view.augmented(given, uniforms)

    expected = functional.hflip(functional.resized_crop(given, 4, 4, 17, 20, [SIDE, SIDE]))
    expected = functional.adjust_contrast(functional.adjust_brightness(expected, 1.2), 0.8)
    expected = functional.adjust_hue(functional.adjust_saturation(expected, 1.0), 0.04)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("uniform", "just_below", "just_above"),
    [(4, 0.499, 0.5), (5, 0.799, 0.8), (10, 0.199, 0.2)],
)
def test_what_happens_sometimes_happens_as_often_as_it_should(
    uniform: int, just_below: float, just_above: float
) -> None:
    given = photos(1)
    still = torch.tensor([[0.3, 0.2, 0.4, 0.6, STILL, STILL, 0.9, 0.1, 0.9, 0.1, LATE]])
    happens, does_not = still.clone(), still.clone()
    happens[0, uniform], does_not[0, uniform] = just_below, just_above

    assert torch.equal(view.augmented(given, does_not), view.augmented(given, still))
    assert not torch.equal(view.augmented(given, happens), view.augmented(given, still))


def test_the_largest_crop_leaves_a_photo_as_it_is() -> None:
    given = photos(1)

    found = view.augmented(given, torch.tensor([[1.0, 0.5, 0.3, 0.3, STILL, STILL, 0, 0, 0, 0, LATE]]))

    torch.testing.assert_close(found, given, rtol=0, atol=1e-6)


@pytest.mark.parametrize("edge", [0.0, 1 - 2.0**-24])
@pytest.mark.parametrize("side", [1, 3, 32, 33])
def test_no_uniform_leads_out_of_a_photo(edge: float, side: int) -> None:
    # Outside there is nothing, which would darken a white photo.
    found = view.augmented(torch.ones(1, 3, side, side), torch.full((1, 11), edge))

    grey_and_dark = {0.0: 0.6}  # all factors at their least: brightness 0.6
    torch.testing.assert_close(found, torch.full_like(found, grey_and_dark.get(edge, 1.0)), rtol=0, atol=2e-4)


def test_views_stay_within_0_and_1() -> None:
    uniforms = torch.from_numpy(np.stack([keyed_hash.view_uniforms(bytes(32), bytes(32), v, 11) for v in range(64)]))

    found = view.augmented(photos(64), uniforms)

    assert found.isfinite().all()
    assert 0 <= found.min() <= found.max() <= 1


@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize(("side", "top", "left"), [(24, 0, 6), (24, 3, 4), (16, 4, 1), (1, 0, 0)])
def test_a_crop_with_a_flip_is_torchvisions(side: int, top: int, left: int, *, mirrored: bool) -> None:
    given = photos(1)[:, :, :side, :side]
    padding = {24: 3, 16: 2, 1: 0}[side]  # an eighth of the side
    # In the middle of the interval that gives these whole pixels.
    places = [(place + 0.5) / (2 * padding + 1) for place in (top, left)]

    found = view.shifted(given, torch.tensor([[*places, 0.49 if mirrored else 0.51]]))

    padded = functional.pad(given, [padding], padding_mode="reflect") if padding else given
    expected = functional.crop(padded, top, left, side, side)
    assert torch.equal(found, functional.hflip(expected) if mirrored else expected)


@pytest.mark.parametrize("edge", [0.0, 1 - 2.0**-24, 1.0])
def test_no_uniform_leads_a_shifted_crop_out_of_a_photo(edge: float) -> None:
    found = view.shifted(torch.ones(1, 3, 33, 33), torch.full((1, 3), edge))

    assert torch.equal(found, torch.ones_like(found))


@pytest.mark.parametrize("name", view.AUGMENTATIONS)
def test_the_program_is_vetted_and_gives_the_same_views(name: str) -> None:
    assert difference(view.view(name, (3, 8, 8), 2), {}) <= 1e-6
