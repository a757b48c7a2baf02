"""Training of a small vocabulary."""

from collections.abc import Iterable

from tokenizers import pre_tokenizers
from tokenizers import trainers

from dflash_jax import errors
from dflash_jax.data import byte_level
from dflash_jax.data import tokenizer

_NUM_BYTES = 256


def train_bpe(
    texts: Iterable[str],
    vocab_size: int,
    special_tokens: tuple[str, ...] = ('<|endoftext|>', '<|mask|>'),
) -> tokenizer.Tokenizer:
  """Returns a byte-level BPE vocabulary learned from `texts`.

  Text is split as for SmolLM2 (digits one by one). The same texts give the
  same vocabulary. There is no bos token and no chat template.

  Args:
    texts: what to learn from.
    vocab_size: number of tokens, special tokens and the 256 bytes included;
      texts with few words give fewer.
    special_tokens: control tokens, with the ids from 0; the first one is the
      stop and the pad token.

  Raises:
    errors.UserError: `vocab_size` is too small, or there is no special token.
  """
  if not special_tokens:
    raise errors.UserError('special_tokens needs one entry, the stop token')
  least = _NUM_BYTES + len(special_tokens)
  if vocab_size < least:
    raise errors.UserError(
        f'vocab_size is {vocab_size}; the 256 bytes and the special tokens'
        f' alone take {least}'
    )
  backend = byte_level.backend(byte_level.SCHEMES['smollm'], {}, [])
  backend.train_from_iterator(
      texts,
      trainers.BpeTrainer(
          vocab_size=vocab_size,
          special_tokens=list(special_tokens),
          initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
          show_progress=False,
      ),
  )
  return tokenizer.Tokenizer(
      backend=backend,
      special_tokens={token: i for i, token in enumerate(special_tokens)},
      unused_ids=(),
      bos_id=None,
      eos_ids=(0,),
      pad_id=0,
      unk_id=None,
      add_bos=False,
      chat_template=None,
  )
