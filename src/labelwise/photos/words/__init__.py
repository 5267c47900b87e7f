"""Words: from photos and a list of words to a model, before anyone has answered a question."""

from typing import TYPE_CHECKING

from labelwise.base.lazy import imported_later

if TYPE_CHECKING:
    from labelwise.photos.words.classes import ClassesAndWords, SentenceEncoder
    from labelwise.photos.words.guide import QuestionGuide, asking_order
    from labelwise.photos.words.scorers import open_scorer
    from labelwise.photos.words.start import FreeText, WordsLearner
    from labelwise.photos.words.text_image import TextHead, TextImageModel
    from labelwise.photos.words.tower_files import TwoTowers
    from labelwise.photos.words.word_list import Word, WordList

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

if not TYPE_CHECKING:  # else a checker would believe in any name
    __getattr__ = imported_later(
        __name__,
        {
            "classes": ("ClassesAndWords", "SentenceEncoder"),
            "guide": ("QuestionGuide", "asking_order"),
            "scorers": ("open_scorer",),
            "start": ("FreeText", "WordsLearner"),
            "text_image": ("TextHead", "TextImageModel"),
            "tower_files": ("TwoTowers",),
            "word_list": ("Word", "WordList"),
        },
    )
