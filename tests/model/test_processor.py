import dataclasses
import re

import pytest
import torch
from transformers import AutoTokenizer

from evidcore.api import Case, DataError, Prompt, TextPart, VisualPart, prepare
from evidcore.builtin.rollouts import Plain
from evidcore.builtin.views import Volume
from evidcore.errors import RunError
from evidcore.model.processor import VolumeImageProcessor, VolumeProcessor, add_image_tokens

SHOWN = "<|vision_start|>" + "<|image_pad|>" * 4 + "<|vision_end|>"


def template(content: str) -> str:
    turn = f"{{% for message in messages %}}<|im_start|>{content}<|im_end|>{{% endfor %}}"
    return turn + "{% if add_generation_prompt %}<|im_start|>{% endif %}"


def test_a_prompt_is_a_user_turn_with_its_images_in_place(small):
    encoded = small.processor.encode(small.prompts[0])
    text = small.processor.tokenizer.decode(encoded.ids)
    assert text == f"<|im_start|>user\n{SHOWN}What is there?<|im_end|>\n<|im_start|>assistant\n"
    (crop,) = encoded.crops
    assert encoded.crops == small.prompts[0].crops()
    images = small.processor.image_processor
    features = small.model.get_image_features(torch.tensor([[images.handle(crop)]])).pooler_output
    assert images.tokens(crop) == len(features[0]) == 4


def test_parts_keep_their_order(small):
    crops = [prompt.crops()[0] for prompt in small.prompts[:2]]
    parts = (TextPart(text="a"), VisualPart(crop=crops[0]), TextPart(text="b"), VisualPart(crop=crops[1]))
    text = small.processor.text_of(parts, "here").replace("<|image_pad|>", ".")
    assert text == "a<|vision_start|>....<|vision_end|>b<|vision_start|>....<|vision_end|>"


@pytest.mark.parametrize("token", ["<|image_pad|>", "<|im_end|>", "<image>"])
def test_a_control_token_in_the_data_is_refused(small, token):
    prompt = dataclasses.replace(small.prompts[0], parts=(TextPart(text=f"see {token}"),))
    with pytest.raises(DataError, match=r"prompt 'question-0': its text holds the control token '<"):
        small.processor.encode(prompt)
    with pytest.raises(DataError, match=rf"answer 'see .*': its text holds .*'{re.escape(token)}'; take it"):
        small.processor.encode_answer(f"see {token}")


TAGS = ["<|box_start|>", "<|object_ref_end|>", "<quad>", "<loc0012>", "[TOOL_CALLS]", "<|python_tag|>"]
OTHERS = [
    "<|video_pad|>", "<|vision_pad|>", "<start_of_image>", "<IMG_CONTEXT>", "<|audio_bos|>", "<s>", "<stop>",
    "[TOOL_RESULTS]", "<tool_response>", "<|start_header_id|>", "<|reserved_7|>", "<fim_prefix>", "<fetch>",
]  # fmt: skip


def test_no_sampler_writes_special_tokens_but_ends_and_tags_or_a_number_without_a_token(
    small, language_folder
):
    tokenizer = AutoTokenizer.from_pretrained(language_folder)
    tokenizer.add_special_tokens({"additional_special_tokens": [*TAGS, *OTHERS]})
    tokenizer.add_tokens(["<plain>"])
    processor, count = VolumeProcessor(small.processor.image_processor, tokenizer), len(tokenizer)
    strategy = Plain()
    strategy.call_form, strategy.stop_texts = "<fetch>", ("<stop>",)
    qwen = {"<|endoftext|>", "<|im_start|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>"}
    for how, allowed in ((None, set()), (strategy, {"<fetch>", "<stop>"})):
        *ids, first, second = processor.forbidden_ids(processor.end_ids, count + 2, how)
        assert (first, second) == (count, count + 1)
        assert set(tokenizer.convert_ids_to_tokens(ids)) == qwen | {*OTHERS} - allowed
    assert processor.encode_answer(" ".join(TAGS)).ids[0] == tokenizer.convert_tokens_to_ids(TAGS[0])


