"""Text that every CPython installation carries, split into training and held-out bytes.

Two built-in corpora need no download: `english`, the prose of Python's own help topics, and `python`, the source of the
standard library. They differ between Python versions, so a corpus carries a digest that results can quote.
"""

import dataclasses
import functools
import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

BLOCK_BYTES = 2048  # text is dealt to training and held-out in blocks of this size
HELD_OUT_EVERY = 8  # the last block of every eight is held out
MAX_BYTES = 1 << 22  # what is read of one corpus


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Corpus:
    """Bytes of one domain; no byte of `held_out` is in `train`."""

    name: str
    train: np.ndarray  # (T,) uint8
    held_out: np.ndarray  # (H,) uint8, whole blocks
    digest: str  # 12 hex digits of the text both came from


def load_corpus(domain: str, texts: Mapping[str, str] | None = None) -> Corpus:
    """Corpus of a domain: built in, or a text file that `texts` maps the domain to.

    Raises `ValueError` for an unknown domain, an unreadable file, or less text than 16 blocks.
    """
    if texts and domain in texts:
        path = Path(texts[domain])
        try:
            with path.open("rb") as file:
                return split_text(domain, file.read(MAX_BYTES).decode("utf-8", errors="replace"))
        except OSError as error:
            raise ValueError(f"text of domain {domain!r}: cannot read {str(path)!r}: {error.strerror}") from error
    if domain not in _BUILT_IN:
        known = ", ".join(sorted({*_BUILT_IN, *(texts or {})}))
        raise ValueError(
            f'domain {domain!r} has no text; known: {known}. Add `texts = {{ {domain} = "FILE.txt" }}` to [backend].'
        )
    return _built_in_corpus(domain)


def split_text(name: str, text: str) -> Corpus:
    """Splits a text into training and held-out blocks, after dropping paragraphs it has already said.

    Without that, a fifth of the help topics would be in training and in held-out text at once, because topics quote
    each other in full. Byte 0 marks the start of a window for the model, so it is taken out of the text.
    """
    data = np.frombuffer("\n\n".join(distinct_paragraphs(text)).replace("\0", "").encode()[:MAX_BYTES], np.uint8)
    num_blocks = data.size // BLOCK_BYTES
    if num_blocks < 2 * HELD_OUT_EVERY:
        raise ValueError(
            f"text of domain {name!r} has {data.size} distinct bytes; at least {2 * HELD_OUT_EVERY * BLOCK_BYTES} are"
            " needed to train and to judge"
        )
    blocks = data[: num_blocks * BLOCK_BYTES].reshape(num_blocks, BLOCK_BYTES)
    is_held_out = np.arange(num_blocks) % HELD_OUT_EVERY == HELD_OUT_EVERY - 1
    return Corpus(
        name=name,
        train=blocks[~is_held_out].reshape(-1),
        held_out=blocks[is_held_out].reshape(-1),
        digest=hashlib.sha256(data.tobytes()).hexdigest()[:12],
    )


def distinct_paragraphs(text: str) -> Iterator[str]:
    """Paragraphs of a text in order, without those that repeat an earlier one up to white space."""
    seen = set()
    for paragraph in re.split(r"\n[ \t]*\n", text.replace("\r\n", "\n")):
        key = " ".join(paragraph.split())
        if key not in seen:
            seen.add(key)
            yield paragraph


def train_windows(corpus: Corpus, *, num: int, context: int, seed: int) -> np.ndarray:
    """Start of every training window of a run, (num,) int64, in the order in which they are read.

    An epoch reads every byte once, in windows whose grid is shifted by a random phase, so a repeated pass does not see
    the same windows again. A function of its arguments only: a resumed run reads on where it stopped.
    """
    rng = np.random.default_rng([seed, 0xC0DE])
    starts: list[np.ndarray] = []
    found = 0
    while found < num:
        epoch = np.arange(rng.integers(context), corpus.train.size - context + 1, context)
        starts.append(rng.permutation(epoch))
        found += epoch.size
    return np.concatenate(starts)[:num]


def held_out_windows(corpus: Corpus, *, num_bytes: int, context: int) -> np.ndarray:
    """The fixed text on which every run is judged, (W, context) uint8, spread evenly over the held-out blocks."""
    windows = corpus.held_out[: corpus.held_out.size // context * context].reshape(-1, context)
    num = min(max(1, num_bytes // context), len(windows))
    return windows[np.linspace(0, len(windows) - 1, num).round().astype(np.int64)]


def _help_topics() -> str:
    from pydoc_data import topics

    return "\n\n".join(topics.topics[name].strip() for name in sorted(topics.topics))


def _standard_library() -> str:
    files = sorted(Path(os.__file__).parent.glob("*.py"))
    return "\n\n".join(path.read_text(encoding="utf-8", errors="replace") for path in files)


_BUILT_IN = {"english": _help_topics, "python": _standard_library}


@functools.cache
def _built_in_corpus(domain: str) -> Corpus:
    return split_text(domain, _BUILT_IN[domain]())
