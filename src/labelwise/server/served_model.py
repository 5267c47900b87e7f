"""One model as it was loaded: what it says of pictures, and what that is worth.

It never changes, but for the counts of what it answered. A server that loads the same folder again
has another one, and requests that began with this one end with it.
"""

import hashlib
import json
from collections import deque
from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic_core import to_json

from labelwise.decide import Promise
from labelwise.errors import CheckpointError
from labelwise.metrics.drift import HeldOutShare, LabelShare, estimate_share, held_out_shares
from labelwise.models.loading import load_model, spec_of
from labelwise.models.run_folder import RunFolder
from labelwise.models.scoring import require_probabilities, score_inputs
from labelwise.server.batching import Tagged
from labelwise.server.models import BinView, LabelView, PictureAnswer, Predicted
from labelwise.server.reliability import LabelTrust, label_trust
from labelwise.server.uploads import Pixels

FEWEST = 50  # pictures before a share is estimated
RECENT = 4096  # photos whose probabilities are kept for the shares

Floats = NDArray[np.float64]


class AnswerCounts:
    """What one model has answered since it was loaded."""

    def __init__(self, names: Sequence[str], version: str) -> None:
        self.names, self.version = tuple(names), version
        self.recent: deque[Floats] = deque(maxlen=RECENT)
        self.photos = self.nothing = 0
        self.decided = np.zeros(len(self.names), np.int64)
        self.share_now: dict[str, float] = {}

    def answered(self, probs: Floats, chosen: NDArray[np.bool_]) -> None:
        """Count the answer for one picture."""
        self.photos += 1
        self.recent.append(probs)
        if not chosen.any():
            self.nothing += 1
        self.decided += chosen

    def shares(self, held_out: Sequence[HeldOutShare | None]) -> list[LabelShare]:
        """Return the shares of the labels among recent pictures, once they are not too few."""
        if len(self.recent) < FEWEST:
            return []
        probs = np.stack(list(self.recent))
        shares = [
            estimate_share(name, probs[:, column], known)
            for column, (name, known) in enumerate(zip(self.names, held_out, strict=True))
            if known is not None
        ]
        self.share_now = {share.label: share.now for share in shares}
        return shares


class ServedModel:
    """A model that answers, with what is known of its answers' worth."""

    def __init__(self, name: str, folder: RunFolder, device: str) -> None:
        self.name, self.spec = name, spec_of(folder.path)
        self.predictor = load_model(folder.path, device).fused()
        self.link = require_probabilities(self.predictor)
        self.held_out = folder.held_out()
        self.names = self.spec.space.names
        self.weights = self.spec.weights_sha256[:12]
        self.calibration = _digest(self.spec.link)
        self.version = f"{self.weights}-{self.calibration}"
        self.rule = str(self.spec.made_rule)
        self.counts = AnswerCounts(self.names, self.version)
        self._try_out(folder)

    def _try_out(self, folder: RunFolder) -> None:
        """Raise if there is no answer for a grey picture: better now than to those who ask."""
        asked = self.spec.transform
        kind = np.uint8 if asked.bands is None else np.float32
        grey = np.full((asked.size, asked.size, asked.channels), 127, kind)
        (answer,) = self.forward([grey], ["a grey picture"])
        if answer.fault is not None:
            raise CheckpointError(
                f"{folder.path} has no answer for a grey picture: {answer.fault}; train the model "
                "again, or serve another one"
            )

    # Tagging

    def forward(self, pixels: Sequence[Pixels], names: Sequence[str]) -> list[Tagged]:
        """Return what the model says of pictures, each of pixels (size, size, 3)."""
        inputs = torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2)
        found = score_inputs(self.predictor, inputs)
        answers = zip(found.logits.numpy(), found.probs.numpy(), found.sets.numpy(), strict=True)
        # The pixels were opened, so that a failure is not their fault.
        faults = {one.row: one.reason.partition(": ")[2] for one in found.failures}
        answered = [row for row in range(len(names)) if row not in faults]
        tagged = {row: Tagged(names[row], *one) for row, one in zip(answered, answers, strict=True)}
        tagged |= {row: Tagged(names[row], fault=fault) for row, fault in faults.items()}
        return [tagged[row] for row in range(len(names))]

    def picture_answer(self, tagged: Tagged) -> PictureAnswer:
        """Return an answer as the API gives it."""
        if tagged.probs is None or tagged.chosen is None:
            return PictureAnswer(name=tagged.name, error=tagged.error)
        order = np.argsort(-tagged.probs, kind="stable")
        probs, chosen = tagged.probs[order].clip(0, 1).tolist(), tagged.chosen[order].tolist()
        labels = [
            {
                "label": self.names[k],
                "probability": probability,
                "threshold": self.thresholds[k],
                "decided": decided,
            }
            for k, probability, decided in zip(order.tolist(), probs, chosen, strict=True)
        ]
        given = [one["label"] for one in labels if one["decided"]]
        facts = {"name": tagged.name, "labels": labels, "decided": given, "none": not given}
        return PictureAnswer.model_validate(facts)

    @cached_property
    def answer_head(self) -> bytes:
        """How every answer begins, in JSON: what it says beside its results."""
        head = Predicted(
            model=self.weights,
            calibration=self.calibration,
            caution=self.spec.caution,
            rule=self.rule,
            results=[],
        )
        return to_json(head).removesuffix(b"]}")

    @cached_property
    def thresholds(self) -> list[float | None]:
        """The threshold of each label; None where the rule has none."""
        values = self.spec.made_rule.thresholds(len(self.names))
        return [None] * len(self.names) if values is None else list(values)

    # What its answers are worth

    @cached_property
    def trust(self) -> dict[str, LabelTrust]:
        """The reliability of every label; empty where no held-out photos are kept."""
        if self.held_out is None:
            return {}
        return {one.label: one for one in label_trust(self.held_out.predictions, self.link)}

    def label_view(self, label: str) -> LabelView:
        """Return one label's reliability."""
        threshold = self.thresholds[self.spec.space.column(label)]
        trust = self.trust.get(label)
        if trust is None:
            return LabelView(
                label=label, threshold=threshold, photos=0, carried=0, ece=None, bins=[]
            )
        split = "" if self.held_out is None else str(self.held_out)
        bins = [
            BinView(
                low=one.low,
                high=one.high,
                photos=one.photos,
                carried=one.carried,
                share_low=one.share_low,
                share_high=one.share_high,
                sentence=one.sentence(label, split),
            )
            for one in trust.bins
        ]
        return LabelView(
            label=label,
            threshold=threshold,
            photos=trust.photos,
            carried=trust.carried,
            ece=trust.ece,
            bins=bins,
        )

    def recent_shares(self) -> list[LabelShare]:
        """Return the shares of labels among recent pictures; none without held-out photos."""
        known = self._held_out_shares
        return [] if known is None else self.counts.shares(known)

    @cached_property
    def _held_out_shares(self) -> list[HeldOutShare | None] | None:
        """What held-out photos say of each label's share; None for a label they cannot tell of."""
        if self.held_out is None:
            return None
        photos = self.held_out.predictions
        with torch.no_grad():
            probs = self.link(photos.logits.double()).numpy()
        known = None if photos.observed is None else photos.observed.numpy()
        return held_out_shares(probs, photos.majority.numpy(), known)

    @property
    def promises(self) -> list[Promise]:
        """What was promised when the model was made."""
        return [Promise.from_spec(promise) for promise in self.spec.promises]


def _digest(spec: object) -> str:
    text = json.dumps(spec, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
