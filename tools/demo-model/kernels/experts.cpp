// Mixture of experts: router, gathering of rows by expert, SwiGLU, and the weighted sum.
//
// A row of the joint router product: router logits [NUM_EXPERTS], the gate of the shared expert
// [1], gate and up of the shared expert [2 · SHARED_SIZE].
//
// Rows of one expert lie together, in a segment. `slot[t, k]` is the row of token t for its k-th
// expert. Every segment is padded with rows of zeros to a multiple of SEGMENT_ROWS: the matrix
// library compiles a kernel per shape, so shapes must repeat (free sizes were 2.3 times slower).
#include "common.h"

static constexpr int ROUTER_ROW = NUM_EXPERTS + 1 + 2 * SHARED_SIZE;

// The first row of every segment, and behind the last one the number of rows.
static void segment_starts(const int32_t* count, long* start) {
  start[0] = 0;
  for (int e = 0; e < NUM_EXPERTS; e++) {
    start[e + 1] = start[e] + (count[e] + SEGMENT_ROWS - 1) / SEGMENT_ROWS * SEGMENT_ROWS;
  }
}

static void clear_padding(const int32_t* count, const long* start, Activation* rows) {
  for (int e = 0; e < NUM_EXPERTS; e++) {
    long first = start[e] + count[e];
    memset(rows + first * HIDDEN_SIZE, 0,
           (start[e + 1] - first) * HIDDEN_SIZE * sizeof(Activation));
  }
}

// Adds the rows of a token's experts, each times its weight, to `sum`.
static inline void add_expert_rows(const Activation* rows, const int32_t* slot,
                                   const float* weight, float* sum) {
  for (int k = 0; k < TOP_K; k++) {
    const Activation* row = rows + (long)slot[k] * HIDDEN_SIZE;
    for (int i = 0; i < HIDDEN_SIZE; i++) sum[i] += weight[k] * load(row[i]);
  }
}

