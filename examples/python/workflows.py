"""Two callers: an agent that holds a pod, and a verifier that needs one for a single job."""

from __future__ import annotations

from typing import Any

from temporalio import workflow
from temporalio.exceptions import FailureError

with workflow.unsafe.imports_passed_through():
    from firepool import Sandbox, problem_of, run_job


@workflow.defn
class Agent:
    """Runs commands one after the other on one pod and returns what each one printed."""

    @workflow.run
    async def run(self, pool: str, caller: str, commands: list[str]) -> list[dict[str, Any]]:
        steps = []
        async with Sandbox(pool, caller) as sandbox:
            for command in commands:
                result = await sandbox.run({"command": command, "timeout": "2m"})
                assert sandbox.grant is not None
                steps.append(
                    {
                        "pod": result["pod"],
                        "hit": sandbox.grant["hit"],
                        "exitCode": result["exitCode"],
                        "stdout": result["stdout"],
                    }
                )
        return steps


@workflow.defn
class Verify:
    """The reward of a solution: 1 or 0 when its tests ran, and never a reward when they could not run."""

    @workflow.run
    async def run(self, pool: str, solution: str, tests: str) -> dict[str, Any]:
        job = {
            "command": ["python3", "check.py"],
            "files": [{"path": "check.py", "content": f"{solution}\n\n{tests}\n"}],
            "timeout": "10s",
        }
        try:
            result = await run_job(pool, job, caller="verifier")
        except FailureError as error:
            problem = problem_of(error)
            if problem is None:
                raise
            # Whose fault it was decides: a job that ran out of time failed, a lost pod says nothing about it.
            if problem["origin"] == "job":
                return {"reward": 0, "why": problem["code"]}
            return {"reward": None, "why": problem["code"]}
        return {"reward": 1 if result["exitCode"] == 0 else 0, "why": f"exit code {result['exitCode']}"}
