from __future__ import annotations

import asyncio

import msgspec
import pytest
import pytest_asyncio

from engine.errors import InvalidInput
from operators.messages import ChatMessage
from operators.models.language import ModelFailed
from operators.models.vllm_engine import VllmConfig, VllmEngine, vllm_environment
from tests.language_model_suite import LanguageModelSuite, a_prompt, idle, leave_after_deltas, reply_of

# vLLM and what it imports call deprecated parts of torch, transformers and each other: not ours to mend.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def model(config):
    opened = await asyncio.to_thread(VllmEngine.open, config)  # as an engine opens a stage: in a thread
    yield opened
    await opened.aclose()


class TestVllmEngine(LanguageModelSuite):
    async def test_it_knows_its_name_and_window(self, model):
        statistics = model.statistics()
        assert (statistics.model, statistics.context_tokens) == ("smollm2-135m", 512)

    async def test_after_a_cancel_vllm_itself_holds_nothing(self, model):
        await leave_after_deltas(model, a_prompt(max_tokens=200), 2)
        await idle(model)
        assert model._engine.output_processor.request_states == {}
        assert model._engine.get_num_unfinished_requests() == 0

    async def test_the_messages_are_counted_in_the_chat_template(self, model):
        bare = (await model.count_tokens(["fox"]))[0]
        assert await model.count_prompt([ChatMessage("user", "fox")]) > bare + 5

    async def test_a_schema_that_vllm_cannot_follow_is_refused(self, model):
        with pytest.raises(InvalidInput, match="vLLM refuses the request"):
            await reply_of(model, a_prompt(answer_schema={"enum": []}))
        await idle(model)

    async def test_a_folder_that_is_no_model_is_refused(self, config, tmp_path):
        with pytest.raises(InvalidInput, match=r"not a folder with a config\.json"):
            VllmEngine.open(msgspec.structs.replace(config, model=str(tmp_path)))
        (tmp_path / "config.json").write_text("{}")
        with pytest.raises(InvalidInput, match="vLLM does not accept"):
            VllmEngine.open(msgspec.structs.replace(config, model=str(tmp_path)))


def test_the_environment_carries_the_cpu_settings():
    environment = vllm_environment(VllmConfig(model="m", cpu_kv_cache_gib=3, cpu_threads=2, offline=False))
    assert environment["VLLM_CPU_KVCACHE_SPACE"] == "3"
    assert environment["OMP_NUM_THREADS"] == "2"
    assert environment["HF_HUB_OFFLINE"] == "0"


@pytest.mark.asyncio(loop_scope="module")
async def test_closing_ends_open_replies_and_refuses_new_ones(model):
    """The last test of the module: it closes the model that all share, since another takes half a minute to open."""
    running = asyncio.create_task(reply_of(model, a_prompt(max_tokens=300)))
    while not model.statistics().open_requests:
        await asyncio.sleep(0.01)
    await model.aclose()
    with pytest.raises(ModelFailed):
        await running
    with pytest.raises(ModelFailed, match="closed"):
        await reply_of(model, a_prompt())
    assert model.statistics().open_requests == 0
