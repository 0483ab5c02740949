import dataclasses
import socket

import pytest

from evidcore.recipe.trl_fields import CONFIGS, REFUSED, allowed, fields, problems


@pytest.mark.slow
def test_the_fields_read_from_the_source_are_those_of_the_classes():
    import trl  # takes 6 s

    for stage, name in CONFIGS.items():
        assert {field.name for field in dataclasses.fields(getattr(trl, name))} == fields(stage).keys()


def test_each_field_is_passed_or_refused_by_a_sentence():
    assert fields("sft").keys() | fields("grpo").keys() == allowed("sft") | allowed("grpo") | REFUSED.keys()
    assert not REFUSED.keys() & (allowed("sft") | allowed("grpo"))
    for stage in CONFIGS:
        assert allowed(stage) <= fields(stage).keys()
        assert problems(stage, {"weight_decay": 0, "max_grad_norm": 0.5}, {}) == []  # an int is a float
        for field in fields(stage).keys() - allowed(stage):
            [(named, says)] = problems(stage, {field: "a/b"}, {})
            assert (named, says.partition("; ")[2]) == (field, "it cannot be set through trl, got 'a/b'.")


def test_a_template_elsewhere_is_refused_before_anyone_is_asked_for_it(write, evid, monkeypatch):
    asked = []
    monkeypatch.setattr(socket.socket, "connect", lambda _, address: asked.append(address))
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *_, **__: asked.append(host) or [])
    recipe = write(("steps = 4", 'steps = 4\ntrl = { chat_template_path = "attacker/template-repo" }'))
    said = evid("check", recipe, exit_code=2).stderr
    assert "trl.chat_template_path: model and tokenizer are those of [model]; it cannot be set" in said
    assert asked == []
