r"""Jobs: many photos, sent in several requests, answered when the server has time for them.

    begun --> pictures, in as many requests as it takes --> closed --> done
                                                     \--> cancelled: those that wait are given up

A job is one client among the others, whatever it holds, so that those who wait for an answer come
first. Jobs are kept in a folder, and a server that starts there again goes on with them.
"""

import asyncio
import csv
import io
import logging
import secrets
import tempfile
from collections.abc import AsyncIterator, Generator, Sequence
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from labelwise.errors import LabelwiseError, SettingsError
from labelwise.models.answer_rows import Answer, csv_header, csv_row
from labelwise.pictures.decoders import DecoderError
from labelwise.server.batching import Tagged
from labelwise.server.job_folder import JobFacts, JobFolder
from labelwise.server.models import JobView
from labelwise.server.queueing import BusyError, Threads
from labelwise.server.security import RefusedError
from labelwise.server.served_model import ServedModel
from labelwise.server.service import Lane, Service
from labelwise.server.uploads import Upload
from labelwise.system.files import locked

log = logging.getLogger("labelwise.server")

MOST_JOBS = 64
MOST_OF_CLIENT = MOST_JOBS // 2
MOST_PICTURES = 100_000
CLIENT = "jobs"
AGAIN = 5.0  # seconds until pictures that could not be opened now are tried again
ROWS = 256  # of CSV, made at a time


