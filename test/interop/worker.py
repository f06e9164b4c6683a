"""Callers that show the edges of the contract; the ordinary ones are those of examples/python."""

from __future__ import annotations

import asyncio
import os
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.client import Client
from temporalio.common import RetryPolicy
from temporalio.exceptions import FailureError
from temporalio.worker import Worker
from temporalio.workflow import ParentClosePolicy

with workflow.unsafe.imports_passed_through():
    from firepool import Sandbox, problem_of


@workflow.defn
class Bare:
    """The smallest input that the contract allows, and tokens that live as briefly as the test wants."""

    @workflow.run
    async def run(self, pool: str, token_seconds: float, pause_seconds: float) -> dict[str, Any]:
        lease_id = str(workflow.uuid4())
        lease = await workflow.start_child_workflow(
            "firepool.lease",
            {"pool": pool, "leaseId": lease_id},
            task_queue="firepool-workflows",
            parent_close_policy=ParentClosePolicy.REQUEST_CANCEL,
        )
        grant = await workflow.execute_activity(
            "firepool.awaitLease",
            {"pool": pool, "leaseId": lease_id},
            task_queue="firepool",
            start_to_close_timeout=timedelta(seconds=token_seconds),
            retry_policy=RetryPolicy(initial_interval=timedelta(seconds=pause_seconds), backoff_coefficient=1.0),
        )
        result = await workflow.execute_activity(
            "firepool.run",
            {"grant": grant, "job": {"command": ["echo", "bare"], "cwd": None, "env": None}, "jobId": None},
            task_queue="firepool",
            start_to_close_timeout=timedelta(minutes=2),
            heartbeat_timeout=timedelta(seconds=2.5),
        )
        lease.cancel()
        return {"grant": grant, "result": result, "end": await lease}


@workflow.defn
class Call:
    """Calls one name of the contract with any input; answers with the Problem of its failure."""

    @workflow.run
    async def run(self, kind: str, name: str, given: Any) -> dict[str, Any] | None:
        try:
            if kind == "workflow":
                await workflow.execute_child_workflow(name, given, task_queue="firepool-workflows")
            else:
                await workflow.execute_activity(
                    name,
                    given,
                    task_queue="firepool",
                    start_to_close_timeout=timedelta(minutes=1),
                    heartbeat_timeout=timedelta(seconds=2.5),
                )
        except FailureError as error:
            return problem_of(error)
        return None


@workflow.defn
class Job:
    """One job on a Sandbox of the example; answers with the Problem of its failure."""

    @workflow.run
    async def run(self, pool: str, options: dict[str, Any], job: dict[str, Any]) -> dict[str, Any] | None:
        caller = options.pop("caller", workflow.info().workflow_id)
        async with Sandbox(pool, caller, **options) as sandbox:
            try:
                await sandbox.run(job)
            except FailureError as error:
                return problem_of(error)
        return None


async def main() -> None:
    client = await Client.connect(os.environ["TEMPORAL_ADDRESS"], namespace=os.environ["TEMPORAL_NAMESPACE"])
    async with Worker(client, task_queue="python-edges", workflows=[Bare, Call, Job]):
        print("polling", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
