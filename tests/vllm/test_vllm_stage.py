"""vLLM as a stage of a graph: in a child process, and in a Ray actor."""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path

import pytest

from engine.graph import graph
from engine.run import start
from engine.scope import Scope
from engine.stream import Stream
from engine.trace import Trace
from graphs.generators import generator_steps
from operators.messages import Delta, Finish, Prompt, Text
from tests.language_model_suite import a_prompt
from tests.until import until

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


@pytest.fixture(params=["local", "ray"])
def engine(request):
    if request.param == "local":
        yield "local"
        return
    import ray

    os.environ.update(RAY_AUTH_MODE="disabled", RAY_USAGE_STATS_ENABLED="0")
    os.environ["PYTHONPATH"] = str(Path(__file__).parents[2])
    with tempfile.TemporaryDirectory(prefix="hr", dir="/tmp", ignore_cleanup_errors=True) as folder:
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False, _temp_dir=folder)
        yield "ray"
        ray.shutdown()


async def test_a_graph_streams_from_vllm_and_a_cancel_frees_the_request(config, engine):
    generate, _ = generator_steps(config)

    @graph
    def reply(prompt: Prompt) -> Stream[Delta]:
        return generate(prompt)

    async with start(reply, engine) as ask:
        trace = Trace()
        deltas = [d async for d in await ask.within(Scope(trace=trace))(a_prompt(max_tokens=8))]
        assert all(isinstance(d, Text) for d in deltas[:-1])
        assert isinstance(deltas[-1], Finish)
        assert deltas[-1].usage.completion_tokens <= 8
        assert trace.spans[0].served_s > 0

        stream = await ask(a_prompt(max_tokens=400))
        assert isinstance(await anext(stream), Text)
        await stream.aclose()

        async def freed() -> bool:
            streams = (await ask.statistics())["generator"][0].streams
            return streams.open == 0

        await until(freed, within_s=10)
        assert (ask.active, ask.outstanding) == (0, 0)
        again = [d async for d in await asyncio.wait_for(ask(a_prompt(max_tokens=2)), 60)]
        assert isinstance(again[-1], Finish)