class Jobs:
    """All jobs of a server, behind one thread for their files."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self._kept = service.settings.jobs
        self._held = ExitStack()  # the lock of the folder, or the folder itself
        self._thread = Threads(1, "jobs", waiting=service.settings.connections)
        self._jobs: dict[str, JobFolder] = {}
        self._clients: dict[str, str | None] = {}  # who began which; None: before this start
        self._more = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        if self._kept is not None:
            self._load(self._kept)

    def _load(self, folder: Path) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            busy = f"another server keeps its jobs in {folder}; choose another folder"
            self._held.enter_context(locked(folder, busy))
            found = [one for one in sorted(folder.iterdir()) if (one / "job.json").is_file()]
        except OSError as error:
            raise SettingsError(
                f"jobs cannot be kept in {folder}: {error.strerror}; choose another folder"
            ) from None
        self.folder = folder
        for place in found:
            job = JobFolder.load(place)
            self._jobs[job.facts.id] = job
            self._clients[job.facts.id] = None

    def start(self) -> None:
        """Begin to answer."""
        if self._kept is None:
            temporary = tempfile.TemporaryDirectory(prefix="labelwise-jobs-")
            self.folder = Path(self._held.enter_context(temporary))
        self._running = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Stop; what is not answered waits for the next start, where jobs are kept."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])
        self._thread.close(wait=True)
        self._held.close()

    # What can be asked

    def views(self) -> list[JobView]:
        """Return all jobs, the latest first."""
        jobs = sorted(self._jobs.values(), key=lambda job: job.facts.made, reverse=True)
        return [self._view(job) for job in jobs]

    def view(self, job: str) -> JobView:
        """Return how far a job is."""
        return self._view(self._job(job))

    async def begin(self, lane: Lane, client: str) -> JobView:
        """Begin a job for a model."""
        self._require_place(client)
        name, labels = secrets.token_hex(16), tuple(lane.model.names)
        made = datetime.now(UTC).isoformat(timespec="milliseconds")
        facts = JobFacts(id=name, model=lane.model.name, labels=labels, made=made)
        self._clients[name] = client  # at once: others may begin before the folder is there
        try:
            job = await self._thread.run(lambda: JobFolder.create(self.folder / name, facts))
        except BaseException:
            del self._clients[name]
            raise
        self._jobs[name] = job
        return self._view(job)

    def _require_place(self, client: str) -> None:
        """Raise if the server, or this client, has as many jobs as there may be."""
        way_out = "delete one whose results you have"
        if len(self._clients) >= MOST_JOBS:
            raise RefusedError(429, f"the server keeps {MOST_JOBS} jobs; {way_out}")
        if list(self._clients.values()).count(client) >= MOST_OF_CLIENT:
            raise RefusedError(
                429, f"the server keeps {MOST_OF_CLIENT} jobs of one address; {way_out}"
            )

    async def add(self, name: str, uploads: Sequence[Upload]) -> JobView:
        """Take pictures of a job; they are answered later."""

        def add() -> None:
            job = self._open_job(name)
            self._require_room(job, uploads)
            job.add(uploads)

        await self._thread.run(add)
        self._more.set()
        return self.view(name)

    def _require_room(self, job: JobFolder, uploads: Sequence[Upload]) -> None:
        if job.received + len(uploads) > MOST_PICTURES:
            raise RefusedError(
                422, f"a job may hold {MOST_PICTURES:,} pictures; begin another one for the rest"
            )
        size = sum(upload.size for upload in uploads)
        kept = sum(one.size for one in list(self._jobs.values()))
        if size + kept > self.service.settings.jobs_disk:
            raise RefusedError(
                429,
                "the jobs of this server have as many bytes as it keeps; wait until pictures are "
                "answered, or delete a job",
                {"retry-after": "30"},
            )

    async def set_state(self, name: str, state: Literal["closed", "cancelled"]) -> JobView:
        """Take no more pictures, or give up those that wait."""
        job = self._job(name)
        if self._state(job) in ("open", "working"):
            await self._thread.run(lambda: job.set_state(state))
        return self._view(job)

    async def delete(self, name: str) -> None:
        """Give a job up, and remove its results."""
        job = self._job(name)
        del self._jobs[name], self._clients[name]
        await self._thread.run(job.remove)

    async def results(self, name: str, form: Literal["jsonl", "csv"]) -> AsyncIterator[bytes]:
        """Return the answers so far, piece by piece."""
        job = self._job(name)
        pieces = job.result_chunks() if form == "jsonl" else _csv(job)

        async def read() -> AsyncIterator[bytes]:
            try:
                while (piece := await self._thread.run(lambda: next(pieces, None))) is not None:
                    yield piece
            finally:
                await self._thread.run(pieces.close)  # its file, if the client has gone

        return read()

    def _job(self, name: str) -> JobFolder:
        if name not in self._jobs:
            raise RefusedError(404, "there is no such job; /api/v1/jobs lists those there are")
        return self._jobs[name]

    def _open_job(self, name: str) -> JobFolder:
        job = self._job(name)
        if job.facts.state != "open":
            raise RefusedError(409, f"this job is {job.facts.state} and takes no more pictures")
        return job

    def _view(self, job: JobFolder) -> JobView:
        served = self.service.lanes.get(job.facts.model)
        return JobView(
            id=job.facts.id,
            model=job.facts.model,
            made=job.facts.made,
            state=self._state(job),
            received=job.received,
            answered=job.answered,
            failed=job.failed,
            kept=self._kept is not None,
            held_up=self._why_not(job, None if served is None else served.model),
        )

    def _state(self, job: JobFolder) -> Literal["open", "working", "done", "cancelled"]:
        if job.facts.state == "closed":
            return "working" if job.waiting else "done"
        return job.facts.state

    def _why_not(self, job: JobFolder, model: ServedModel | None) -> str | None:
        """Return why a job cannot go on now."""
        if not job.waiting:
            return None
        if model is None:
            return f"no model {job.facts.model!r} is served now; start the server with it"
        if model.names != job.facts.labels:
            return "the model has other labels now than when the job began; begin another job"
        return None

    # The work

    async def _run(self) -> None:
        """Answer some pictures of each job in turn, for as long as the server runs."""
        while True:
            self._more.clear()
            todo = [job for job in self._jobs.values() if job.waiting]
            worked = [await self._work(job) for job in todo]
            if not any(worked):
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._more.wait(), AGAIN if todo else None)

    async def _work(self, job: JobFolder) -> bool:
        """Answer some pictures of a job; return whether anything came of it."""
        lane = self.service.lanes.get(job.facts.model)
        if lane is None or self._why_not(job, lane.model) is not None:
            return False
        settings = self.service.settings
        most = min(settings.max_files, settings.max_batch)

        def next_pictures() -> list[Upload]:
            return job.next_pictures(most) if self._is_wanted(job) else []

        def keep() -> None:
            if self._is_wanted(job):
                job.answer(answers, lane.model.version)

        try:
            uploads = await self._thread.run(next_pictures)
            tagged = await self._tagged(lane, uploads)
            model = lane.model
            answers = [_as_answer(at, one, model) for at, one in enumerate(tagged, job.answered)]
            await self._thread.run(keep)
        except LabelwiseError as error:  # a full disk, a thread with too much to do
            log.warning("job %s: %s", job.facts.id, error)
            return False
        return bool(uploads)

    def _is_wanted(self, job: JobFolder) -> bool:
        return job.facts.id in self._jobs and job.facts.state != "cancelled"

    async def _tagged(self, lane: Lane, uploads: Sequence[Upload]) -> Sequence[Tagged]:
        """Return the answers, after others have theirs if the queue is full."""
        while True:
            try:
                return await self.service.tag(lane, uploads, self.service.queue.reserve(CLIENT))
            except BusyError as busy:
                await asyncio.sleep(busy.seconds)
            except DecoderError:
                await asyncio.sleep(AGAIN)
            except RefusedError as refused:  # the model's own fault
                return [Tagged(upload.name, error=refused.detail) for upload in uploads]


def _as_answer(row: int, tagged: Tagged, model: ServedModel) -> Answer:
    if tagged.probs is None or tagged.chosen is None:
        return Answer(row, tagged.name, error=tagged.error or "the picture cannot be read")
    probs = tagged.probs.clip(0, 1).tolist()
    order = sorted(tagged.chosen.nonzero()[0].tolist(), key=lambda k: -probs[k])
    labels = tuple(model.names[k] for k in order)
    return Answer(row, tagged.name, labels, tuple(probs), caution=model.spec.caution)


def _csv(job: JobFolder) -> Generator[bytes, None, None]:
    cautioned = job.cautioned  # of the header, and so of all rows
    rows = [csv_header(job.facts.labels, cautioned=cautioned)]
    for answer in job.results():
        rows.append(csv_row(answer, job.facts.labels, cautioned=cautioned))
        if len(rows) == ROWS:
            yield _lines(rows)
            rows = []
    yield _lines(rows)


def _lines(rows: Sequence[Sequence[str]]) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text).writerows(rows)
    return text.getvalue().encode()
