import nibabel
import numpy as np
import torch
from evidcore_testing import SPECIAL_TOKENS, TinyEncoder, tiny_language, tiny_tokenizer, volume_case
from transformers import AutoModelForCausalLM, AutoTokenizer


def test_the_tiny_language_model_is_a_transformers_folder_that_its_seed_decides(tmp_path):
    item = AutoModelForCausalLM.from_pretrained(tiny_language(tmp_path / "one", seed=1))
    again = AutoModelForCausalLM.from_pretrained(tiny_language(tmp_path / "again", seed=1))
    other = AutoModelForCausalLM.from_pretrained(tiny_language(tmp_path / "other", seed=2))
    weight = item.get_input_embeddings().weight
    assert torch.equal(weight, again.get_input_embeddings().weight)
    assert not torch.equal(weight, other.get_input_embeddings().weight)
    assert AutoTokenizer.from_pretrained(tmp_path / "one").eos_token == "<|im_end|>"


def test_the_tiny_tokenizer_gives_back_any_text_and_keeps_special_tokens_whole():
    tokenizer = tiny_tokenizer()
    text = "Nodule, 7 mm (größer).\n<think>"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert [tokenizer(token)["input_ids"] for token in SPECIAL_TOKENS] == [[n] for n in range(6)]


def test_the_chat_template_shows_images_between_vision_marks():
    chat = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Which?"}]}]
    text = tiny_tokenizer().apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert text == (
        "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>Which?<|im_end|>\n<|im_start|>assistant\n"
    )


def test_the_finding_lies_on_the_side_that_the_report_names(tmp_path):
    for seed in range(4):
        case = volume_case(tmp_path, seed)
        image = nibabel.load(case.volumes[0].path)
        assert nibabel.aff2axcodes(image.affine) == ("L", "P", "S")
        shown = case.present()[0]
        mask = np.load(case.masks[shown].path)[shown]
        assert mask.shape == image.shape[::-1]
        finding = next(item for item in case.findings if item.name == shown)
        world = nibabel.affines.apply_affine(image.affine, np.argwhere(mask)[:, ::-1]).mean(axis=0)
        middle = nibabel.affines.apply_affine(image.affine, (np.array(image.shape) - 1) / 2)
        assert (world[0] < middle[0]) == (finding.side == "left")  # NIfTI's world x grows to the right
        assert finding.side in case.report.text[finding.span.start : finding.span.end]
        assert case.questions[0].options[case.questions[0].answer] == shown


def test_the_tiny_encoder_puts_patches_in_raster_order():
    encoder = TinyEncoder()
    patches = encoder(torch.zeros(2, 1, 12, 16, 16))
    assert patches.features.shape == (2, 12, 32)
    assert patches.grid_zyx == encoder.grid((12, 16, 16)) == (3, 2, 2)
    assert patches.centres_mm[:3].tolist() == [[-4.0, -4.0, -4.0], [-4.0, -4.0, 4.0], [-4.0, 4.0, -4.0]]
