"""Dense transformers models as ours, by way of the folder that they save."""

from dflash_jax.checkpoint import huggingface
from dflash_jax.target import decoder


def target(model, folder, **how):
  """The decoder and parameters of a Llama, Qwen2 or Qwen3 model."""
  if model.config.eos_token_id is None:
    model.config.eos_token_id = 0
  model.save_pretrained(folder, **how)
  loaded = huggingface.load(folder)
  return decoder.Decoder(loaded.config), loaded.params
