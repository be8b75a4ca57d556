"""A corpus as one object: ingest, search, ask, change, delete.

Run it with `python -m examples.session FOLDER`; the folder keeps what was ingested.
"""

from __future__ import annotations

import sys
from pathlib import Path

from serve.session import (
    CompletedEvent,
    ErrorEvent,
    RagConfig,
    RagDocument,
    RagRetrievalOptions,
    TokenEvent,
    headrace_open,
)

DOCUMENTS = Path(__file__).parent / "documents"
NOTICE = "The fish pass at the weir is closed for repairs until the first of May."


def main(folder: Path) -> None:
    """Fill a corpus and ask it."""
    # "extractive" answers with sentences of the documents; llm_model_id="/models/answers.gguf" with a language model.
    with headrace_open(folder, RagConfig(generator="extractive", top_k=3)) as session:
        for written in session.ingest(
            [
                RagDocument.file(DOCUMENTS / "mill.md"),
                RagDocument.file(DOCUMENTS / "handbook.txt"),
                RagDocument(NOTICE, id="notice:fish-pass", metadata={"year": 2026}),
            ]
        ):
            print(f"{written.document_id}: {written.outcome}")

        options = RagRetrievalOptions(filters={"year": {"$gte": 2026}})
        for found in session.search("Can fish pass the weir?", options):
            print(f"{found.score:.2f} {found.document_id} [{found.start_offset}:{found.end_offset}] {found.text}")

        for event in session.query_stream("Who built the Alder Mill?"):
            match event:
                case TokenEvent():
                    print(event.token, end="", flush=True)
                case CompletedEvent():
                    result = event.result
                    print(f"\n  sources: {', '.join(source.document_id for source in result.sources)}")
                    print(f"  {result.retrieval_time_ms:.0f} ms to find, {result.generation_time_ms:.0f} ms to answer")
                case ErrorEvent():
                    print(f"\n{event.error.kind}: {event.error.message}")

        print(session.delete(["notice:fish-pass", "notice:unknown"]))
        print(session.stats())


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "session-corpus"))
