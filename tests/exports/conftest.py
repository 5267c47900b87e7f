"""The command line, in this process."""

import pytest
from typer.testing import CliRunner

from labelwise.cli.app import app


@pytest.fixture
def run_verb():
    """Return a function that runs a verb that must succeed and returns what it printed."""

    def run(*arguments):
        done = CliRunner().invoke(app, [str(one) for one in arguments], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.output

    return run
