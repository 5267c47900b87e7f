"""Words: from photos and a list of words to a model, before anyone has answered a question."""

from labelwise.photos.words.classes import ClassesAndWords, SentenceEncoder
from labelwise.photos.words.start import FreeText, QuestionGuide, WordsLearner, asking_order
from labelwise.photos.words.text_image import TextHead, TextImageModel, Word, WordList
from labelwise.photos.words.tower_files import TwoTowers, open_scorer

__all__ = [
    "ClassesAndWords",
    "FreeText",
    "QuestionGuide",
    "SentenceEncoder",
    "TextHead",
    "TextImageModel",
    "TwoTowers",
    "Word",
    "WordList",
    "WordsLearner",
    "asking_order",
    "open_scorer",
]
