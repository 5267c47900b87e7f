"""Schedules: the learning rate of a step as a multiple of its base, a pure function.

    constant   1
    cosine     (1 + cos(pi s)) / 2
    step       gamma to the number of milestones at or before s
    one-cycle  from 1/25 up to 1 over the first ``rise`` of the run, then down to 1/10,000 of
               the start, both along half a cosine (Smith and Topin; torch's OneCycleLR)

with s the share of the run that is done. ``warmup`` multiplies the first steps by (t + 1) / W.
Nothing is remembered between steps, so a resumed run needs only its step number.
"""

from math import cos, pi

from labelwise.training.recipe import ScheduleKnobs

__all__ = ["rate"]

START = 1 / 25
END = START / 1e4


def rate(knobs: ScheduleKnobs, step: int, steps: int, steps_per_epoch: int) -> float:
    """Return the multiplier of step ``step`` (from 0) of a run of ``steps``."""
    warmup = round(knobs.warmup * steps_per_epoch)
    grow = min(1.0, (step + 1) / warmup) if warmup else 1.0
    return grow * _shape(knobs, step, steps)


def _shape(knobs: ScheduleKnobs, step: int, steps: int) -> float:
    done = step / steps
    if knobs.name == "cosine":
        return (1 + cos(pi * done)) / 2
    if knobs.name == "step":
        return float(knobs.gamma ** sum(done >= share for share in knobs.milestones))
    if knobs.name == "one-cycle":
        top = knobs.rise * steps - 1
        if step <= top and top > 0:
            return _half_cosine(START, 1.0, step / top)
        return _half_cosine(1.0, END, (step - top) / max(steps - 1 - top, 1))
    return 1.0


def _half_cosine(start: float, end: float, share: float) -> float:
    return end + (start - end) * (1 + cos(pi * share)) / 2
