"""The two indexes of a shard, which follow its database."""

from __future__ import annotations

import threading
from pathlib import Path

from engine.errors import InvalidInput
from operators.corpus.dense import DenseIndex
from operators.corpus.files import WriterLock
from operators.corpus.lexical import LexicalIndex
from operators.corpus.manifest import CorpusConfig
from operators.corpus.store import Store


class Indexes:
    """Dense and lexical index, each with the number of the last change that it has followed.

    There is one way for a change to reach them, in a running shard as after a crash: the database tells what happened
    since that number. Opened for reading, the dense index follows in memory and the lexical one waits for the writer's
    commits.

    Args:
        folder: The shard's.
        config: The corpus's.
        writable: Whether this process is the shard's writer.
    """

    def __init__(self, folder: Path, config: CorpusConfig, *, writable: bool) -> None:
        self._folder = folder
        self._config = config
        self._writable = writable
        self._following = threading.Lock()
        self.dense = DenseIndex(folder, config)
        self.lexical = LexicalIndex(folder / "lexical", config, writable=writable)
        self._lexical_seq = self.lexical.seq  # followed; the index itself says what is committed
        self.notes: list[str] = []

    def open(self, store: Store) -> None:
        """Follows from wherever the files were, and notes what that mended."""
        seq = store.seq()
        self._note("dense", self.dense.note, seq - self.dense.seq)
        self._note("lexical", self.lexical.note, seq - self._lexical_seq)
        if not self._writable and self._lexical_seq < seq:
            self._mend_lexical(store)
        self.follow(store)
        if self._writable:
            self.commit()

    def _mend_lexical(self, store: Store) -> None:
        """Does the writer's work for once, unless a writer is there to do it: a reader cannot follow in memory."""
        try:
            lock = WriterLock(self._folder)
        except InvalidInput:  # its next commit will show
            return
        mending = Indexes(self._folder, self._config, writable=True)
        mending.follow(store)
        mending.close()
        lock.release()

    def _note(self, name: str, damage: str, behind: int) -> None:
        if damage:
            self.notes.append(f"{damage}; it is made anew from the database")
        elif behind:
            self.notes.append(f"the {name} index was {behind} changes behind the database and follows")

    def behind(self, store: Store) -> bool:
        """Whether there may be something to follow; a writer follows its own changes, so it never is."""
        return not self._writable and store.seq() > min(self.dense.seq, self.lexical.seq)

    def follow(self, store: Store) -> None:
        """Catches up with the database, as far as this process can."""
        with self._following:
            seq = store.seq()
            if self.dense.seq < seq:
                self.dense.remove(store.removed_keys(self.dense.seq))
                for keys, vectors in store.changed_vectors(self.dense.seq):
                    self.dense.add(keys, vectors)
                self.dense.seq = seq
            if self._writable and self._lexical_seq < seq:
                _follow(self.lexical, store, self._lexical_seq)
                self._lexical_seq = seq
            self.lexical.refresh()

    def commit(self) -> None:
        """Puts on the disk what was followed; the dense graph only when enough of it has changed."""
        self.dense.save()
        if self.lexical.seq < self._lexical_seq:
            self.lexical.commit(self._lexical_seq)

    def close(self) -> None:
        """Commits, if this process is the writer, and closes the files."""
        try:
            if self._writable:
                self.commit()
        finally:
            self.lexical.close()


def _follow(lexical: LexicalIndex, store: Store, since: int) -> None:
    for document_id in store.removed_documents(since):
        lexical.remove(document_id)
    for changed in store.changed_documents(since):
        titles = [f"{changed.title} {context}".strip() for context in changed.contexts]
        lexical.add(changed.id, changed.keys, titles, changed.texts)
