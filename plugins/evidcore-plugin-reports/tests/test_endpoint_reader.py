import base64
import dataclasses
import io
import json

import numpy as np
import pytest
from evidcore_plugin_reports.endpoint import Endpoint
from evidcore_plugin_reports.endpoint_reader import INSTRUCTION, EndpointReader
from evidcore_plugin_reports.testing import Reply, chat_server
from evidcore_testing import volume_case
from PIL import Image

from evidcore.case import Crop, Drawing
from evidcore.contracts import ImageQuestion
from evidcore.errors import DataError, RecipeError, RunError

ASKED = "Which findings are seen?"


@pytest.fixture
def volume(tmp_path):
    """Return a volume of 12 slices of 16 x 16 voxels, 5 x 2 x 4 mm each."""
    return volume_case(tmp_path / "secret-name", spacing_mm_zyx=(5.0, 2.0, 4.0)).volumes[0]


def reader(url, *, allowed=True, **options):
    endpoint = {"key_env": options.pop("key_env", ""), "sends_images_away": allowed, "tries": 1}
    return EndpointReader(endpoint=Endpoint(url=url, model="tiny", **endpoint), **options)


def one_slice(volume, z, **options):
    return Crop(volume=volume, box_zyx=(z, z + 1, 0, 16, 0, 16), **options)


def ask(*crops, text=ASKED):
    return ImageQuestion(crops=crops, text=text)


def always(said):
    return lambda body, number: said if isinstance(said, Reply) else Reply(content=said)


def pictures(body):
    """Return the pictures of a request as arrays."""
    parts = body["messages"][-1]["content"]
    urls = [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]
    assert all(url.startswith("data:image/png;base64,") for url in urls)
    return [np.asarray(Image.open(io.BytesIO(base64.b64decode(url.split(",")[1])))) for url in urls]


def test_a_slice_is_sent_as_one_grey_picture_of_square_pixels_before_the_question(volume):
    with chat_server(always("A lung nodule.")) as server:
        assert reader(server.url, longest_px=64)([ask(one_slice(volume, 3))]) == ["A lung nodule."]
        (body,) = server.requests
        sent = json.dumps(server.requests) + json.dumps(server.headers)
    assert "secret-name" not in sent  # no path
    assert "case-0" not in sent
    assert body["messages"][0] == {"role": "system", "content": INSTRUCTION}
    assert body["messages"][1]["content"][-1] == {"type": "text", "text": ASKED}
    (picture,) = pictures(body)
    assert picture.dtype == np.uint8
    assert picture.shape == (32, 64)  # 32 x 64 mm


def test_the_window_decides_what_is_black_and_what_is_white(volume):
    with chat_server(always("Nothing.")) as server:
        reader(server.url, window=(-2000.0, -1000.0))([ask(one_slice(volume, 3))])
        reader(server.url, window=(3000.0, 4000.0))([ask(one_slice(volume, 3))])
        reader(server.url)([ask(one_slice(volume, 3, blank=True), text="And here?")])
        white, black, blank = (pictures(body)[0] for body in server.requests)
    assert white.min() > 240  # air is at the window's upper end
    assert black.max() == blank.max() == 0


def test_every_slice_of_every_crop_is_a_picture_in_order(volume):
    with chat_server(always("Nothing.")) as server:
        several = Crop(volume=volume, box_zyx=(2, 5, 0, 16, 0, 16))
        reader(server.url)([ask(several, one_slice(volume, 3))])
        shown = pictures(server.requests[0])
    assert len(shown) == 4
    assert (shown[1] == shown[3]).all()
    assert (shown[0] != shown[1]).any()


@pytest.mark.parametrize(
    ("changed", "most_slices", "message"),
    [
        ({"drawing": Drawing(kind="tiles", slices=(1, 2), columns=2)}, 16, r"sends slices, .*'tiles-2,1,2'"),
        ({}, 4, r"12 slices is asked about.*at most 4 pictures.*raise most_slices"),
    ],
)
def test_a_crop_that_cannot_be_sent_is_named(volume, changed, most_slices, message):
    with pytest.raises(DataError, match=message):
        reader("https://host.example/v1", most_slices=most_slices)([ask(Crop(volume=volume, **changed))])


@pytest.mark.parametrize("said", ["", "  \n", Reply(content="cut o", finish="length"), Reply(status=400)])
def test_a_question_without_an_answer_has_none(volume, said):
    with chat_server(always(said)) as server:
        assert reader(server.url)([ask(one_slice(volume, 3))]) == [None]


def test_an_endpoint_that_fails_is_an_error_that_shows_nothing_of_the_image(volume):
    with chat_server(always(Reply(status=500, content="no"))) as server:
        asked = reader(server.url)
        with pytest.raises(RunError, match="gave up after 1 tries") as caught:
            asked([ask(one_slice(volume, 3))])
    assert "base64" not in str(caught.value)


def test_images_are_not_sent_where_the_recipe_allows_texts_alone():
    said = r"images would be sent to 'host\.example'.*those whose scans these are.*sends_images_away = true"
    with pytest.raises(RecipeError, match=said):
        reader("https://host.example/v1", allowed=False)
    with pytest.raises(RecipeError, match=said):
        EndpointReader(endpoint=Endpoint(url="https://host.example/v1", model="m", sends_text_away=True))


def test_a_missing_key_is_told_before_anything_is_trained(monkeypatch):
    monkeypatch.delenv("CHAT_KEY", raising=False)
    with pytest.raises(RunError, match=r"'CHAT_KEY' .* is not set"):
        reader("https://host.example/v1", key_env="CHAT_KEY").ready()


def test_a_scan_that_is_not_hu_needs_no_window(volume):
    arbitrary = dataclasses.replace(volume, intensity="arbitrary")
    with pytest.raises(DataError, match="intensity is 'arbitrary'"):
        reader("https://host.example/v1")([ask(one_slice(arbitrary, 3))])
    with chat_server(always("Nothing.")) as server:
        assert reader(server.url, window=())([ask(one_slice(arbitrary, 3))]) == ["Nothing."]
        assert pictures(server.requests[0])[0].max() > 100


@pytest.mark.parametrize("window", [(1.0,), (5.0, 5.0), (3.0, 1.0), (0.0, 1.0, 2.0)])
def test_a_window_is_low_then_high(window):
    with pytest.raises(ValueError, match="window must be low, then high in HU"):
        reader("https://host.example/v1", window=window)
