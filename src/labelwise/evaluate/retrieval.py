"""The retrieval part: mean average precision of queries against their length.

Every query costs a pass over the images, so each length has a budget of image-query pairs; where
there are more queries than it allows, a seeded sample is asked, with its standard error.
"""

from labelwise.evaluate.evaluation import RetrievalPoint
from labelwise.evaluate.probabilities import Known, Probabilities, defined
from labelwise.retrieval import retrieval_map

__all__ = ["retrieval_part"]

BUDGET = 20_000_000  # images times queries, per length
FEWEST, MOST = 200, 20_000


def retrieval_part(
    answers: Probabilities, known: Known, longest: int, seed: int
) -> tuple[tuple[RetrievalPoint, ...], str]:
    """Return one point a query length, and how they were computed."""
    allowed = min(max(BUDGET // len(known.present), FEWEST), MOST)
    results = retrieval_map(
        answers.log_p,
        answers.log_q,
        known.present,
        known.observed,
        longest=longest,
        exhaustive=allowed,
        sample=allowed,
        seed=seed,
    )
    points = tuple(
        RetrievalPoint(
            length=result.length,
            map=defined(result.value),
            error=defined(result.error) if not result.exhaustive else None,
            queries=result.queries,
            skipped=result.skipped,
            sampled=not result.exhaustive,
        )
        for result in results
    )
    how = (
        "A query wants some labels and not others; its images are ranked by the joint probability, "
        "labels taken as independent given the image. Average precision with equal scores as one "
        "threshold; mean over the queries that some image answers. "
        f"Up to {allowed:,} queries a length: all, or a seeded sample with its standard error."
    )
    return points, how
