"""Words: from photos and a list of words to a model, before anyone has answered a question."""

from labelwise.words.answer_log import AnswerLog, AnswerState, asking_order
from labelwise.words.classes import ClassesAndWords
from labelwise.words.encoder import SentenceEncoder
from labelwise.words.free_text import FreeText
from labelwise.words.guide import QuestionGuide
from labelwise.words.learner import WordsLearner
from labelwise.words.text_image import TextHead, TextImageModel
from labelwise.words.towers import TwoTowers, open_scorer
from labelwise.words.word_list import Word, WordList

__all__ = [
    "AnswerLog",
    "AnswerState",
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
