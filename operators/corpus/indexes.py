"""The two indexes of a shard, which follow its database."""

from __future__ import annotations

import threading
from pathlib import Path

from engine.errors import InvalidInput
from operators.corpus import feed
from operators.corpus.dense import DenseIndex, open_dense
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
        self.dense = open_dense(folder, config)
        self.lexical = LexicalIndex(folder / "lexical", config, writable=writable)
        self._lexical_seq = self.lexical.seq  # followed; the index itself says what is committed
        self.notes: list[str] = []

    def open(self, store: Store) -> None:
        """Follows from wherever the files were, and notes what that mended."""
        seq = store.seq()
        ahead = max(self.dense.seq, self._lexical_seq) > seq
        if ahead:
            self.notes.append("the indexes were ahead of the database, as if it came from a backup: they are made anew")
            self.dense.clear()
        kept = self.dense.seq or not isinstance(self.dense, DenseIndex)  # a graph is not saved for few changes
        self._note("dense", self.dense.note, 0 if kept or ahead else seq)
        self._note("lexical", self.lexical.note, max(0, seq - self._lexical_seq))
        if self._writable and self._lexical_seq > seq:
            self.lexical.clear()
            self._lexical_seq = 0
        elif not self._writable and self._lexical_seq != seq:
            self._mend_lexical(store)
        self.follow(store)
        if self._writable:
            self.commit(store)

    def _mend_lexical(self, store: Store) -> None:
        """Does the writer's work for once, unless a writer is there to do it: a reader cannot follow in memory."""
        try:
            lock = WriterLock(self._folder)
        except InvalidInput:  # its next commit will show
            return
        mending = Indexes(self._folder, self._config, writable=True)
        mending.open(store)
        mending.close(store)
        lock.release()

    def _note(self, name: str, damage: str, behind: int) -> None:
        if damage:
            self.notes.append(f"{damage}; it is made anew from the database")
        elif behind:
            self.notes.append(f"the {name} index was {behind} changes behind the database and follows")

    @property
    def lexical_seq(self) -> int:
        """The last change that searches of the lexical index see; they may see more."""
        return self._lexical_seq if self._writable else self.lexical.seq

    def behind(self, store: Store) -> bool:
        """Whether there may be something to follow; a writer follows its own changes, so it never is."""
        return not self._writable and store.seq() > min(self.dense.seq, self.lexical.seq)

    def follow(self, store: Store) -> None:
        """Catches up with the database, as far as this process can."""
        with self._following:
            seq = store.seq()
            if self._writable and self.lexical.broken:  # by a full disk: what was not committed is followed again
                self.lexical.reopen()
                self._lexical_seq = self.lexical.seq
            if self.dense.seq < seq:
                self._follow_dense(store)
                self.dense.seq = seq
            if self._writable and self._lexical_seq < seq:
                self._follow_lexical(store)
                self.lexical.refresh()
                self._lexical_seq = seq
            elif not self._writable:
                self.lexical.refresh()

    def _follow_dense(self, store: Store) -> None:
        removed = feed.removed_keys(store, self.dense.seq)
        if self.dense.seq < feed.floor(store):  # asked afterwards: the writer elsewhere may have just forgotten some
            self.dense.clear()
        elif self.dense.seq:  # an empty index has nothing to lose
            self.dense.remove(removed)
        for keys, vectors in feed.changed_vectors(store, self.dense.seq):
            self.dense.add(keys, vectors)

    def _follow_lexical(self, store: Store) -> None:
        if self._lexical_seq < feed.floor(store):
            self.lexical.clear()
            self._lexical_seq = 0
        for document_id in feed.removed_documents(store, self._lexical_seq):
            self.lexical.remove(document_id)
        for changed in feed.changed_documents(store, self._lexical_seq):
            titles = [f"{changed.title} {context}".strip() for context in changed.contexts]
            self.lexical.add(changed.id, changed.keys, titles, changed.texts)

    def rebuild(self, store: Store) -> None:
        """Makes both indexes anew from the database, and saves them; searches find little meanwhile."""
        self.dense.clear()
        self.lexical.clear()
        self._lexical_seq = 0
        self.follow(store)
        self.commit(store)

    def publish(self, store: Store) -> None:
        """Puts the lexical index on the disk, without which readers elsewhere find nothing new by words."""
        if self._writable and self.lexical.broken:
            self.follow(store)
        if self.lexical.seq < self._lexical_seq:
            self.lexical.commit(self._lexical_seq)

    def commit(self, store: Store, *, closing: bool = False) -> None:
        """Puts on the disk what was followed; the dense graph only when enough of it has changed."""
        self.dense.save(closing=closing)
        self.publish(store)
        feed.forget(store, min(self.dense.saved_seq, self.lexical.seq))

    def close(self, store: Store) -> None:
        """Commits, if this process is the writer, and closes the files."""
        try:
            if self._writable:
                self.commit(store, closing=True)
        finally:
            self.dense.close()
            self.lexical.close()
