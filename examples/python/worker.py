"""Serves the example's workflows: python worker.py

TEMPORAL_ADDRESS (default localhost:7233) and TEMPORAL_NAMESPACE (default default) say which server.
"""

from __future__ import annotations

import asyncio
import os

from temporalio.client import Client
from temporalio.worker import Worker

from workflows import Agent, Verify

TASK_QUEUE = "python-callers"


async def main() -> None:
    client = await Client.connect(
        os.environ.get("TEMPORAL_ADDRESS", "localhost:7233"),
        namespace=os.environ.get("TEMPORAL_NAMESPACE", "default"),
    )
    async with Worker(client, task_queue=TASK_QUEUE, workflows=[Agent, Verify]):
        print(f"polling {TASK_QUEUE}", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        pass
