"""Labels made better: suspects found and repaired, with a promise on how many are false."""

from labelwise.labelling.crossfit import crossfit_heads, crossfit_log_odds, fit_linear_head
from labelwise.labelling.repair import (
    Change,
    Reviewed,
    read_review,
    repair,
    write_changes,
    write_review,
)
from labelwise.labelling.suspects import (
    SuspectPromise,
    Suspects,
    find_suspects,
    marked_checks,
    promise_suspects,
    stretches,
)

__all__ = [
    "Change",
    "Reviewed",
    "SuspectPromise",
    "Suspects",
    "crossfit_heads",
    "crossfit_log_odds",
    "find_suspects",
    "fit_linear_head",
    "marked_checks",
    "promise_suspects",
    "read_review",
    "repair",
    "stretches",
    "write_changes",
    "write_review",
]