extern "C" {

// Softmax over all experts, the TOP_K largest, their probabilities scaled to the sum one.
// `expert` and `weight` are [tokens, TOP_K]; `count` becomes the tokens of every expert.
void route(long tokens, const Activation* router, int32_t* expert, float* weight,
           float* probability, int32_t* count) {
  memset(count, 0, NUM_EXPERTS * sizeof(int32_t));
  for (long t = 0; t < tokens; t++) {
    const Activation* logits = router + t * ROUTER_ROW;
    float* p = probability + t * NUM_EXPERTS;
    float maximum = -1e30f, sum = 0, left[NUM_EXPERTS];
    for (int e = 0; e < NUM_EXPERTS; e++) {
      p[e] = load(logits[e]);
      maximum = p[e] > maximum ? p[e] : maximum;
    }
    for (int e = 0; e < NUM_EXPERTS; e++) {
      p[e] = expf(p[e] - maximum);
      sum += p[e];
    }
    for (int e = 0; e < NUM_EXPERTS; e++) left[e] = p[e] /= sum;
    float chosen = 0;
    for (int k = 0; k < TOP_K; k++) {
      int best = 0;
      for (int e = 1; e < NUM_EXPERTS; e++) {
        if (left[e] > left[best]) best = e;
      }
      expert[t * TOP_K + k] = best;
      weight[t * TOP_K + k] = p[best];
      chosen += p[best];
      left[best] = -1;
      count[best]++;
    }
    for (int k = 0; k < TOP_K; k++) weight[t * TOP_K + k] /= chosen;
  }
}

// Copies every token's row of `x` once per expert into `rows`, and notes where in `slot`.
void gather_by_expert(long tokens, const int32_t* expert, const int32_t* count,
                      const Activation* x, int32_t* slot, Activation* rows) {
  long next[NUM_EXPERTS + 1];
  segment_starts(count, next);
  clear_padding(count, next, rows);
  for (long i = 0; i < tokens * TOP_K; i++) {
    long row = next[expert[i]]++;
    slot[i] = (int32_t)row;
    memcpy(rows + row * HIDDEN_SIZE, x + i / TOP_K * HIDDEN_SIZE,
           HIDDEN_SIZE * sizeof(Activation));
  }
}

// out = silu(gate) · up. A row of `gate_up` holds `size` gates, then `size` ups; rows of it are
// `stride` apart, those of `out` are dense.
void swiglu_forward(long rows, long size, long stride, const Activation* gate_up,
                    Activation* out) {
  for (long t = 0; t < rows; t++) {
    const Activation *gate = gate_up + t * stride, *up = gate + size;
    for (long i = 0; i < size; i++) out[t * size + i] = store(silu(load(gate[i])) * load(up[i]));
  }
}

// `d_gate_up` has the layout and the stride of `gate_up`.
void swiglu_backward(long rows, long size, long stride, const Activation* gate_up,
                     const Activation* d_out, Activation* d_gate_up) {
  for (long t = 0; t < rows; t++) {
    const Activation *gate = gate_up + t * stride, *up = gate + size;
    Activation *d_gate = d_gate_up + t * stride, *d_up = d_gate + size;
    for (long i = 0; i < size; i++) {
      float g = load(gate[i]), d = load(d_out[t * size + i]);
      d_gate[i] = store(d * load(up[i]) * silu_slope(g));
      d_up[i] = store(d * silu(g));
    }
  }
}

// out = sigmoid(shared gate) · shared + Σ_k weight[k] · rows[slot[k]].
void combine_forward(long tokens, const Activation* router, const Activation* rows,
                     const Activation* shared, const int32_t* slot, const float* weight,
                     Activation* out) {
  for (long t = 0; t < tokens; t++) {
    float sum[HIDDEN_SIZE], gate = sigmoid(load(router[t * ROUTER_ROW + NUM_EXPERTS]));
    for (int i = 0; i < HIDDEN_SIZE; i++) sum[i] = gate * load(shared[t * HIDDEN_SIZE + i]);
    add_expert_rows(rows, slot + t * TOP_K, weight + t * TOP_K, sum);
    for (int i = 0; i < HIDDEN_SIZE; i++) out[t * HIDDEN_SIZE + i] = store(sum[i]);
  }
}

// Gradients of the expert rows, of the shared expert, and of the router logits and the shared
// gate (the rest of `d_router` is left alone). The logits also get the gradient of the balance
// loss `balance · NUM_EXPERTS · Σ_e share[e] · mean_t probability[t, e]`, where `share` is the
// fraction of tokens sent to e, taken as a constant.
void combine_backward(long tokens, const Activation* router, const Activation* rows,
                      const Activation* shared, const int32_t* slot, const int32_t* expert,
                      const float* weight, const float* probability, const int32_t* count,
                      float balance, const Activation* d_out, Activation* d_rows,
                      Activation* d_shared, Activation* d_router) {
  float load_slope[NUM_EXPERTS];
  for (int e = 0; e < NUM_EXPERTS; e++) {
    load_slope[e] = balance * NUM_EXPERTS * (float)count[e] / tokens / tokens;
  }
  long start[NUM_EXPERTS + 1];
  segment_starts(count, start);
  clear_padding(count, start, d_rows);
  for (long t = 0; t < tokens; t++) {
    const Activation* d = d_out + t * HIDDEN_SIZE;
    Activation* d_logits = d_router + t * ROUTER_ROW;
    float gate = sigmoid(load(router[t * ROUTER_ROW + NUM_EXPERTS])), d_gate = 0;
    for (int i = 0; i < HIDDEN_SIZE; i++) {
      d_gate += load(d[i]) * load(shared[t * HIDDEN_SIZE + i]);
      d_shared[t * HIDDEN_SIZE + i] = store(gate * load(d[i]));
    }
    float d_weight[TOP_K], weighted = 0;
    for (int k = 0; k < TOP_K; k++) {
      long offset = (long)slot[t * TOP_K + k] * HIDDEN_SIZE;
      float w = weight[t * TOP_K + k], sum = 0;
      for (int i = 0; i < HIDDEN_SIZE; i++) {
        sum += load(d[i]) * load(rows[offset + i]);
        d_rows[offset + i] = store(w * load(d[i]));
      }
      d_weight[k] = sum;
      weighted += w * sum;
    }
    // Softmax backward, of the balance loss over all experts and of the weights over the chosen.
    const float* p = probability + t * NUM_EXPERTS;
    float mean_slope = 0, d_logit[NUM_EXPERTS];
    for (int e = 0; e < NUM_EXPERTS; e++) mean_slope += load_slope[e] * p[e];
    for (int e = 0; e < NUM_EXPERTS; e++) d_logit[e] = p[e] * (load_slope[e] - mean_slope);
    for (int k = 0; k < TOP_K; k++) {
      d_logit[expert[t * TOP_K + k]] += weight[t * TOP_K + k] * (d_weight[k] - weighted);
    }
    for (int e = 0; e < NUM_EXPERTS; e++) d_logits[e] = store(d_logit[e]);
    d_logits[NUM_EXPERTS] = store(d_gate * gate * (1 - gate));
  }
}

// d_x += Σ_k d_rows[slot[k]]: the gradient of `gather_by_expert`.
void gather_backward(long tokens, const int32_t* slot, const Activation* d_rows,
                     Activation* d_x) {
  static const std::vector<float> ones(TOP_K, 1.f);
  for (long t = 0; t < tokens; t++) {
    float sum[HIDDEN_SIZE];
    for (int i = 0; i < HIDDEN_SIZE; i++) sum[i] = load(d_x[t * HIDDEN_SIZE + i]);
    add_expert_rows(d_rows, slot + t * TOP_K, ones.data(), sum);
    for (int i = 0; i < HIDDEN_SIZE; i++) d_x[t * HIDDEN_SIZE + i] = store(sum[i]);
  }
}

}  // extern "C"
