// What the kernels share: the storage type of activations, and the sizes of the network.
//
// The kernels are everything between the matrix products of a qwen3_5_moe layer, forward and
// backward. Eager PyTorch spends most of its time there on a CPU.
//
// Documents lie one after the other in a stream of tokens; document `d` has the tokens
// `starts[d] .. starts[d + 1]`. No document ever sees another. Sums are in f32.
//
// pebble/kernels.py compiles this folder and defines the names in capitals.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

// Activations are bf16 in training, and f32 to compare gradients with transformers.
#ifdef ACTIVATION_F32
using Activation = float;
static inline float load(Activation value) { return value; }
static inline Activation store(float value) { return value; }
#else
using Activation = uint16_t;
static inline float load(Activation value) {
  uint32_t bits = (uint32_t)value << 16;
  float result;
  memcpy(&result, &bits, sizeof result);
  return result;
}
// Rounds to nearest, ties to even.
static inline Activation store(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return (Activation)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
#endif

static constexpr float EPSILON = 1e-6f;

static inline float sigmoid(float x) { return 1.f / (1.f + expf(-x)); }
static inline float silu(float x) { return x * sigmoid(x); }
static inline float silu_slope(float x) {
  float s = sigmoid(x);
  return s + x * s * (1 - s);
}
static inline float sum_of_squares(const float* x, int n) {
  float sum = 0;
  for (int i = 0; i < n; i++) sum += x[i] * x[i];
  return sum;
}
static inline float inverse_rms(const float* x, int n) {
  return 1.f / sqrtf(sum_of_squares(x, n) / n + EPSILON);
}
