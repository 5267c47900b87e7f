"""How many photos of an index carry a label, where its share may differ from the held-out ones'.

The share t and its interval come from :mod:`labelwise.metrics.drift`; of N photos about N t carry
the label. The interval is of the share among all photos that could be drawn, so it is a little
wide for the photos that were: these vary around t themselves, and the model sees them.
"""

from dataclasses import dataclass

import numpy as np

from labelwise.errors import DataError
from labelwise.metrics.drift import estimate_share, held_out_share
from labelwise.photos.index import Index
from labelwise.retrieval import Query
from labelwise.retrieval.expression import literal_of


@dataclass(frozen=True)
class AdaptedCount:
    """How many of ``photos`` match, with a 95 % interval; ``before`` is the held-out share."""

    photos: int
    count: float
    low: float
    high: float
    before: float


def adapted_count(index: Index, query: Query) -> AdaptedCount:
    """Return how many photos match a query for one label, wanted or unwanted."""
    bound = index.bound(query)
    literal = literal_of(bound.expression)
    if literal is None or bound.limits:
        raise DataError(
            f"shares are adapted for one label at a time, and {query} asks for more; answer some "
            "photos instead, with --answers 150"
        )
    held_out = index.held_out_photos
    if held_out is None:
        raise DataError(
            f"shares need photos whose labels are known, and the model of {index.folder} has none; "
            "answer some photos instead, with --answers 150"
        )
    column, wanted = int(literal[0]), bool(literal[1])
    name, alive = index.space.names[column], index.store.alive_rows()
    log_p, _ = index.known_log_probs(held_out, [column], refit=False)
    seen = slice(None) if held_out.observed is None else held_out.observed[:, column]
    truth = held_out.majority[:, column]
    known = held_out_share(np.exp(log_p[seen, 0]), truth[seen])
    if known is None:
        raise DataError(
            f"of the {index.facts.known} photos all or none carry {name}, so how it looks is not "
            "known; answer some photos instead, with --answers 150"
        )
    probs = np.exp(index.odds(column, corrected=False).log_p.values[alive].astype(np.float64))
    found = estimate_share(name, probs, known)
    shares = (found.now, found.low, found.high, found.before)
    if not wanted:
        shares = (1 - found.now, 1 - found.high, 1 - found.low, 1 - found.before)
    now, low, high, before = shares
    return AdaptedCount(len(alive), len(alive) * now, len(alive) * low, len(alive) * high, before)
