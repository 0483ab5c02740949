"""The volume vision-language model, its processor, feature bank and language model.

Importing this tells transformers of the architecture: `AutoModelForImageTextToText` and `AutoProcessor` then
load what `save_pretrained` wrote. Belongs here: what computes tokens, logits and answers; nothing that
trains. Imported by prompts, proof, train, evaluate and runs.
"""

from evidcore.model.processor import VolumeProcessor as VolumeProcessor
from evidcore.model.vlm import VolumeVLM as VolumeVLM
