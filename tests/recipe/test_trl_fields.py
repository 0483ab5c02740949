import dataclasses
import inspect
import re
import socket

import pytest

from evidcore.recipe.trl_fields import CONFIGS, PASSED, REFUSED, problems

PLAIN = {"bool", "int", "float", "dict", "list", "str"}


@pytest.mark.slow
def test_each_field_of_trl_is_passed_with_its_type_or_refused_by_a_sentence():
    import trl  # takes 6 s

    known = set()
    for stage, name in CONFIGS.items():
        types = {
            item.name: inspect.formatannotation(item.type) for item in dataclasses.fields(getattr(trl, name))
        }
        known |= types.keys()
        for field, kind in PASSED[stage].items():
            plain = {*re.findall(r"\w+", types[field])} & PLAIN
            assert {*kind.split(" | ")} == ({"dict"} if "dict" in plain else plain), field
        for field in types.keys() - PASSED[stage].keys():
            [(named, says)] = problems(stage, {field: "a/b"}, {})
            assert (named, says.partition("; ")[2]) == (field, "it cannot be set through trl, got 'a/b'.")
    assert known == REFUSED.keys() | PASSED["sft"].keys() | PASSED["grpo"].keys()


def test_no_field_is_both_passed_and_refused_and_an_int_is_a_float():
    for stage in CONFIGS:
        assert not REFUSED.keys() & PASSED[stage].keys()
        assert problems(stage, {"weight_decay": 0, "max_grad_norm": 0.5}, {}) == []


def test_a_template_elsewhere_is_refused_before_anyone_is_asked_for_it(write, evid, monkeypatch):
    asked = []
    monkeypatch.setattr(socket.socket, "connect", lambda _, address: asked.append(address))
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *_, **__: asked.append(host) or [])
    recipe = write(("steps = 4", 'steps = 4\ntrl = { chat_template_path = "attacker/template-repo" }'))
    said = evid("check", recipe, exit_code=2).stderr
    assert "trl.chat_template_path: model and tokenizer are those of [model]; it cannot be set" in said
    assert asked == []
