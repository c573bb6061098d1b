"""Where in the shards the newest statement about each image is."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from candor_monai.utils.errors import UserError

from .shards import FEATURES, KEY_FIELDS, REJECTED, Shard
from .store_rows import Sources


@dataclass(frozen=True)
class ShardIndex:
    """Every statement of a store, the newest last; M statements in all.

    Args:
        shards: the shards, from the oldest.
        ids: image id of each statement, Arrow string array of length M.
        size, mtime_ns: state of the source file that it was made from, shape (M,), int64.
        shard, row: where it is, shape (M,), int32.
        feature: it is a feature, not a rejection; shape (M,), bool.
        retry: it is a rejection that the next run tries again; shape (M,), bool.
    """

    shards: list[Shard]
    ids: pa.Array
    size: np.ndarray
    mtime_ns: np.ndarray
    shard: np.ndarray
    row: np.ndarray
    feature: np.ndarray
    retry: np.ndarray

    @classmethod
    def of(cls, shards: Sequence[Shard]) -> ShardIndex:
        """The index of verified shards."""
        shards = sorted(shards, key=lambda shard: shard.order)
        counts = [shard.table.num_rows for shard in shards]
        schema = pa.schema(KEY_FIELDS)
        keys = [pa.RecordBatch.from_arrays(s.table.select(schema.names).columns, schema=schema) for s in shards]
        keys.append(pa.RecordBatch.from_arrays([pa.array([], f.type) for f in schema], schema=schema))
        ids, size, mtime = (pa.concat_arrays([key.column(name) for key in keys]) for name in schema.names)
        nothing = np.zeros(0, dtype=bool)
        retry = [
            s.table.column("retry").to_numpy(zero_copy_only=False) if s.kind == REJECTED else np.zeros(n, dtype=bool)
            for s, n in zip(shards, counts, strict=True)
        ]
        return cls(
            shards=shards,
            ids=ids,
            size=size.to_numpy(),
            mtime_ns=mtime.to_numpy(),
            shard=np.repeat(np.arange(len(shards), dtype=np.int32), counts),
            row=np.concatenate([np.zeros(0, dtype=np.int32), *(np.arange(n, dtype=np.int32) for n in counts)]),
            feature=np.repeat(np.array([s.kind == FEATURES for s in shards], dtype=bool), counts),
            retry=np.concatenate([nothing, *retry]),
        )

    @property
    def dimension(self) -> int:
        """Length d of a feature; 0 while there is none."""
        return next((shard.dimension for shard in self.shards if shard.kind == FEATURES), 0)

    def resolve(self, image_ids: Sequence[str] | pa.Array, sources: Sources | None) -> np.ndarray:
        """The newest statement that holds for each id.

        Args:
            image_ids: N ids; may repeat.
            sources: present states of their files; None: a statement holds for any state.

        Returns:
            row in this index, -1 for none; shape (N,), int64.

        Raises:
            ValueError: ``sources`` is not aligned with the ids.
        """
        request = image_ids if isinstance(image_ids, pa.Array) else pa.array(image_ids, pa.string())
        if sources is not None and len(sources.size) != len(request):
            raise ValueError(f"sources has {len(sources.size)} rows for {len(request)} image ids")
        if not len(self.ids) or not len(request):
            return np.full(len(request), -1, dtype=np.int64)
        encoded = request.dictionary_encode()
        codes = encoded.indices.to_numpy(zero_copy_only=False)
        wanted = pc.index_in(self.ids, value_set=encoded.dictionary)
        wanted = wanted.fill_null(-1).to_numpy(zero_copy_only=False)
        holds = wanted >= 0
        if sources is not None:
            size = np.empty(len(encoded.dictionary), dtype=np.int64)
            mtime = np.empty_like(size)
            size[codes], mtime[codes] = sources.size, sources.mtime_ns
            holds &= (self.size == size[wanted]) & (self.mtime_ns == mtime[wanted])
        newest = np.full(len(encoded.dictionary), -1, dtype=np.int64)
        rows = np.flatnonzero(holds)
        np.maximum.at(newest, wanted[rows], rows)
        return newest[codes]

    def features_only(self, chosen: np.ndarray) -> np.ndarray:
        """``chosen`` (from :meth:`resolve`) with -1 where the statement is a rejection."""
        present = chosen >= 0
        present[present] = self.feature[chosen[present]]
        return np.where(present, chosen, -1)

    def gather(self, chosen: np.ndarray, out: np.ndarray) -> None:
        """Copy the features of the statements ``chosen`` (-1: left as it is) into ``out``, shard by shard.

        Raises:
            UserError: a shard has gone or shrunk since it was verified.
        """
        for shard, at in self._by_shard(chosen):
            try:
                out[at] = shard.features()[self.row[chosen[at]]]
            except (OSError, ValueError) as error:
                raise _in_use(shard) from error

    def columns(self, chosen: np.ndarray, fields: Sequence[pa.Field]) -> pd.DataFrame:
        """Small columns of the statements ``chosen``, in that order; nulls where -1.

        Raises:
            UserError: a shard has gone since it was verified.
        """
        schema = pa.schema([f.with_nullable(True) for f in fields])
        nowhere = np.flatnonzero(chosen < 0)
        parts = [pa.Table.from_arrays([pa.nulls(len(nowhere), f.type) for f in schema], schema=schema)]
        order = [nowhere]
        for shard, at in self._by_shard(chosen):
            try:
                batch = shard.columns(schema.names).take(pa.array(self.row[chosen[at]]))
            except OSError as error:
                raise _in_use(shard) from error
            parts.append(pa.Table.from_arrays(batch.columns, schema=schema))
            order.append(at)
        back = np.argsort(np.concatenate(order), kind="stable")
        return pa.concat_tables(parts).take(pa.array(back)).to_pandas()

    def _by_shard(self, chosen: np.ndarray) -> Iterator[tuple[Shard, np.ndarray]]:
        """Each shard that holds some of the statements ``chosen``, with their places there."""
        places = np.flatnonzero(chosen >= 0)
        places = places[np.argsort(chosen[places], kind="stable")]
        bounds = np.flatnonzero(np.diff(self.shard[chosen[places]], prepend=-1, append=-1))
        for start, stop in itertools.pairwise(bounds.tolist()):
            at = places[start:stop]
            yield self.shards[self.shard[chosen[at[0]]]], at


def _in_use(shard: Shard) -> UserError:
    return UserError(f"{shard.path} changed while it was in use. Run again.")