def test_a_tool_turn_ends_the_model_turn_and_opens_the_next(small):
    encoded = small.processor.encode_tool_turn((TextPart(text="slice 3:"),))
    text = small.processor.tokenizer.decode(encoded.ids)
    assert text == (
        "<|im_end|>\n<|im_start|>user\n<tool_response>\nslice "
        "3:\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )


def test_references_of_every_form_give_the_same_handles(small):
    crop = small.prompts[0].crops()[0]
    images = small.processor.image_processor
    handle = images.handle(crop)
    values = images([[crop], [crop.uri(), handle], None])["pixel_values"]
    assert values.tolist() == [[handle]] * 3
    assert values.dtype == torch.int64


def test_without_a_model_the_processor_gives_pixels_and_needs_no_weights(small, tmp_path):
    small.processor.save_pretrained(tmp_path)
    alone = VolumeProcessor.from_pretrained(tmp_path)
    crop = small.prompts[0].crops()[0]
    shown = "<|vision_start|><|image_pad|><|vision_end|>"
    batch = alone(images=[[crop.uri()]], text=[f"{shown}What?"], return_tensors="pt")
    assert batch["pixel_values"].shape == (1, 3, 8, 16, 16)
    spec = small.model.model.encoder.input
    torch.testing.assert_close(batch["pixel_values"][0], prepare(crop, spec, (8, 16, 16)))
    assert int((batch["input_ids"] == small.processor.image_token_id).sum()) == 4
    with pytest.raises(RunError, match="has no feature bank"):
        alone.image_processor.handle(crop)


def test_a_number_of_images_other_than_places_is_refused(small):
    with pytest.raises(ValueError, match="0 places for images in the text, but 1 images"):
        small.processor(images=[[small.prompts[0].crops()[0]]], text=["What?"])


def test_a_language_model_without_chat_template_is_named(small, language_folder):
    tokenizer = AutoTokenizer.from_pretrained(language_folder)
    tokenizer.chat_template = None
    with pytest.raises(RunError, match=f"{language_folder}: its tokenizer has no chat template"):
        VolumeProcessor(VolumeImageProcessor(), tokenizer)


def test_an_answer_ends_with_the_token_that_the_template_ends_a_turn_with(small):
    text = "<answer>B</answer>"
    encoded = small.processor.encode_answer(text)
    assert small.processor.tokenizer.decode(encoded.ids) == f"{text}<|im_end|>"
    assert "".join(text[start:stop] for start, stop in encoded.offsets) == text
    assert encoded.offsets[-1] == (len(text), len(text))


def test_white_space_around_a_question_is_kept_where_the_template_takes_it_off(language_folder):
    tokenizer = AutoTokenizer.from_pretrained(language_folder)
    tokenizer.chat_template = template("{{ message.content | trim }}")
    processor = VolumeProcessor(VolumeImageProcessor(), tokenizer)
    prompt = Prompt(
        id="q", case=Case(id="c", patient="p", volumes=()), task="t", parts=(TextPart(text=" Which?\n"),)
    )
    assert processor.write(prompt) == "<|im_start|> Which?\n<|im_end|><|im_start|>"


def test_pixels_of_different_sizes_are_not_stacked(small, tmp_path):
    small.processor.save_pretrained(tmp_path)
    images = VolumeProcessor.from_pretrained(tmp_path).image_processor

    class Growing(Volume):
        """A view whose crops are larger."""

        def size_zyx(self, part: VisualPart, encoder) -> tuple[int, int, int]:
            return (8, 16, 16) if part.crop.box_zyx is None else (8, 16, 32)

    encoder, bridge, _ = images.parts()
    images.connect(encoder, bridge, Growing(), None)
    crop = small.prompts[0].crops()[0]
    with pytest.raises(DataError, match=r"different sizes.*\(3, 8, 16, 16\), \(3, 8, 16, 32\)"):
        images([crop, dataclasses.replace(crop, box_zyx=(0, 12, 0, 16, 0, 16))])


class Told(Volume):
    """A view that says something before each scan."""

    def render(self, case):
        return (TextPart(text="slice 3:"), *super().render(case))


def test_a_chat_shows_the_scan_of_a_path_as_the_view_does(small, tmp_path):
    small.processor.save_pretrained(tmp_path)
    alone = VolumeProcessor.from_pretrained(tmp_path)
    encoder, bridge, _ = alone.image_processor.parts()
    alone.image_processor.connect(encoder, bridge, Told(), None)
    crop = small.prompts[0].crops()[0]
    image = {"type": "image", "path": crop.volume.path}
    chat = [{"role": "user", "content": [image, {"type": "text", "text": "What?"}]}]
    inputs = alone.apply_chat_template([chat, chat], tokenize=True, return_dict=True, return_tensors="pt")
    for ids in inputs["input_ids"]:
        assert f"user\nslice 3:{SHOWN}What?<|im_end|>" in alone.tokenizer.decode(ids)
    assert inputs["pixel_values"].shape == (2, 3, 8, 16, 16)
    image["path"] = crop.uri()  # a crop is shown as it is
    (ids,) = alone.apply_chat_template(chat, tokenize=True, return_dict=True)["input_ids"]
    assert f"user\n{SHOWN}What?<|im_end|>" in alone.tokenizer.decode(ids)
    image["path"] = str(tmp_path / "none.nii")
    with pytest.raises(DataError, match=r"none\.nii: there is no such file"):
        alone.apply_chat_template(chat, tokenize=True, return_dict=True)


@pytest.mark.parametrize("said", ["{{ message.content + '' }}", "{{ message.content[0].text }}"])
def test_a_chat_is_written_as_strings_or_parts_as_its_template_takes_it(small, language_folder, said):
    tokenizer = AutoTokenizer.from_pretrained(language_folder)
    add_image_tokens(tokenizer)
    tokenizer.chat_template = template(said)
    images = VolumeImageProcessor()
    images.connect(*small.processor.image_processor.parts(), None)
    image = {"type": "image", "url": small.prompts[0].crops()[0].volume.path}
    chat = [{"role": "user", "content": [image, {"type": "text", "text": "Hm?"}]}]
    batch = VolumeProcessor(images, tokenizer).apply_chat_template(chat, tokenize=True, return_dict=True)
    assert tokenizer.decode(batch["input_ids"][0]) == f"<|im_start|>{SHOWN}Hm?<|im_end|>"
