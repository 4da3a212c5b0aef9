"""`fractus tokenizer`: making tokenizers."""

from __future__ import annotations

import json
import time
from pathlib import Path

import click

from fractus_core.api import FractusError, progress_bar


@click.group()
def tokenizer() -> None:
    """Make tokenizers for text."""


@tokenizer.command()
@click.argument("data", metavar="CORPUS")
@click.option(
    "--vocab", default=8192, show_default=True, type=click.IntRange(min=257), help="Tokens."
)
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="File of the tokenizer.",
)
@click.option("--column", default="text", show_default=True, help="Column of .jsonl and .parquet.")
@click.option("--force", is_flag=True, help="Overwrite OUTPUT.")
@click.option("--json", "as_json", is_flag=True, help="Report as JSON.")
def train(data: str, vocab: int, output: Path, column: str, force: bool, as_json: bool) -> None:
    """Train a byte-pair tokenizer on CORPUS.

    CORPUS is what `--data` of `fractus run` can be. Use the tokenizer as `--text.tokenizer OUTPUT`.
    """
    # Here, so that `fractus --help` stays fast.
    from fractus_text.corpus import documents
    from fractus_text.encoding import encode_pieces
    from fractus_text.rank_file import write_rank_file
    from fractus_text.train_tokenizer import train_tokenizer

    if output.exists() and not force:
        raise FractusError(f"{output} exists; add --force to overwrite it")
    start = time.monotonic()
    corpus = documents(data, column=column)
    with progress_bar("Reading") as progress:
        encoding = train_tokenizer(corpus.texts(progress), vocab, output.stem)
    seconds = time.monotonic() - start
    token_count = byte_count = 0
    with progress_bar("Measuring") as progress:
        for piece, tokens, text in encode_pieces(corpus, encoding):
            token_count += len(tokens)
            byte_count += len(text)
            progress(piece.read, corpus.size)
    try:
        write_rank_file(encoding, output)
    except OSError as error:
        raise FractusError(f"cannot write {output}: {error.strerror}") from None
    report = {
        "file": str(output),
        "corpus": data,
        "vocab": encoding.n_vocab,
        "bytes": byte_count,
        "bytes_per_token": round(byte_count / token_count, 4),
        "invalid_files": corpus.replaced,
        "seconds": round(seconds, 3),
    }
    if as_json:
        click.echo(json.dumps(report))
    else:
        click.echo(
            f"{output}: {encoding.n_vocab:,} tokens, {byte_count / token_count:.3f} bytes each "
            f"on {data} ({byte_count:,} bytes), trained in {seconds:.1f} s"
        )
