// Gated full attention between its input projections and its output projection.
//
// A row of the joint projection: query and gate [HEAD_DIM each] per head, then all keys, then all
// values. Query and key: RMS norm with a zero-centred weight, then rope on the first ROPE_DIM
// dimensions, split in halves. out = softmax(q · k / √HEAD_DIM) v · sigmoid(gate), causal.
//
// One head of one document at a time, row by row of the score matrix; keys and values also lie
// transposed, so that scores of neighbouring tokens are computed side by side.
#include "common.h"

static constexpr int QUERY_SIZE = NUM_HEADS * HEAD_DIM * 2;
static constexpr int ROW = QUERY_SIZE + 2 * NUM_KV_HEADS * HEAD_DIM;
static constexpr int OUT_SIZE = NUM_HEADS * HEAD_DIM;
static constexpr int GROUP = NUM_HEADS / NUM_KV_HEADS;
static constexpr int HALF = ROPE_DIM / 2;
// Score rows are computed in whole vectors of this many tokens.
static constexpr long LANES = 16;
static const float SCALE = 1.f / sqrtf((float)HEAD_DIM);

static inline long whole_vectors(long tokens) { return (tokens + LANES - 1) / LANES * LANES; }

struct Angle {
  const float *cosine, *sine;  // [HALF]
};

// One key/value head of one document.
struct KeyValues {
  long tokens, stride;                                   // stride: tokens in whole vectors
  std::vector<float> key, value;                         // [tokens, HEAD_DIM]
  std::vector<float> key_transposed, value_transposed;   // [HEAD_DIM, stride]
  std::vector<float> key_scale;                          // [tokens], 1 / rms
  std::vector<float> cosine, sine;                       // [tokens, HALF]

  Angle angle(long t) const { return {&cosine[t * HALF], &sine[t * HALF]}; }
};

// Norm and rope of one head; returns 1 / rms.
static float norm_rope(const Activation* x, const float* weight, Angle angle, float* out) {
  float normed[HEAD_DIM];
  for (int i = 0; i < HEAD_DIM; i++) normed[i] = load(x[i]);
  float scale = inverse_rms(normed, HEAD_DIM);
  for (int i = 0; i < HEAD_DIM; i++) normed[i] *= scale * (1.f + weight[i]);
  for (int i = 0; i < HALF; i++) {
    float a = normed[i], b = normed[i + HALF], c = angle.cosine[i], s = angle.sine[i];
    out[i] = a * c - b * s;
    out[i + HALF] = b * c + a * s;
  }
  for (int i = ROPE_DIM; i < HEAD_DIM; i++) out[i] = normed[i];
  return scale;
}

// `d_out` is overwritten.
static void norm_rope_backward(const Activation* x, const float* weight, Angle angle, float scale,
                               float* d_out, Activation* d_x, float* d_weight) {
  for (int i = 0; i < HALF; i++) {
    float a = d_out[i], b = d_out[i + HALF], c = angle.cosine[i], s = angle.sine[i];
    d_out[i] = a * c + b * s;
    d_out[i + HALF] = b * c - a * s;
  }
  float mean = 0;
  for (int i = 0; i < HEAD_DIM; i++) {
    float normed = load(x[i]) * scale;
    d_weight[i] += d_out[i] * normed;
    d_out[i] *= 1.f + weight[i];
    mean += d_out[i] * normed;
  }
  mean /= HEAD_DIM;
  for (int i = 0; i < HEAD_DIM; i++) d_x[i] = store(scale * (d_out[i] - load(x[i]) * scale * mean));
}

static void extend_angles(long tokens, float theta, KeyValues& kv) {
  long known = kv.cosine.size() / HALF;
  if (known >= tokens) return;
  kv.cosine.resize(tokens * HALF);
  kv.sine.resize(tokens * HALF);
  for (long t = known; t < tokens; t++) {
    for (int i = 0; i < HALF; i++) {
      double angle = t / pow(theta, 2.0 * i / ROPE_DIM);
      kv.cosine[t * HALF + i] = cos(angle);
      kv.sine[t * HALF + i] = sin(angle);
    }
  }
}

