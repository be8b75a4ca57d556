"""One partition of a corpus at work: what `ShardReader` answers, and every way of changing it.

Writes go to the database first and are on the disk when they return; the indexes follow it. A shard that is opened and
finds an index behind, torn or missing lets it follow from wherever it is, and says so in its statistics.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from engine.errors import AccessDenied, InvalidInput
from engine.scope import Scope
from operators.corpus.changes import Changes
from operators.corpus.commit import GroupCommit, storage_errors
from operators.corpus.content import MAX_LENGTH, check_metadata, comparable, normalised, prepared
from operators.corpus.files import WriterLock
from operators.corpus.filter_sql import compile_filter
from operators.corpus.manifest import Corpus, open_corpus, renew
from operators.corpus.reader import ShardReader
from operators.corpus.store import Store
from operators.corpus.verify import ShardVerification, Verification, after_repair, repair_shard
from operators.filter_tree import EVERYTHING, Filter
from operators.messages import Deleted, Edit, EmbeddedDocument, Metadata, Written

PUBLISHED_WITHIN_S = 2.0
"""How long after a change a reader in another process finds it by words, too; by vectors it does at once."""

_Result = TypeVar("_Result")


class Shard(ShardReader):
    """The state of a retriever stage: open one in a process of its own. Built by `open`, safe for concurrent calls.

    Changes are restricted by the identity in the request's scope: one changes one's own documents only, and puts them
    only into collections that one belongs to.
    """

    def __init__(self, corpus: Corpus, index: int, *, lock: WriterLock | None, threads: int) -> None:
        super().__init__(corpus, index, lock=lock, threads=threads)
        if lock is not None:
            self._truth.checkpoint()
        self._commits = GroupCommit(self._truth, lambda: self._indexes.follow(self._truth), name=f"shard-{index}-write")
        self._verification: Verification | None = None
        self._publishing: tuple[asyncio.AbstractEventLoop, asyncio.TimerHandle] | None = None

    @classmethod
    def open(cls, directory: str, index: int, *, writable: bool = False, threads: int = 2) -> Shard:
        """Opens a shard and lets its indexes follow the database; takes a second, or as long as there is to follow.

        Args:
            directory: The corpus's.
            index: The shard, from 0.
            writable: Whether documents will be written or deleted; one open shard at a time may.
            threads: Reads served at once.

        Raises:
            InvalidInput: No such corpus or shard; or `writable`, and someone else writes.
            StorageError: The disk refused to mend what was torn.
        """
        corpus = renew(open_corpus(directory))
        folder = corpus.shard_directory(index)
        with storage_errors("the shard cannot be opened"):
            folder.mkdir(parents=True, exist_ok=True)
            lock = WriterLock(folder) if writable else None
            try:
                return cls(corpus, index, lock=lock, threads=threads)
            except BaseException:
                if lock:
                    lock.release()
                raise

    async def write(self, documents: list[EmbeddedDocument], chunking: str = "") -> list[Written]:
        """Adds or replaces documents, all or none; they are on the disk and found by searches when this returns.

        Until then the old version of a replaced document answers. A call cancelled while it writes is carried out.

        Args:
            documents: With their vectors.
            chunking: Names how they were cut; a document that is there, cut otherwise, is replaced.

        Raises:
            InvalidInput: The shard was opened for reading, or a document does not fit the corpus; nothing was written.
            AccessDenied: A document belongs to someone else, or names a collection of others; nothing was written.
            StorageError: The disk refused; nothing was written, unless the error's `in_doubt` says that it may be.
        """
        config = self._config
        ready = [prepared(d, dimension=config.dimension, measure=config.measure) for d in documents]
        return await self._write(lambda changes: changes.write(ready, chunking))

    async def require_own(self, ids: list[str]) -> list[str]:
        """Comes before a change that several shards share, of which each refuses its own part only; returns nothing.

        Raises:
            AccessDenied: One of the documents belongs to someone else.
        """

        def look(store: Store, scope: Scope) -> list[str]:
            Changes(store, scope.identity).require_own(ids)
            return []

        return await self._read(look)

    async def delete(self, ids: list[str]) -> Deleted:
        """Deletes documents, durably and at once; ids that are not here are reported.

        Raises:
            InvalidInput: The shard was opened for reading.
            AccessDenied: A document belongs to someone else; nothing was deleted.
        """
        return await self._write(lambda changes: changes.delete(ids))

    async def delete_where(self, filters: Filter) -> Deleted:
        """Deletes the documents that pass, of those that whoever asks owns.

        Raises:
            InvalidInput: The filter lets everything through, or looks at chunks; or the shard was opened for reading.
        """
        condition = compile_filter(filters)
        if filters == EVERYTHING or condition.of_chunks:
            raise InvalidInput(
                "a deletion by filter needs a filter on documents that does not let everything through; "
                "to delete chunks, name them"
            )
        return await self._write(lambda changes: changes.delete_where(condition))

    async def change_metadata(self, document_id: str, metadata: Metadata, replace: bool) -> bool:
        """Puts keys beside a document's metadata, or in its place; visible at once on all of its chunks.

        Nothing is embedded again. A key that is there gets the new value, null as any other.

        Returns:
            False when there is no such document here.

        Raises:
            InvalidInput: The metadata is not JSON, or the shard was opened for reading.
            AccessDenied: The document belongs to someone else.
        """
        check_metadata(document_id, metadata)
        return await self._write(lambda changes: changes.change_metadata(document_id, metadata, replace=replace))

    async def change_collections(self, ids: list[str], add: list[str], remove: list[str]) -> list[str]:
        """Puts documents into collections and takes them out of others; returns the ids that are not here.

        Raises:
            InvalidInput: A collection has no name, or the shard was opened for reading.
            AccessDenied: A document belongs to someone else, or whoever asks does not belong to a collection.
        """
        if "" in [*add, *remove]:
            raise InvalidInput("a collection has no name; expected 1 character or more")
        return await self._write(lambda changes: changes.change_collections(ids, add=add, remove=remove))

    async def change_chunk(self, edit: Edit, vector: np.ndarray) -> bool:
        """Gives a chunk another text and vector; the document's text stays, and the chunk is marked as edited.

        Returns:
            False when there is no such chunk here.

        Raises:
            InvalidInput: The document has changed since the edit was prepared, or the vector does not fit the corpus.
            AccessDenied: The document belongs to someone else.
        """
        row = np.asarray(vector, np.float32).reshape(-1)
        if row.shape != (self._config.dimension,) or not comparable(row, self._config.measure):
            raise InvalidInput(
                f"chunk {edit.chunk_id!r}: expected a vector of {self._config.dimension} finite numbers"
                f", no longer than {MAX_LENGTH:g}"
            )
        row = normalised(row) if self._config.measure == "cosine" else row
        return await self._write(lambda changes: changes.change_chunk(edit, row))

    async def delete_chunks(self, chunk_ids: list[str]) -> Deleted:
        """Deletes chunks, and documents that have none left; ids that are not here are reported.

        Raises:
            InvalidInput: The shard was opened for reading.
            AccessDenied: A document belongs to someone else; nothing was deleted.
        """
        return await self._write(lambda changes: changes.delete_chunks(chunk_ids))

    async def commit(self) -> None:
        """Saves the indexes, so that the next opening need not let them follow and readers elsewhere see the changes.

        Raises:
            InvalidInput: The shard was opened for reading.
            StorageError: The disk refused; the indexes follow from their last save when the shard is opened again.
        """
        self._refuse_unless_writable()
        await self._commits.run(self._commit)

    def _commit(self) -> None:
        with storage_errors("the indexes are not saved"):
            self._indexes.commit(self._truth)

    async def verify(self, repair: bool) -> list[ShardVerification]:
        """Checks the database and compares both indexes with it; a list of one, since lists of several shards join.

        Args:
            repair: Remove rows that belong to nothing and make the indexes anew, if there is anything to repair.

        Raises:
            AccessDenied: Someone in particular asks.
            InvalidInput: `repair`, and the shard was opened for reading.
        """
        if repair:
            self._refuse_unless_writable()
        found = await self._read(self._verify)
        if not repair or not any(finding.repairable for finding in found.findings):
            return [found]
        await self._commits.run(self._repair)
        return [after_repair(found, await self._read(self._verify))]

    async def verified_share(self) -> float:
        """How much of a running `verify` is done, 0 to 1."""
        return self._verification.share if self._verification else 0.0

    def _verify(self, store: Store, scope: Scope) -> ShardVerification:
        if scope.identity is not None:
            raise AccessDenied("a whole corpus is verified by whoever runs it")
        self._verification = Verification(store, self._indexes, self._config, shard=self._index)
        return self._verification.run()

    def _repair(self) -> None:
        with storage_errors("what was found is not repaired"):
            repair_shard(self._truth, self._indexes)

    async def _write(self, work: Callable[[Changes], _Result]) -> _Result:
        self._refuse_unless_writable()
        try:
            return await self._commits.submit(work)
        finally:  # one that was cancelled may be carried out all the same
            loop = asyncio.get_running_loop()
            if not self._closed and (self._publishing is None or self._publishing[0] is not loop):  # that one has ended
                self._publishing = loop, loop.call_later(PUBLISHED_WITHIN_S, self._publish)

    def _publish(self) -> None:
        """Lets readers elsewhere find by words what was written; the next write or the closing mends a failure."""
        self._publishing = None
        self._commits.start(lambda: self._indexes.publish(self._truth))

    async def aclose(self) -> None:
        """As ShardReader's."""
        if self._publishing is not None:
            self._publishing[1].cancel()
            self._publishing = None
        await super().aclose()

    def _refuse_unless_writable(self) -> None:
        if self._lock is None:
            raise InvalidInput(f"{self._folder} was opened for reading; open it with writable=True to change it")

    def _close(self) -> None:
        self._commits.close()
        with storage_errors("the indexes are not saved, and follow when the shard is opened again"):
            super()._close()
