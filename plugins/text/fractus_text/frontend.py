"""The front-end `text`: a tokenizer, token shards, and one matrix in and out."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fractus_core.api import WHOLE, Json, Score, Shard, Source, Split, Stream, progress_bar
from fractus_text.corpus import Corpus, documents
from fractus_text.embedding import TiedEmbedding
from fractus_text.encoding import token_bytes
from fractus_text.sampling import Sampler, write
from fractus_text.shards import encode
from fractus_text.source import TokenSource
from fractus_text.tokenizers import CHARS, from_schema, load, to_schema

SAMPLE_TOKENS = 200


class TextFrontend(TiedEmbedding):
    """Predicts the next token."""

    token_bytes: Tensor

    @classmethod
    def infer_schema(cls, data: str, options: Json) -> Json:
        name = options["tokenizer"]
        corpus = _corpus(data, options).texts() if name == CHARS else None
        return {"tokenizer": to_schema(load(name, corpus))}

    def __init__(self, d_model: int, options: Json, schema: Json) -> None:
        self.encoding = from_schema(schema["tokenizer"])
        super().__init__(self.encoding.n_vocab, d_model)
        self.options = options
        sizes = torch.from_numpy(token_bytes(self.encoding).copy())
        self.register_buffer("token_bytes", sizes, persistent=False)

    def open(
        self,
        data: str,
        split: Split,
        *,
        batch_size: int,
        chunk_len: int,
        seed: int,
        shard: Shard = WHOLE,
    ) -> Source:
        corpus = _corpus(data, self.options)
        with progress_bar("Encoding the text, once") as progress:
            shards = encode(
                corpus, self.encoding, validation=self.options["validation"], progress=progress
            )
        return TokenSource(
            shards, split, batch_size=batch_size, chunk_len=chunk_len, seed=seed, shard=shard
        )

    def score(self, hidden: Tensor, targets: Tensor, *, last: bool = False) -> Score:
        score = super().score(hidden, targets, last=last)
        if self.training:
            return score
        bits = float(score.loss.detach()) * score.weight / math.log(2)
        size = int(self.token_bytes[targets[:, -1:] if last else targets].sum())
        return Score(score.loss, score.weight, score.correct, {"bits_per_byte": (bits, size)})

    def illustrate(self, stream: Stream, source: Source, directory: Path, seed: int) -> str:
        sampler = Sampler(temperature=0.8, seed=seed)
        # As after the end of another text.
        prompt = torch.tensor([self.encoding.eot_token])
        tokens = write(stream, prompt, sampler, stop=self.encoding.eot_token)
        pieces = [token for token, _ in zip(tokens, range(SAMPLE_TOKENS), strict=False)]
        return self.encoding.decode(pieces)


def _corpus(data: str, options: Any) -> Corpus:
    return documents(data, column=options["column"], on_invalid=options["on_invalid"])