static void prepare(const Activation* rows, long tokens, int kv_head, const float* key_norm,
                    float theta, KeyValues& kv) {
  kv.tokens = tokens;
  kv.stride = whole_vectors(tokens);
  for (auto* v : {&kv.key, &kv.value}) v->resize(tokens * HEAD_DIM);
  for (auto* v : {&kv.key_transposed, &kv.value_transposed}) v->assign(HEAD_DIM * kv.stride, 0.f);
  kv.key_scale.resize(tokens);
  extend_angles(tokens, theta, kv);
  for (long t = 0; t < tokens; t++) {
    const Activation* key = rows + t * ROW + QUERY_SIZE + kv_head * HEAD_DIM;
    const Activation* value = key + NUM_KV_HEADS * HEAD_DIM;
    kv.key_scale[t] = norm_rope(key, key_norm, kv.angle(t), &kv.key[t * HEAD_DIM]);
    for (int i = 0; i < HEAD_DIM; i++) {
      kv.value[t * HEAD_DIM + i] = kv.value_transposed[i * kv.stride + t] = load(value[i]);
      kv.key_transposed[i * kv.stride + t] = kv.key[t * HEAD_DIM + i];
    }
  }
}

// out[j] = factor · vector · column j of `matrix` [HEAD_DIM, stride], for j < n. Four rows at a
// time, so that `out` is read and written a quarter as often.
static inline void dot_columns(const float* __restrict matrix, long stride,
                               const float* __restrict vector, float factor, long n,
                               float* __restrict out) {
  for (long j = 0; j < n; j++) out[j] = 0;
  for (int i = 0; i < HEAD_DIM; i += 4) {
    const float *m0 = matrix + i * stride, *m1 = m0 + stride, *m2 = m1 + stride, *m3 = m2 + stride;
    float v0 = vector[i] * factor, v1 = vector[i + 1] * factor;
    float v2 = vector[i + 2] * factor, v3 = vector[i + 3] * factor;
    for (long j = 0; j < n; j++) out[j] += v0 * m0[j] + v1 * m1[j] + v2 * m2[j] + v3 * m3[j];
  }
}

// p[j] = softmax over j ≤ t of query · key[j]; zero up to the end of the vector.
static inline void attend(const KeyValues& kv, long t, const float* __restrict query,
                          float* __restrict p) {
  long n = whole_vectors(t + 1);
  dot_columns(kv.key_transposed.data(), kv.stride, query, SCALE, n, p);
  float maximum = -1e30f, sum = 0;
  for (long j = 0; j <= t; j++) maximum = p[j] > maximum ? p[j] : maximum;
  for (long j = 0; j <= t; j++) {
    p[j] = expf(p[j] - maximum);
    sum += p[j];
  }
  sum = 1.f / sum;
  for (long j = 0; j <= t; j++) p[j] *= sum;
  for (long j = t + 1; j < n; j++) p[j] = 0;
}

// out = Σ_{j ≤ t} p[j] · rows[j].
static inline void mix(const float* __restrict p, const float* __restrict rows, long t,
                       float* __restrict out) {
  float sum[HEAD_DIM] = {0};
  for (long j = 0; j <= t; j++) {
    for (int i = 0; i < HEAD_DIM; i++) sum[i] += p[j] * rows[j * HEAD_DIM + i];
  }
  memcpy(out, sum, sizeof sum);
}

// Buffers of the backward pass for one key/value head.
struct Scratch {
  std::vector<float> p, d_score;       // [stride]
  std::vector<float> d_key, d_value;   // [tokens, HEAD_DIM], summed over the heads of the group

  void reset(const KeyValues& kv) {
    for (auto* v : {&p, &d_score}) v->resize(kv.stride);
    for (auto* v : {&d_key, &d_value}) v->assign(kv.tokens * HEAD_DIM, 0.f);
  }
};

