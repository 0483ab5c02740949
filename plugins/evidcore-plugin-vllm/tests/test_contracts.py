"""A server keeps the contract of a sampler."""

from evidcore_plugin_vllm.engine import Vllm
from evidcore_plugin_vllm.testing import protocol_server
from evidcore_plugin_vllm.weights import write_whole
from evidcore_testing import check_sampler

from evidcore.contracts import Prefix
from evidcore.model.policy import sampling_of


def test_vllm(volume_model, tmp_path):
    model, processor, *_ = volume_model
    prefixes = [Prefix(tuple(processor.tokenizer(text)["input_ids"])) for text in ("What is it?", "Which?")]
    write_whole(model, processor, tmp_path / "served", "embeddings")
    with protocol_server(tmp_path / "served") as server:
        engine = Vllm(
            url=server.url, model="policy", weights=str(tmp_path / "served"), sends_images_away=True
        )
        sampling = sampling_of(model, processor, max_new_tokens=6, temperature=1.0)
        check_sampler(engine, model, processor, prefixes, sampling)
