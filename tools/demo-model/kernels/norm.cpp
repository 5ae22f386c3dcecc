// Residual addition and RMS norm with a zero-centred weight, in one pass.
#include "common.h"

extern "C" {

// h = x + branch;  y = h / rms(h) · (1 + weight).
//
// `branch` may be null: the first layer has nothing to add. `scale` [tokens] keeps 1 / rms(h).
void add_norm_forward(long tokens, const float* x, const Activation* branch, const float* weight,
                      float* h, Activation* y, float* scale) {
  for (long t = 0; t < tokens; t++) {
    const float* x_row = x + t * HIDDEN_SIZE;
    float* h_row = h + t * HIDDEN_SIZE;
    Activation* y_row = y + t * HIDDEN_SIZE;
    memcpy(h_row, x_row, HIDDEN_SIZE * sizeof(float));
    if (branch) {
      const Activation* branch_row = branch + t * HIDDEN_SIZE;
      for (int i = 0; i < HIDDEN_SIZE; i++) h_row[i] += load(branch_row[i]);
    }
    float q = scale[t] = inverse_rms(h_row, HIDDEN_SIZE);
    for (int i = 0; i < HIDDEN_SIZE; i++) y_row[i] = store(h_row[i] * q * (1.f + weight[i]));
  }
}

// `d_h` is the gradient that arrives at h by the residual stream, or null; `d_y` that of y.
// `d_x` becomes the gradient of h, which is that of x; `d_branch`, where not null, its copy.
void add_norm_backward(long tokens, const float* h, const float* scale, const float* weight,
                       const float* d_h, const Activation* d_y, float* d_x, Activation* d_branch,
                       float* d_weight) {
  for (long t = 0; t < tokens; t++) {
    const float* h_row = h + t * HIDDEN_SIZE;
    const Activation* d_y_row = d_y + t * HIDDEN_SIZE;
    float* d_x_row = d_x + t * HIDDEN_SIZE;
    float q = scale[t], mean = 0, d_normed[HIDDEN_SIZE];
    for (int i = 0; i < HIDDEN_SIZE; i++) {
      float d = load(d_y_row[i]), normed = h_row[i] * q;
      d_weight[i] += d * normed;
      d_normed[i] = d * (1.f + weight[i]);
      mean += d_normed[i] * normed;
    }
    mean /= HIDDEN_SIZE;
    for (int i = 0; i < HIDDEN_SIZE; i++) d_x_row[i] = q * (d_normed[i] - h_row[i] * q * mean);
    if (d_h) {
      const float* d_h_row = d_h + t * HIDDEN_SIZE;
      for (int i = 0; i < HIDDEN_SIZE; i++) d_x_row[i] += d_h_row[i];
    }
    if (d_branch) {
      Activation* d_branch_row = d_branch + t * HIDDEN_SIZE;
      for (int i = 0; i < HIDDEN_SIZE; i++) d_branch_row[i] = store(d_x_row[i]);
    }
  }
}

}  // extern "C"
