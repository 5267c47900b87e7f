"""Training runs on a Ray cluster: each job where there is room, and again where a node died.

A job is a task of Ray with one core (and a share of a GPU, if it trains on one). A run that was cut
short goes on from its newest checkpoint, so that a worker or a node that dies costs the steps since
then. The folders of runs, data and weights must be the same place for every node.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from labelwise.errors import LabelwiseError
from labelwise.experiments.jobs import REPORT_SECONDS, TrainingJob, progress_of, run_job
from labelwise.shards.engine import ATTEMPTS
from labelwise.shards.ray_cluster import joined, require_ray
from labelwise.system.progress import Watch

__all__ = ["RayRuns"]


@dataclass(frozen=True)
class RayRuns:
    """Runs ``workers`` jobs at a time on a Ray cluster; each takes ``gpus`` GPUs.

    ``run`` is what a worker does with a job.
    """

    workers: int
    gpus: float = 0.0
    run: Callable[[TrainingJob], TrainingJob] = run_job

    def __call__(self, jobs: Sequence[TrainingJob], watch: Watch | None) -> Iterator[TrainingJob]:
        """Run the jobs; ``watch`` is told now and then how far they are."""
        ray = require_ray()
        with joined(self.workers):
            needs = {"num_cpus": 1, "num_gpus": self.gpus, "scheduling_strategy": "SPREAD"}
            remote = ray.remote(**needs, max_retries=ATTEMPTS - 1)(self.run)
            waiting, running = deque(jobs), dict[Any, TrainingJob]()
            try:
                while waiting or running:
                    while waiting and len(running) < self.workers:
                        job = waiting.popleft()
                        running[remote.remote(job)] = job
                    done, _ = ray.wait(list(running), num_returns=1, timeout=REPORT_SECONDS)
                    for one in done:
                        job = running.pop(one)
                        yield _result(ray, one, job)
                    text = "; ".join(filter(None, map(progress_of, running.values())))
                    if watch is not None and text and not done:
                        watch.say(text)
            finally:
                for one in running:
                    ray.cancel(one, force=True)


def _result(ray: Any, reference: Any, job: TrainingJob) -> TrainingJob:
    try:
        finished: TrainingJob = ray.get(reference)
        return finished
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None
    except (ray.exceptions.WorkerCrashedError, ray.exceptions.NodeDiedError):
        raise LabelwiseError(
            f"{ATTEMPTS} workers died over the run in {job.folder}; it may need more memory than a "
            "node has: run the same command again with fewer --jobs"
        ) from None
