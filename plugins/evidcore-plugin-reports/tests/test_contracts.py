"""Metrics, labelers and readers keep their contracts, those of an endpoint over a local server."""

import base64
import hashlib
import io
import json
import re

import pytest
from evidcore_plugin_reports.judge import DIMENSIONS
from evidcore_plugin_reports.labelers import NegationRules
from evidcore_plugin_reports.testing import Reply, chat_server
from evidcore_testing import check_labeler, check_metric, check_reader, volume_case
from PIL import Image

from evidcore.api import Crop
from evidcore.contracts import ImageQuestion
from evidcore.registry.factory import build

EXPECTED = {
    "There is no pleural effusion.": {"pleural effusion": "absent"},
    "There is a lung nodule on the left side.": {"lung nodule": "present"},
}


def made(kind, name, folder, **options):
    given = {"recipe_folder": folder, "cache_folder": folder / "cache", "labeler": NegationRules()}
    return build(kind, {"use": name, **options}, given=given, where="test")


@pytest.mark.parametrize("name", ["bleu", "rouge-l", "cider", "meteor", "scorer"])
def test_metrics_of_words(name, tmp_path):
    options = {"scorer": {"use": "token-f1"}} if name == "scorer" else {}
    check_metric(made("metric", name, tmp_path, **options))


def graded_by_overlap(body, number):
    """Grade 5 where the text repeats the report, else 1."""
    said = body["messages"][-1]["content"]
    report, text = (re.search(rf"<{tag}-\w+>\n(.*?)\n</{tag}-", said, re.S)[1] for tag in ("report", "text"))
    grade = {"score": 5 if text == report else 1, "reason": "as it is"}
    return Reply(content=json.dumps(dict.fromkeys(DIMENSIONS, grade)))


def test_a_judge(tmp_path):
    with chat_server(graded_by_overlap) as server:
        endpoint = {"url": server.url, "model": "tiny", "sends_text_away": True}
        check_metric(made("metric", "judge", tmp_path, endpoint=endpoint))


def answer_by_rules(body, number):
    text = body["messages"][-1]["content"]
    entries = []
    for item in NegationRules()(text):
        quote = text[item.span.start : item.span.end]
        entries.append({"name": item.name, "state": item.state, "quote": quote})
    return Reply(content=json.dumps({"findings": entries}))


def test_a_labeler_behind_an_endpoint(tmp_path):
    with chat_server(answer_by_rules) as server:
        endpoint = {"url": server.url, "model": "tiny", "sends_text_away": True}
        check_labeler(made("labeler", "endpoint", tmp_path, endpoint=endpoint), expected=EXPECTED)


def test_labels_of_a_file(tmp_path):
    cases = {
        f"case-{number}": {
            "text_sha256": hashlib.sha256(text.encode()).hexdigest(),
            "findings": [{"name": name, "state": state} for name, state in states.items()],
        }
        for number, (text, states) in enumerate(EXPECTED.items())
    }
    content = json.dumps({"schema": 1, "cases": cases}).encode()
    (tmp_path / "labels.json").write_bytes(content)
    pinned = hashlib.sha256(content).hexdigest()
    labeler = made("labeler", "labels-file", tmp_path, path="labels.json", sha256=pinned)
    check_labeler(labeler, expected=EXPECTED)


def told_by_brightness(body, number):
    """Name a finding where the picture shows anything but air."""
    url = body["messages"][-1]["content"][0]["image_url"]["url"]
    picture = Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2])))
    return Reply(content="A mass." if picture.getextrema()[1] else "Nothing.")


def test_a_reader_behind_an_endpoint(tmp_path):
    [volume, *_] = volume_case(tmp_path).volumes
    crops = [Crop(volume=volume), Crop(volume=volume, blank=True)]
    questions = [ImageQuestion(crops=(crop,), text="Which finding is present?") for crop in crops]
    with chat_server(told_by_brightness) as server:
        endpoint = {"url": server.url, "model": "tiny", "sends_images_away": True}
        reader = made("reader", "endpoint-reader", tmp_path, endpoint=endpoint, most_slices=64)
        check_reader(reader, questions, tmp_path / "alone")