// One query of one head: writes the gradient of its query and gate, adds to those of keys and
// values.
static void query_backward(const KeyValues& kv, long t, const Activation* query_gate,
                           const float* query_norm, const Activation* d_y, Activation* d_query_gate,
                           float* d_query_norm, Scratch& s) {
  const Activation* gate = query_gate + HEAD_DIM;
  float query[HEAD_DIM], out[HEAD_DIM], d_out[HEAD_DIM], d_query[HEAD_DIM];
  float scale = norm_rope(query_gate, query_norm, kv.angle(t), query);
  attend(kv, t, query, s.p.data());
  mix(s.p.data(), kv.value.data(), t, out);
  float along = 0;
  for (int i = 0; i < HEAD_DIM; i++) {
    float open = sigmoid(load(gate[i])), d = load(d_y[i]);
    d_out[i] = d * open;
    d_query_gate[HEAD_DIM + i] = store(d * out[i] * open * (1 - open));
    along += d_out[i] * out[i];
  }
  long n = whole_vectors(t + 1);
  float* __restrict d_score = s.d_score.data();
  const float* __restrict p = s.p.data();
  dot_columns(kv.value_transposed.data(), kv.stride, d_out, 1.f, n, d_score);
  for (long j = 0; j < n; j++) d_score[j] = p[j] * (d_score[j] - along) * SCALE;
  mix(d_score, kv.key.data(), t, d_query);
  for (long j = 0; j <= t; j++) {
    float* __restrict d_key = &s.d_key[j * HEAD_DIM];
    float* __restrict d_value = &s.d_value[j * HEAD_DIM];
    for (int i = 0; i < HEAD_DIM; i++) {
      d_key[i] += d_score[j] * query[i];
      d_value[i] += p[j] * d_out[i];
    }
  }
  norm_rope_backward(query_gate, query_norm, kv.angle(t), scale, d_query, d_query_gate,
                     d_query_norm);
}

extern "C" {

// `rows` is the joint projection [tokens, ROW], `out` is [tokens, OUT_SIZE].
void attention_forward(long documents, const long* starts, const Activation* rows,
                       const float* query_norm, const float* key_norm, float theta,
                       Activation* out) {
  KeyValues kv;
  std::vector<float> p;
  float query[HEAD_DIM], mixed[HEAD_DIM];
  for (long document = 0; document < documents; document++) {
    long start = starts[document], tokens = starts[document + 1] - start;
    const Activation* first = rows + start * ROW;
    for (int head = 0; head < NUM_HEADS; head++) {
      if (head % GROUP == 0) prepare(first, tokens, head / GROUP, key_norm, theta, kv);
      p.resize(kv.stride);
      for (long t = 0; t < tokens; t++) {
        const Activation* query_gate = first + t * ROW + head * 2 * HEAD_DIM;
        norm_rope(query_gate, query_norm, kv.angle(t), query);
        attend(kv, t, query, p.data());
        mix(p.data(), kv.value.data(), t, mixed);
        Activation* y = out + (start + t) * OUT_SIZE + head * HEAD_DIM;
        for (int i = 0; i < HEAD_DIM; i++) {
          y[i] = store(mixed[i] * sigmoid(load(query_gate[HEAD_DIM + i])));
        }
      }
    }
  }
}

// Writes `d_rows`; adds to the gradients of the norms.
void attention_backward(long documents, const long* starts, const Activation* rows,
                        const float* query_norm, const float* key_norm, float theta,
                        const Activation* d_out, Activation* d_rows, float* d_query_norm,
                        float* d_key_norm) {
  KeyValues kv;
  Scratch s;
  for (long document = 0; document < documents; document++) {
    long start = starts[document], tokens = starts[document + 1] - start;
    for (int kv_head = 0; kv_head < NUM_KV_HEADS; kv_head++) {
      prepare(rows + start * ROW, tokens, kv_head, key_norm, theta, kv);
      s.reset(kv);
      for (int head = kv_head * GROUP; head < (kv_head + 1) * GROUP; head++) {
        for (long t = 0; t < tokens; t++) {
          long query = (start + t) * ROW + head * 2 * HEAD_DIM;
          const Activation* d_y = d_out + (start + t) * OUT_SIZE + head * HEAD_DIM;
          query_backward(kv, t, rows + query, query_norm, d_y, d_rows + query, d_query_norm, s);
        }
      }
      for (long t = 0; t < tokens; t++) {
        long key = (start + t) * ROW + QUERY_SIZE + kv_head * HEAD_DIM;
        Activation* d_value = d_rows + key + NUM_KV_HEADS * HEAD_DIM;
        norm_rope_backward(rows + key, key_norm, kv.angle(t), kv.key_scale[t],
                           &s.d_key[t * HEAD_DIM], d_rows + key, d_key_norm);
        for (int i = 0; i < HEAD_DIM; i++) d_value[i] = store(s.d_value[t * HEAD_DIM + i]);
      }
    }
  }
}

}  // extern "C"
