from evidcore.api import Reward, Score


class Letters(Reward):
    """The share of letters in an answer: sampled answers differ in it."""

    def __call__(self, rollouts, earlier):
        return [Score(value=sum(map(str.isalpha, item.text)) / max(len(item.text), 1)) for item in rollouts]
