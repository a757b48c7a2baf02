"""Text out of tokens that arrive piece by piece."""

import codecs
from collections.abc import Iterable

from dflash_jax.data import tokenizer as tokenizer_lib


class Detokenizer:
  """Turns a stream of token ids into text, whole characters at a time.

  A token of a byte-level vocabulary may end inside a character; the rest of
  its bytes wait for the next token. All that `push` and `flush` return,
  joined, is what `Tokenizer.decode` makes of all the ids.
  """

  def __init__(self, tokenizer: tokenizer_lib.Tokenizer):
    self._tokenizer = tokenizer
    self._decoder = codecs.getincrementaldecoder('utf-8')('replace')

  def push(self, ids: Iterable[int]) -> str:
    """Returns the text that is certain once `ids` have come.

    Raises:
      ValueError: an id outside the vocabulary.
    """
    return self._decoder.decode(self._tokenizer.to_bytes(ids))

  def flush(self) -> str:
    """Returns what is left when the stream ends, and starts afresh."""
    return self._decoder.decode(b'', final=True)
