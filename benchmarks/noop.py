"""The seven no-op steps that several systems run in benchmarks.overhead."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypedDict

from engine.graph import Graph, graph
from engine.run import Running
from engine.scope import Scope
from engine.stage import Resources, Stage
from engine.step import step
from engine.trace import Trace

Ask = Callable[[str], Awaitable[str]]


class Legs:
    """Three ways of retrieving nothing."""

    async def dense(self, plan: str) -> str:
        return plan

    async def lexical(self, plan: str) -> str:
        return plan

    async def walk(self, plan: str) -> str:
        return plan


class Reranker:
    """Keeps the order."""

    async def rerank(self, hits: str) -> str:
        return hits


class Generator:
    """Says what it was told."""

    async def generate(self, hits: str) -> str:
        return hits


def plan(question: str) -> str:
    """A plan that is the question."""
    return question


def fuse(dense: str, lexical: str, walk: str) -> str:
    """The first of three."""
    return dense


def stages() -> tuple[Stage[Legs], Stage[Reranker], Stage[Generator]]:
    """The three stages; small enough that two sets of them fit on two cores beside bare actors."""
    little = Resources(cpus=0.1)
    return (
        Stage("legs", Legs, resources=little),
        Stage("reranker", Reranker, resources=little),
        Stage("generator", Generator, resources=little),
    )


def seven_steps() -> Graph[[str], str]:
    """Two light steps, five on stages: in one process with engine="local", three actors on Ray."""
    legs, reranker, generator = stages()
    planned, fused = step(plan), step(fuse)
    dense, lexical, walk = legs.step(Legs.dense), legs.step(Legs.lexical), legs.step(Legs.walk)
    rerank, generate = reranker.step(Reranker.rerank), generator.step(Generator.generate)

    @graph
    def seven(question: str) -> str:
        p = planned(question)
        return generate(rerank(fused(dense(p), lexical(p), walk(p))))

    return seven


def three_remote() -> Graph[[str], str]:
    """Seven steps, three of them on stages, one after another: retrieval (one call), rerank, generate."""
    legs, reranker, generator = stages()
    planned, fused = step(plan), step(fuse)
    lexical, walk = step(plan, name="lexical"), step(plan, name="walk")
    dense, rerank = legs.step(Legs.dense), reranker.step(Reranker.rerank)
    generate = generator.step(Generator.generate)

    @graph
    def remote(question: str) -> str:
        p = planned(question)
        return generate(rerank(fused(dense(p), lexical(p), walk(p))))

    return remote


def traced(running: Running[[str], str]) -> Ask:
    """Asks with tracing on, as a served request does."""

    async def ask(question: str) -> str:
        return await running.within(Scope(trace=Trace()))(question)

    return ask


def plain_asyncio() -> Ask:
    """What a person would write by hand without an engine."""
    legs, reranker, generator = Legs(), Reranker(), Generator()

    async def ask(question: str) -> str:
        p = plan(question)
        hits = await asyncio.gather(legs.dense(p), legs.lexical(p), legs.walk(p))
        return await generator.generate(await reranker.rerank(fuse(*hits)))

    return ask


def haystack_pipeline() -> Ask:
    """The same steps as components of a Haystack Pipeline, run asynchronously."""
    from haystack import Pipeline, component

    @component
    class One:
        @component.output_types(value=str)
        def run(self, value: str) -> dict[str, str]:
            return {"value": value}

        @component.output_types(value=str)
        async def run_async(self, value: str) -> dict[str, str]:
            return {"value": value}

    @component
    class Fuse:
        @component.output_types(value=str)
        def run(self, dense: str, lexical: str, walk: str) -> dict[str, str]:
            return {"value": dense}

        @component.output_types(value=str)
        async def run_async(self, dense: str, lexical: str, walk: str) -> dict[str, str]:
            return {"value": dense}

    pipeline = Pipeline()
    for name in ("plan", "dense", "lexical", "walk", "rerank", "generate"):
        pipeline.add_component(name, One())
    pipeline.add_component("fuse", Fuse())
    for leg in ("dense", "lexical", "walk"):
        pipeline.connect("plan.value", f"{leg}.value")
        pipeline.connect(f"{leg}.value", f"fuse.{leg}")
    pipeline.connect("fuse.value", "rerank.value")
    pipeline.connect("rerank.value", "generate.value")

    async def ask(question: str) -> str:
        out = await pipeline.run_async({"plan": {"value": question}})
        return str(out["generate"]["value"])

    return ask


class State(TypedDict, total=False):
    """What LangGraph's nodes read and write; one key a step, since parallel nodes may not write the same."""

    question: str
    plan: str
    dense: str
    lexical: str
    walk: str
    fuse: str
    rerank: str
    generate: str


def langgraph_graph() -> Ask:
    """The same steps as nodes of a LangGraph StateGraph."""
    from langgraph.graph import END, START, StateGraph

    def node(name: str, source: str) -> Callable[[State], Awaitable[dict[str, Any]]]:
        async def run(state: State) -> dict[str, Any]:
            return {name: state[source]}  # type: ignore[literal-required]

        return run

    builder = StateGraph(State)
    # LangGraph refuses nodes named like keys of the state
    sources = {"plan": "question", "dense": "plan", "lexical": "plan", "walk": "plan"}
    sources |= {"fuse": "dense", "rerank": "fuse", "generate": "rerank"}
    for name, source in sources.items():
        builder.add_node(f"{name}_node", node(name, source))
    builder.add_edge(START, "plan_node")
    for leg in ("dense", "lexical", "walk"):
        builder.add_edge("plan_node", f"{leg}_node")
    builder.add_edge(["dense_node", "lexical_node", "walk_node"], "fuse_node")
    builder.add_edge("fuse_node", "rerank_node")
    builder.add_edge("rerank_node", "generate_node")
    builder.add_edge("generate_node", END)
    compiled = builder.compile()

    async def ask(question: str) -> str:
        out = await compiled.ainvoke({"question": question})
        return str(out["generate"])

    return ask
