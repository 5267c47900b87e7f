"""What people said about photos: one log, suspect labels and their repair, what to ask next."""

from typing import TYPE_CHECKING

from labelwise.system.later import imported_later

if TYPE_CHECKING:
    from labelwise.answers.asking import (
        CRITERIA,
        Criterion,
        Pool,
        asked_in_turn,
        changes_set,
        choose_labels,
        choose_photos,
        draw_photos,
        worth_of_labels,
    )
    from labelwise.answers.crossfit import (
        TrueLogOdds,
        crossfit_heads,
        crossfit_log_odds,
        crossfit_true_log_odds,
        deal_folds,
        fit_linear_head,
    )
    from labelwise.answers.repair import (
        Change,
        Reviewed,
        read_review,
        repair,
        write_changes,
        write_review,
    )
    from labelwise.answers.suspects import (
        SuspectPromise,
        Suspects,
        find_suspects,
        marked_checks,
        promise_suspects,
        stretches,
    )

__all__ = [
    "CRITERIA",
    "Change",
    "Criterion",
    "Pool",
    "Reviewed",
    "SuspectPromise",
    "Suspects",
    "TrueLogOdds",
    "asked_in_turn",
    "changes_set",
    "choose_labels",
    "choose_photos",
    "crossfit_heads",
    "crossfit_log_odds",
    "crossfit_true_log_odds",
    "deal_folds",
    "draw_photos",
    "find_suspects",
    "fit_linear_head",
    "marked_checks",
    "promise_suspects",
    "read_review",
    "repair",
    "stretches",
    "worth_of_labels",
    "write_changes",
    "write_review",
]

if not TYPE_CHECKING:  # else a checker would believe in any name
    __getattr__ = imported_later(
        __name__,
        {
            "asking": (
                "CRITERIA",
                "Criterion",
                "Pool",
                "asked_in_turn",
                "changes_set",
                "choose_labels",
                "choose_photos",
                "draw_photos",
                "worth_of_labels",
            ),
            "crossfit": (
                "TrueLogOdds",
                "crossfit_heads",
                "crossfit_log_odds",
                "crossfit_true_log_odds",
                "deal_folds",
                "fit_linear_head",
            ),
            "repair": (
                "Change",
                "Reviewed",
                "read_review",
                "repair",
                "write_changes",
                "write_review",
            ),
            "suspects": (
                "SuspectPromise",
                "Suspects",
                "find_suspects",
                "marked_checks",
                "promise_suspects",
                "stretches",
            ),
        },
    )
