// Cross entropy of logits, and its gradient in their place.
#include "common.h"

// Exponentials of a row relative to its maximum, in `exps`; returns their sum.
static float exponentials(const Activation* logits, int n, float* exps, float* maximum) {
  float top = -1e30f, sum = 0;
  for (int i = 0; i < n; i++) {
    exps[i] = load(logits[i]);
    top = exps[i] > top ? exps[i] : top;
  }
  for (int i = 0; i < n; i++) {
    exps[i] = expf(exps[i] - top);
    sum += exps[i];
  }
  *maximum = top;
  return sum;
}

extern "C" {

// loss[t] = log Σ exp(logits[t]) − logits[t, target[t]].
void cross_entropy(long tokens, const Activation* logits, const int64_t* target, float* loss) {
  std::vector<float> exps(VOCAB_SIZE);
  for (long t = 0; t < tokens; t++) {
    const Activation* row = logits + t * VOCAB_SIZE;
    float maximum, sum = exponentials(row, VOCAB_SIZE, exps.data(), &maximum);
    loss[t] = logf(sum) + maximum - load(row[target[t]]);
  }
}

// The same; `logits` become the gradient of Σ weight[t] · loss[t].
void cross_entropy_with_gradient(long tokens, Activation* logits, const int64_t* target,
                                 const float* weight, float* loss) {
  std::vector<float> exps(VOCAB_SIZE);
  for (long t = 0; t < tokens; t++) {
    Activation* row = logits + t * VOCAB_SIZE;
    float maximum, sum = exponentials(row, VOCAB_SIZE, exps.data(), &maximum);
    loss[t] = logf(sum) + maximum - load(row[target[t]]);
    float scale = weight[t] / sum;
    for (int i = 0; i < VOCAB_SIZE; i++) {
      row[i] = store(exps[i] * scale - (i == target[t] ? weight[t] : 0.f));
    }
  }
}

}  // extern "C"
