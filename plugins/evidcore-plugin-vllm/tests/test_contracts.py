"""A server keeps the contract of a sampler."""

from evidcore_plugin_vllm.engine import Vllm
from evidcore_plugin_vllm.weights import write_whole
from evidcore_testing import check_sampler, sampler_parts
from protocol_server import protocol_server


def test_vllm(tmp_path):
    model, processor, prefixes, sampling = sampler_parts()
    write_whole(model, processor, tmp_path, "embeddings")
    with protocol_server(tmp_path) as server:
        engine = Vllm(url=server.url, model="policy", weights=str(tmp_path), sends_images_away=True)
        check_sampler(engine, model, processor, prefixes, sampling)
