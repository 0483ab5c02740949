import numpy as np
import torch
from evidcore_plugin_medsam2.pixels import greys, pixels
from PIL import Image


def test_a_window_becomes_256_greys_rounded():
    values = np.array([[-2000, -160, -159, 40, 239, 240, 3000]], dtype=np.int16)
    # by hand: 1 / 400 * 255 = 0.64 rounds to 1; 200 / 400 * 255 = 127.5 to the even 128
    assert greys(values, -160, 240).tolist() == [[0, 0, 1, 128, 254, 255, 255]]


def test_a_slice_is_resized_as_an_rgb_picture_would_be():
    shown = np.random.default_rng(0).integers(0, 256, (40, 30)).astype(np.uint8)
    result = pixels(shown, 64)
    colours = np.asarray(
        Image.fromarray(shown).convert("RGB").resize((64, 64))
    )  # Pillow's default is bicubic
    wanted = (colours / 255 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    np.testing.assert_allclose(result.numpy(), wanted.transpose(2, 0, 1), atol=1e-6)
    assert result.dtype == torch.float32


def test_a_slice_of_the_models_size_is_not_resized():
    shown = np.random.default_rng(1).integers(0, 256, (32, 32)).astype(np.uint8)
    red = pixels(shown, 32)[0] * 0.229 + 0.485
    np.testing.assert_array_equal(np.rint(red.numpy() * 255), shown)
