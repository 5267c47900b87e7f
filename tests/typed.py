"""Commands as a person types them, run in this process."""

from typer.testing import CliRunner

from labelwise.cli.app import app
from labelwise.errors import LabelwiseError, QuestionError


def run(*words, **options):
    """Return what came of a command; its error is kept as ``exception``."""
    return CliRunner().invoke(app, [str(word) for word in words], **options)


def must_run(*words, **options):
    """Return what came of a command that must succeed."""
    result = run(*words, **options)
    assert result.exit_code == 0, (result.output, result.exception)
    return result


def refused(*words):
    """Return the one sentence, or the question, by which a command is refused."""
    result = run(*words)
    assert isinstance(result.exception, LabelwiseError), result.exception
    assert "\n" not in str(result.exception) or isinstance(result.exception, QuestionError)
    return str(result.exception)
