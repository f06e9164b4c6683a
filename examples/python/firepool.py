"""Firepool for workflows written in Python: the published contract as two small classes.

Copy this file into your project. It needs only `temporalio`; the names and the JSON shapes are those of
docs/contract.md. Use it inside of workflows:

    async with Sandbox("h200", caller="agent-7") as sandbox:
        result = await sandbox.run({"command": "nvidia-smi", "timeout": "1m"})
"""

from __future__ import annotations

import asyncio
import re
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ApplicationError, FailureError
from temporalio.workflow import ActivityCancellationType, ParentClosePolicy

WORKFLOWS, JOBS = "firepool-workflows", "firepool"

# A token lives as long as its attempt; the next attempt offers a new one, without a growing pause in between.
TOKEN_LIFETIME = timedelta(minutes=1)
TOKEN_RETRY = RetryPolicy(initial_interval=timedelta(milliseconds=200), backoff_coefficient=1.0)

# Retries of a run attach to the running or finished job; they never start it twice.
RUN_RETRY = RetryPolicy(
    initial_interval=timedelta(milliseconds=100), backoff_coefficient=1.5, maximum_interval=timedelta(seconds=2)
)
RUN_HEARTBEAT = timedelta(seconds=2.5)
RUN_MARGIN = timedelta(minutes=2)

ACQUIRES_PER_JOB = 20
UNIT = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}


def problem_of(error: BaseException | None) -> dict[str, Any] | None:
    """The Problem {code, origin, message, details} in a failure of Firepool, or None when it is somebody else's."""
    while error is not None:
        if isinstance(error, ApplicationError) and error.details:
            detail = error.details[0]
            if isinstance(detail, dict) and detail.get("code") == error.type:
                return detail
        error = error.__cause__
    return None


class Sandbox:
    """A pod of one caller: acquired by the first job, held until release or until the workflow ends, however it ends.

    Options: reuseTag, slot, tenant, priority, acquireTimeout. Jobs run one after the other: await each.
    """

    def __init__(self, pool: str, caller: str, **options: Any) -> None:
        self.pool = pool
        self.caller = caller
        self.options = options
        self.grant: dict[str, Any] | None = None
        self._id = workflow.uuid4()
        self._jobs = 0
        self._lease: workflow.ChildWorkflowHandle[Any, Any] | None = None

    async def __aenter__(self) -> Sandbox:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.release()

    async def run(self, job: dict[str, Any]) -> dict[str, Any]:
        """Runs one job and returns its result; a non-zero exit code is a result.

        Raises a failure whose problem_of() says what went wrong and whose fault it was.
        """
        self._jobs += 1
        job_id = f"{self._id}/{self._jobs}"
        for acquires in range(1, ACQUIRES_PER_JOB + 1):
            try:
                grant = await self._held()
                return await self._run(grant, job_id, job)
            except FailureError as error:
                code = (problem_of(error) or {}).get("code")
                if code in ("LeaseRevoked", "PodLost"):
                    await self.release()
                # LeaseRevoked promises that the job never started there: take another pod and send it again.
                if code != "LeaseRevoked" or acquires == ACQUIRES_PER_JOB:
                    raise
        raise AssertionError("unreachable")

    async def release(self) -> None:
        """Gives the pod back; it stays warm for this caller during the pool's keep-alive."""
        lease, self._lease, self.grant = self._lease, None, None
        if lease is None:
            return
        lease.cancel()
        await lease

    async def _held(self) -> dict[str, Any]:
        # The lease workflow returns when the pool took the pod back in a pause.
        if self.grant is not None and self._lease is not None and not self._lease.done():
            return self.grant
        await self._acquire()
        assert self.grant is not None
        return self.grant

    async def _acquire(self) -> None:
        lease_id = str(workflow.uuid4())
        who = {"pool": self.pool, "caller": self.caller, **self.options}
        lease = await workflow.start_child_workflow(
            "firepool.lease",
            {"v": 1, "leaseId": lease_id, **who},
            id=f"lease/{self.pool}/{re.sub(r'[^A-Za-z0-9._-]+', '-', self.caller)[:40]}/{lease_id}",
            task_queue=WORKFLOWS,
            # However this workflow ends, its lease is cancelled, and a cancel is the release.
            parent_close_policy=ParentClosePolicy.REQUEST_CANCEL,
            static_summary=f"pod of pool {self.pool}",
        )
        self._lease = lease
        try:
            self.grant = await workflow.execute_activity(
                "firepool.awaitLease",
                # A pool that says nothing at all, long after the time for it, is given up by the next attempt.
                {"v": 1, "pool": self.pool, "leaseId": lease_id, "acquireTimeout": self.options.get("acquireTimeout")},
                task_queue=JOBS,
                start_to_close_timeout=TOKEN_LIFETIME,
                retry_policy=TOKEN_RETRY,
                summary=f"wait for a pod of pool {self.pool}",
            )
        except BaseException as error:
            self._lease = None
            lease.cancel()
            end = await asyncio.shield(lease)
            # The notice of the lease workflow has the reason when the refusal came between two attempts.
            if end["end"] == "failed" and isinstance(error, FailureError):
                raise _failure(end["problem"]) from error
            raise

    async def _run(self, grant: dict[str, Any], job_id: str, job: dict[str, Any]) -> dict[str, Any]:
        return await workflow.execute_activity(
            "firepool.run",
            {"v": 1, "grant": grant, "jobId": job_id, "job": job},
            task_queue=JOBS,
            start_to_close_timeout=_seconds(job.get("timeout", "10m")) + RUN_MARGIN,
            heartbeat_timeout=RUN_HEARTBEAT,
            retry_policy=RUN_RETRY,
            # A cancelled run returns when its job is really gone.
            cancellation_type=ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
            summary=str(job.get("command"))[:80],
        )


async def run_job(pool: str, job: dict[str, Any], **options: Any) -> dict[str, Any]:
    """One job in one call, on a pod of its own lease. Options: caller, onPodLost and those of Sandbox."""
    return await workflow.execute_child_workflow(
        "firepool.runJob",
        {"v": 1, "pool": pool, "job": job, **options},
        task_queue=WORKFLOWS,
        parent_close_policy=ParentClosePolicy.REQUEST_CANCEL,
    )


def _failure(problem: dict[str, Any]) -> ApplicationError:
    return ApplicationError(problem["message"], problem, type=problem["code"], non_retryable=True)


def _seconds(duration: float | str) -> timedelta:
    """A duration of the contract: milliseconds, or a text such as '90s'. What is wrong with it, the pod says."""
    if isinstance(duration, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)\s*", duration)
        return timedelta(seconds=float(match[1]) * UNIT[match[2]]) if match else timedelta(minutes=10)
    return timedelta(milliseconds=max(0, duration))
