"""Metric `meteor`: words matched exactly, by stem and, with WordNet at hand, by synonym."""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from evidcore.api import Metric, Unscored
from evidcore.contracts import Measured, TextSample
from evidcore.errors import RecipeError
from evidcore_plugin_reports.sentences import measured, words

WITHOUT = "exact words and stems only: no WordNet was named, so no synonyms"


class Meteor(Metric):
    """METEOR of each report by NLTK; the mean over reports.

    With m matched words in c stretches that are in one order in both texts, precision P and recall R:
    F = P R / (0.9 P + 0.1 R), METEOR = F (1 - 0.5 (c / m)³). Synonyms need WordNet, which NLTK does not
    ship and this metric never downloads: name where it lies. Without, the figure is called
    `meteor_without_synonyms`. NLTK looks synonyms up by a word's stem, so "focus" (stem "focu") has none.
    METEOR 1.5, which most captioning papers print, has paraphrase tables and other weights and runs in
    Java; its numbers are others.

    Args:
        nltk_data: folder that holds `corpora/wordnet` or `corpora/wordnet.zip`, from the recipe's folder;
            empty: match without synonyms.

    Source:
        Lavie & Agarwal 2007, METEOR, WMT.
    """

    def __init__(self, recipe_folder: Path, *, nltk_data: str = "") -> None:
        self.folder = (recipe_folder / nltk_data).resolve() if nltk_data else None

    @property
    def figure(self) -> str:
        return "meteor" if self.folder else "meteor_without_synonyms"

    def ready(self) -> None:
        if self.folder is not None and _wordnet(self.folder) is None:
            raise RecipeError(
                f"metric meteor, nltk_data: {self.folder} holds no WordNet (corpora/wordnet or "
                f"corpora/wordnet.zip). Type: python -m nltk.downloader -d {self.folder} wordnet; or leave "
                "nltk_data out."
            )

    def __call__(self, texts: Sequence[TextSample]) -> Sequence[Measured | Unscored]:
        """Return the score of each report; 0 for one without a word."""
        self.ready()
        from nltk.translate.meteor_score import single_meteor_score

        synonyms = SimpleNamespace(synsets=lambda _: ()) if self.folder is None else _reader(self.folder)

        def figures(text: str, reference: str) -> dict[str, float]:
            return {self.figure: float(single_meteor_score(words(reference), words(text), wordnet=synonyms))}

        return measured(texts, figures)

    def notes(self) -> Mapping[str, str]:
        return {} if self.folder else {self.figure: WITHOUT}


def _wordnet(folder: Path) -> str | None:
    """Return what NLTK calls the WordNet that lies in a folder, None if there is none."""
    if (folder / "corpora" / "wordnet" / "index.noun").is_file():
        return "corpora/wordnet"
    return "corpora/wordnet.zip/wordnet/" if (folder / "corpora" / "wordnet.zip").is_file() else None


def _reader(folder: Path) -> Any:
    import nltk.data
    from nltk.corpus.reader.wordnet import WordNetCorpusReader

    if str(folder) not in nltk.data.path:
        nltk.data.path.insert(0, str(folder))  # NLTK reads nothing outside of these folders
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The multilingual functions are not available")
        return WordNetCorpusReader(nltk.data.find(str(_wordnet(folder)), paths=[str(folder)]), None)
