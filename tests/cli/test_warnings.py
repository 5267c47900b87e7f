"""A warning reaches a user as one line without a path; a programmer's warning does not."""

import subprocess
import sys

PROGRAM = """
import sys, warnings
import labelwise.cli.app as app
def verb(*_, **__):
    warnings.warn("the slope is capped", stacklevel=1)
    warnings.warn("old name", DeprecationWarning, stacklevel=1)
app.app = verb
app.main()
"""


def test_warnings_are_one_line():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.stderr == "labelwise: the slope is capped\n"
