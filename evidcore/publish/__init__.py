"""What leaves the machine: model cards, and recipes and locks without what may name a patient or a place."""

from evidcore.publish.card import ModelFacts, PackageFacts, model_card
from evidcore.publish.redaction import WITHHELD, published_lock, published_recipe

__all__ = ["WITHHELD", "ModelFacts", "PackageFacts", "model_card", "published_lock", "published_recipe"]
