"""The models again, in float64 NumPy, one position and one head at a time.

Written from the papers' formulas and not from the library: the oracle of its
tests.
"""

import numpy as np


def double(tree):
  """A nested dict of arrays as float64 NumPy."""
  if isinstance(tree, dict):
    return {key: double(value) for key, value in tree.items()}
  return np.asarray(tree, np.float64)


def norm(x, scale, eps):
  return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + eps) * scale


def rotate(head, position, theta):
  """Feature pair (i, i + H/2) is a complex number, turned by its angle."""
  half = len(head) // 2
  pair = head[:half] + 1j * head[half:]
  turned = pair * np.exp(1j * position * theta ** (-np.arange(half) / half))
  return np.concatenate([turned.real, turned.imag])


def attend(query, keys, values):
  """One query head over the `[S, H]` keys that it may see."""
  scores = keys @ query / np.sqrt(len(query))
  weights = np.exp(scores - scores.max())
  return weights @ values / weights.sum()


def heads(config, layer, name, x, position):
  """The heads `q`, `k` or `v` of one row."""
  out = layer[name]['kernel'] @ x
  if 'bias' in layer[name]:
    out = out + layer[name]['bias']
  out = out.reshape(-1, config.head_dim)
  if f'{name}_norm' in layer:
    out = norm(out, layer[f'{name}_norm']['scale'], config.norm_eps)
  if name == 'v':
    return out
  return np.array([rotate(h, position, config.rope_theta) for h in out])


def convolve(layer, name, side, normed, x):
  """Rows `x` of one block, convolved; coefficients come from `normed`."""
  if name not in layer:
    return x
  base = layer[name]['base_kernel'][side]
  out = np.zeros(x.shape)
  for slot, row in enumerate(normed):
    dynamic = (layer[name]['kernel_projection'] @ row).reshape(2, len(base), -1)
    for tap in range(min(len(base), slot + 1)):
      added = np.repeat(dynamic[side, tap], x.shape[1] // dynamic.shape[2])
      out[slot] += (base[tap] + added) * x[slot - tap]
  return out


def layer_rows(config, layer, x, positions, context, sees):
  """One decoder layer over rows `x`.

  Args:
    context: `(rows, positions)` that give keys and values, without a norm.
    sees: `sees(query position, key position, key is context)`.
  """
  eps = config.norm_eps
  normed = norm(x, layer['attention_norm']['scale'], eps)
  entered = convolve(layer, 'attention_conv', 0, normed, normed)
  sources = [(row, at, True) for row, at in zip(*context)]
  sources += [(row, at, False) for row, at in zip(entered, positions)]
  keys = [heads(config, layer, 'k', row, at) for row, at, _ in sources]
  values = [heads(config, layer, 'v', row, at) for row, at, _ in sources]
  out = []
  for row, at in zip(entered, positions):
    seen = [s for s, (_, key, old) in enumerate(sources) if sees(at, key, old)]
    attended = []
    for n, query in enumerate(heads(config, layer, 'q', row, at)):
      m = n * config.num_kv_heads // config.num_heads
      attended.append(attend(
          query,
          np.array([keys[s][m] for s in seen]),
          np.array([values[s][m] for s in seen]),
      ))
    out.append(layer['o']['kernel'] @ np.concatenate(attended))
  x = x + convolve(layer, 'attention_conv', 1, normed, np.array(out))
  normed = norm(x, layer['mlp_norm']['scale'], eps)
  entered = convolve(layer, 'mlp_conv', 0, normed, normed)
  gate = entered @ layer['gate']['kernel'].T
  up = entered @ layer['up']['kernel'].T
  out = (gate / (1 + np.exp(-gate)) * up) @ layer['down']['kernel'].T
  return x + convolve(layer, 'mlp_conv', 1, normed, out)


def target(config, params, tokens):
  """`[T, V]` logits and `[layers, T, D]` outputs of the blocks."""
  params = double(params)
  x = params['embedding'][np.asarray(tokens)]
  outputs = []
  for index in range(config.num_layers):
    x = layer_rows(
        config, params[f'layers_{index}'], x, range(len(x)), ((), ()),
        lambda query, key, _: key <= query,
    )
    outputs.append(x)
  head = params['embedding' if config.tied_head else 'head']
  final = norm(x, params['final_norm']['scale'], config.norm_eps)
  return final @ head.T, np.array(outputs)


def draft(config, params, block, anchor, features):
  """`[L, D]` final hidden states of one block; `features` is `[C, P, D]`.

  Only features before the anchor are context. (Section 4.1; the reference's
  mask.)
  """
  params = double(params)
  features = np.asarray(features, np.float64)[:anchor]
  context = np.array([
      norm(
          params['fc']['kernel'] @ row.reshape(-1),
          params['context_norm']['scale'], config.norm_eps,
      )
      for row in features
  ])
  x = np.asarray(block, np.float64) * config.input_embedding_scale
  positions = [anchor + slot for slot in range(len(x))]
  for index, kind in enumerate(config.layer_types):
    sliding = kind == 'sliding_attention'
    causal = sliding if config.is_causal is None else config.is_causal

    def sees(query, key, _):
      near = abs(query - key) < config.sliding_window if sliding else True
      return near and (key <= query or not causal)

    x = layer_rows(
        config, params[f'layers_{index}'], x, positions,
        (context, range(len(context))), sees,
    )
  return norm(x, params['final_norm']['scale'], config.norm_eps)
