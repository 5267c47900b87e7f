"""What speaks for and against trusting a model today, as the API says it."""

from labelwise.metrics.drift import LabelShare
from labelwise.server.library import Library
from labelwise.server.models import AlarmView, PromiseView, ShareView, TrustView
from labelwise.server.monitoring import Monitor
from labelwise.server.queueing import Threads
from labelwise.server.served_model import ServedModel

CHECKABLE = ("recall", "precision", "f", "tags")


async def promise_views(model: ServedModel, library: Library | None) -> list[PromiseView]:
    """Return every promise, and what photos reviewed since then say of it."""
    promises = model.promises
    checkable = [one for one in promises if one.what in CHECKABLE]
    checks = {}
    if library is not None and checkable:
        found = await library.run(lambda: library.check(checkable))
        checks = dict(zip(map(id, checkable), found, strict=True))
    views = []
    for promise in promises:
        check = checks.get(id(promise))
        views.append(
            PromiseView(
                text=str(promise),
                what=promise.what,
                level=promise.level,
                confidence=promise.confidence,
                photos=promise.n,
                made=promise.made,
                verdict="cannot tell" if check is None else check.verdict,
                checked="no photo has had all its labels reviewed yet"
                if check is None or not check.counted
                else str(check),
            )
        )
    return views


async def trust_view(
    model: ServedModel, library: Library | None, monitor: Monitor, slowly: Threads
) -> TrustView:
    """Return what speaks for and against trusting the model today."""
    alarms = await library.run(library.alarms) if library is not None else []
    monitor.note_alarms(alarms)
    recent = await slowly.run(model.recent_shares)  # seconds of many labels
    shares = [_share(one, "recent pictures") for one in recent]
    notes = _notes(model, library)
    if library is not None:
        likeness = await library.run(library.likeness)
        shares += [_share(one, "library") for one in likeness.likeness.shares]
        notes.append(likeness.sentence())
    return TrustView(
        alarms=[
            AlarmView(
                label=one.label,
                audited=one.audited,
                present=one.present,
                expected=one.expected,
                evidence=one.evidence,
                threshold=one.threshold,
                raised=one.raised,
            )
            for one in alarms
        ],
        shares=shares,
        promises=await promise_views(model, library),
        notes=notes,
    )


def _notes(model: ServedModel, library: Library | None) -> list[str]:
    notes = []
    if model.held_out is None:
        notes.append(
            "The folder of this model holds no predictions of held-out photos, so nothing can "
            "be said of its reliability. Serve a whole run, not only its model."
        )
    elif not model.held_out.may_promise:
        notes.append(
            f"Reliability is shown on photos of the split {model.held_out}, which the "
            "calibration was fitted on; on others it is somewhat worse."
        )
    if library is not None:
        notes.append(
            "Alarms rest on photos audited in a random order. What people correct on their own "
            "is what they happened to see, and says nothing of the whole."
        )
    return notes


def _share(share: LabelShare, source: str) -> ShareView:
    return ShareView.model_validate(
        {
            "label": share.label,
            "source": source,
            "before": share.before,
            "now": share.now,
            "low": share.low,
            "high": share.high,
            "photos": share.photos,
            "moved": share.moved,
        }
    )
