// Gated delta net between its input projection and its output projection, forward and backward.
//
// A row of the joint projection: q | k | v [CONV_SIZE], z [VALUE_SIZE], b and a [VALUE_HEADS].
// Per token: causal convolution and SiLU over q | k | v, q and k to unit length, then per head
//
//   S ← decay · S;  delta = beta · (v − Sᵀ k);  S ← S + k ⊗ delta;  out = Sᵀ q
//
// and a gated RMS norm of `out`. decay = exp(−exp(A_log) · softplus(a + dt_bias)),
// beta = sigmoid(b). S is [KEY_DIM, VALUE_DIM]; query and value heads share key heads in order.
//
// Source: Yang, Kautz, Hatamizadeh, Gated Delta Networks, 2024, arXiv:2412.06464.
#include "common.h"

static constexpr int KEY_SIZE = KEY_HEADS * KEY_DIM;
static constexpr int VALUE_SIZE = VALUE_HEADS * VALUE_DIM;
static constexpr int CONV_SIZE = 2 * KEY_SIZE + VALUE_SIZE;
static constexpr int ROW = CONV_SIZE + VALUE_SIZE + 2 * VALUE_HEADS;
static constexpr int STATE = KEY_DIM * VALUE_DIM;
// The backward pass keeps the state of every CHUNK-th token and computes the others again.
static constexpr long CHUNK = 64;
static const float QUERY_SCALE = 1.f / sqrtf((float)KEY_DIM);

struct Weights {
  const float *conv, *A_log, *dt_bias, *norm;  // conv is [CONV_TAPS, CONV_SIZE]
};
struct Gradients {
  float *conv, *A_log, *dt_bias, *norm;
};

// One document up to the recurrence.
struct Document {
  long tokens;
  std::vector<float> conv, mixed;               // [tokens, CONV_SIZE], before and after SiLU
  std::vector<float> query, key;                // [tokens, KEY_SIZE], unit length, query scaled
  std::vector<float> query_scale, key_scale;    // [tokens, KEY_HEADS], 1 / length
  std::vector<float> decay, beta;               // [tokens, VALUE_HEADS]

  const float* query_of(long t, int head) const { return &query[t * KEY_SIZE + key_head(head)]; }
  const float* key_of(long t, int head) const { return &key[t * KEY_SIZE + key_head(head)]; }
  const float* value_of(long t, int head) const { return &mixed[value_index(t, head)]; }
  static long key_head(int head) { return head / (VALUE_HEADS / KEY_HEADS) * KEY_DIM; }
  static long value_index(long t, int head) {
    return t * CONV_SIZE + 2 * KEY_SIZE + head * VALUE_DIM;
  }
};

static inline float softplus(float x) { return x > 20 ? x : log1pf(expf(x)); }

static void convolve(const Activation* rows, const float* weight, Document& d) {
  for (long t = 0; t < d.tokens; t++) {
    float* out = &d.conv[t * CONV_SIZE];
    memset(out, 0, CONV_SIZE * sizeof(float));
    for (int back = 0; back < CONV_TAPS && t >= back; back++) {
      const Activation* x = rows + (t - back) * ROW;
      const float* tap = weight + (CONV_TAPS - 1 - back) * CONV_SIZE;
      for (int i = 0; i < CONV_SIZE; i++) out[i] += tap[i] * load(x[i]);
    }
    for (int i = 0; i < CONV_SIZE; i++) d.mixed[t * CONV_SIZE + i] = silu(out[i]);
  }
}

static void convolve_backward(const Activation* rows, const float* weight, const float* d_conv,
                              long tokens, Activation* d_rows, float* d_weight) {
  for (long t = 0; t < tokens; t++) {
    const Activation* x = rows + t * ROW;
    float d_x[CONV_SIZE] = {0};
    for (int ahead = 0; ahead < CONV_TAPS && t + ahead < tokens; ahead++) {
      long tap = (CONV_TAPS - 1 - ahead) * CONV_SIZE;
      const float* d = d_conv + (t + ahead) * CONV_SIZE;
      for (int i = 0; i < CONV_SIZE; i++) {
        d_x[i] += weight[tap + i] * d[i];
        d_weight[tap + i] += d[i] * load(x[i]);
      }
    }
    for (int i = 0; i < CONV_SIZE; i++) d_rows[t * ROW + i] = store(d_x[i]);
  }
}

// x / length(x) · factor; returns 1 / length.
static inline float to_unit_length(const float* x, float factor, float* out) {
  float scale = 1.f / sqrtf(sum_of_squares(x, KEY_DIM) + EPSILON);
  for (int i = 0; i < KEY_DIM; i++) out[i] = x[i] * scale * factor;
  return scale;
}

// `unit` and `d_unit` belong to the scaled result of `to_unit_length`.
static inline void to_unit_length_backward(const float* unit, const float* d_unit, float scale,
                                           float factor, float* d_x) {
  float along = 0;
  for (int i = 0; i < KEY_DIM; i++) along += unit[i] * d_unit[i];
  for (int i = 0; i < KEY_DIM; i++) {
    d_x[i] = scale * (d_unit[i] * factor - unit[i] / factor * along);
  }
}

static void prepare(const Activation* rows, long tokens, const Weights& w, Document& d) {
  d.tokens = tokens;
  for (auto* v : {&d.conv, &d.mixed}) v->resize(tokens * CONV_SIZE);
  for (auto* v : {&d.query, &d.key}) v->resize(tokens * KEY_SIZE);
  for (auto* v : {&d.query_scale, &d.key_scale}) v->resize(tokens * KEY_HEADS);
  for (auto* v : {&d.decay, &d.beta}) v->resize(tokens * VALUE_HEADS);
  convolve(rows, w.conv, d);
  for (long t = 0; t < tokens; t++) {
    for (int h = 0; h < KEY_HEADS; h++) {
      const float* q = &d.mixed[t * CONV_SIZE + h * KEY_DIM];
      long at = t * KEY_SIZE + h * KEY_DIM;
      d.query_scale[t * KEY_HEADS + h] = to_unit_length(q, QUERY_SCALE, &d.query[at]);
      d.key_scale[t * KEY_HEADS + h] = to_unit_length(q + KEY_SIZE, 1.f, &d.key[at]);
    }
    const Activation *b = rows + t * ROW + CONV_SIZE + VALUE_SIZE, *a = b + VALUE_HEADS;
    for (int h = 0; h < VALUE_HEADS; h++) {
      float step = softplus(load(a[h]) + w.dt_bias[h]);
      d.decay[t * VALUE_HEADS + h] = expf(-expf(w.A_log[h]) * step);
      d.beta[t * VALUE_HEADS + h] = sigmoid(load(b[h]));
    }
  }
}

// One step of the recurrence; `state` changes in place, `delta` [VALUE_DIM] is what was written.
static inline void advance(const Document& d, long t, int head, float* __restrict state,
                           float* __restrict delta) {
  const float* __restrict key = d.key_of(t, head);
  const float* __restrict value = d.value_of(t, head);
  float decay = d.decay[t * VALUE_HEADS + head], beta = d.beta[t * VALUE_HEADS + head];
  float known[VALUE_DIM] = {0};
  for (int i = 0; i < KEY_DIM; i++) {
    for (int j = 0; j < VALUE_DIM; j++) {
      float s = state[i * VALUE_DIM + j] * decay;
      state[i * VALUE_DIM + j] = s;
      known[j] += key[i] * s;
    }
  }
  for (int j = 0; j < VALUE_DIM; j++) delta[j] = (value[j] - known[j]) * beta;
  for (int i = 0; i < KEY_DIM; i++) {
    for (int j = 0; j < VALUE_DIM; j++) state[i * VALUE_DIM + j] += key[i] * delta[j];
  }
}

static inline void read(const float* __restrict state, const float* __restrict query,
                        float* __restrict out) {
  float sum[VALUE_DIM] = {0};
  for (int i = 0; i < KEY_DIM; i++) {
    for (int j = 0; j < VALUE_DIM; j++) sum[j] += query[i] * state[i * VALUE_DIM + j];
  }
  memcpy(out, sum, sizeof sum);
}

// Gradient of y = out / rms(out) · norm · silu(z): that of z, of norm, and in `d_out` of out.
static inline void gated_norm_backward(const float* out, const Activation* z, const float* norm,
                                       const Activation* d_y, Activation* d_z, float* d_norm,
                                       float* d_out) {
  float scale = inverse_rms(out, VALUE_DIM), mean = 0;
  for (int j = 0; j < VALUE_DIM; j++) {
    float gate = load(z[j]), open = silu(gate), d = load(d_y[j]), normed = out[j] * scale;
    d_z[j] = store(d * norm[j] * normed * silu_slope(gate));
    d_norm[j] += d * normed * open;
    d_out[j] = d * norm[j] * open;
    mean += d_out[j] * normed;
  }
  mean /= VALUE_DIM;
  for (int j = 0; j < VALUE_DIM; j++) d_out[j] = scale * (d_out[j] - out[j] * scale * mean);
}

struct StepGradients {
  float decay, beta;
};

// Gradient of `advance` followed by `read`. `before` and `after` are the states around the step;
// `d_state` comes in as the gradient of `after` by later steps and leaves as that of `before`.
// Adds to `d_query` and `d_key`, writes `d_value`.
static inline StepGradients advance_backward(const Document& d, long t, int head,
                                             const float* __restrict before,
                                             const float* __restrict after,
                                             const float* __restrict delta,
                                             const float* __restrict d_out,
                                             float* __restrict d_state, float* __restrict d_query,
                                             float* __restrict d_key, float* __restrict d_value) {
  const float* __restrict query = d.query_of(t, head);
  const float* __restrict key = d.key_of(t, head);
  float decay = d.decay[t * VALUE_HEADS + head], beta = d.beta[t * VALUE_HEADS + head];
  float d_delta[VALUE_DIM] = {0}, d_known[VALUE_DIM];
  for (int i = 0; i < KEY_DIM; i++) {
    for (int j = 0; j < VALUE_DIM; j++) {
      float s = d_state[i * VALUE_DIM + j] + query[i] * d_out[j];
      d_state[i * VALUE_DIM + j] = s;
      d_delta[j] += key[i] * s;
    }
  }
  StepGradients step = {0, 0};
  for (int j = 0; j < VALUE_DIM; j++) {
    step.beta += d_delta[j] * delta[j];
    d_value[j] = d_delta[j] * beta;
    d_known[j] = -d_value[j];
  }
  step.beta /= beta;  // delta = (value − known) · beta
  for (int i = 0; i < KEY_DIM; i++) {
    float from_read = 0, from_write = 0, from_decay = 0;
    for (int j = 0; j < VALUE_DIM; j++) {
      float old = before[i * VALUE_DIM + j], s = d_state[i * VALUE_DIM + j];
      from_read += after[i * VALUE_DIM + j] * d_out[j];
      from_write += s * delta[j] + decay * old * d_known[j];
      s += key[i] * d_known[j];
      from_decay += s * old;
      d_state[i * VALUE_DIM + j] = s * decay;
    }
    d_query[i] += from_read;
    d_key[i] += from_write;
    step.decay += from_decay;
  }
  return step;
}

// Scratch of the backward pass, kept between documents.
struct Scratch {
  std::vector<float> borders;                      // [chunks, STATE], the state before each chunk
  std::vector<float> states, deltas;               // of one chunk: [CHUNK + 1, STATE], [CHUNK, ..]
  std::vector<float> d_query, d_key;               // [tokens, KEY_SIZE]
  std::vector<float> d_mixed, d_conv;              // [tokens, CONV_SIZE]
};

static void store_borders(const Document& d, int head, Scratch& s) {
  long chunks = (d.tokens + CHUNK - 1) / CHUNK;
  s.borders.resize(chunks * STATE);
  float state[STATE] = {0}, delta[VALUE_DIM];
  for (long t = 0; t <= (chunks - 1) * CHUNK; t++) {
    if (t % CHUNK == 0) memcpy(&s.borders[t / CHUNK * STATE], state, sizeof state);
    advance(d, t, head, state, delta);
  }
}

static void recompute_chunk(const Document& d, int head, long first, long end, Scratch& s) {
  memcpy(&s.states[0], &s.borders[first / CHUNK * STATE], STATE * sizeof(float));
  for (long t = first; t < end; t++) {
    float* state = &s.states[(t - first + 1) * STATE];
    memcpy(state, state - STATE, STATE * sizeof(float));
    advance(d, t, head, state, &s.deltas[(t - first) * VALUE_DIM]);
  }
}

static void head_backward(const Document& d, int head, const Activation* rows, const Weights& w,
                          const Activation* d_out, Activation* d_rows, const Gradients& g,
                          Scratch& s) {
  store_borders(d, head, s);
  float d_state[STATE] = {0}, out[VALUE_DIM], d_read[VALUE_DIM];
  float rate = expf(w.A_log[head]);
  for (long first = (d.tokens - 1) / CHUNK * CHUNK; first >= 0; first -= CHUNK) {
    long end = first + CHUNK < d.tokens ? first + CHUNK : d.tokens;
    recompute_chunk(d, head, first, end, s);
    for (long t = end - 1; t >= first; t--) {
      const float *before = &s.states[(t - first) * STATE], *after = before + STATE;
      long z = t * ROW + CONV_SIZE + head * VALUE_DIM, key = t * KEY_SIZE + d.key_head(head);
      read(after, d.query_of(t, head), out);
      gated_norm_backward(out, rows + z, w.norm, d_out + t * VALUE_SIZE + head * VALUE_DIM,
                          d_rows + z, g.norm, d_read);
      StepGradients step = advance_backward(
          d, t, head, before, after, &s.deltas[(t - first) * VALUE_DIM], d_read, d_state,
          &s.d_query[key], &s.d_key[key], &s.d_mixed[d.value_index(t, head)]);
      float decay = d.decay[t * VALUE_HEADS + head], beta = d.beta[t * VALUE_HEADS + head];
      long b = t * ROW + CONV_SIZE + VALUE_SIZE + head, a = b + VALUE_HEADS;
      float x = load(rows[a]) + w.dt_bias[head], d_exponent = -step.decay * decay * rate;
      d_rows[b] = store(step.beta * beta * (1 - beta));
      d_rows[a] = store(d_exponent * sigmoid(x));
      g.dt_bias[head] += d_exponent * sigmoid(x);
      g.A_log[head] += d_exponent * softplus(x);
    }
  }
}

// From the gradients of query, key and value to those of the convolution's output.
static void mixed_backward(const Document& d, Scratch& s) {
  for (long t = 0; t < d.tokens; t++) {
    for (int h = 0; h < KEY_HEADS; h++) {
      long at = t * KEY_SIZE + h * KEY_DIM, scale = t * KEY_HEADS + h;
      float* d_q = &s.d_mixed[t * CONV_SIZE + h * KEY_DIM];
      to_unit_length_backward(&d.query[at], &s.d_query[at], d.query_scale[scale], QUERY_SCALE, d_q);
      to_unit_length_backward(&d.key[at], &s.d_key[at], d.key_scale[scale], 1.f, d_q + KEY_SIZE);
    }
  }
  for (long i = 0; i < d.tokens * CONV_SIZE; i++) {
    s.d_conv[i] = s.d_mixed[i] * silu_slope(d.conv[i]);
  }
}

extern "C" {

// `rows` is the joint projection [tokens, ROW], `out` is [tokens, VALUE_SIZE].
void delta_net_forward(long documents, const long* starts, const Activation* rows,
                       const float* conv, const float* A_log, const float* dt_bias,
                       const float* norm, Activation* out) {
  Weights w = {conv, A_log, dt_bias, norm};
  Document d;
  for (long document = 0; document < documents; document++) {
    long start = starts[document];
    const Activation* first = rows + start * ROW;
    prepare(first, starts[document + 1] - start, w, d);
    for (int head = 0; head < VALUE_HEADS; head++) {
      alignas(64) float state[STATE] = {0};
      float delta[VALUE_DIM], read_out[VALUE_DIM];
      for (long t = 0; t < d.tokens; t++) {
        advance(d, t, head, state, delta);
        read(state, d.query_of(t, head), read_out);
        float scale = inverse_rms(read_out, VALUE_DIM);
        const Activation* z = first + t * ROW + CONV_SIZE + head * VALUE_DIM;
        Activation* y = out + (start + t) * VALUE_SIZE + head * VALUE_DIM;
        for (int j = 0; j < VALUE_DIM; j++) {
          y[j] = store(read_out[j] * scale * norm[j] * silu(load(z[j])));
        }
      }
    }
  }
}

// Writes `d_rows`; adds to the gradients of the weights.
void delta_net_backward(long documents, const long* starts, const Activation* rows,
                        const float* conv, const float* A_log, const float* dt_bias,
                        const float* norm, const Activation* d_out, Activation* d_rows,
                        float* d_conv, float* d_A_log, float* d_dt_bias, float* d_norm) {
  Weights w = {conv, A_log, dt_bias, norm};
  Gradients g = {d_conv, d_A_log, d_dt_bias, d_norm};
  Document d;
  Scratch s;
  s.states.resize((CHUNK + 1) * STATE);
  s.deltas.resize(CHUNK * VALUE_DIM);
  for (long document = 0; document < documents; document++) {
    long start = starts[document], tokens = starts[document + 1] - start;
    const Activation* first = rows + start * ROW;
    Activation* d_first = d_rows + start * ROW;
    prepare(first, tokens, w, d);
    for (auto* v : {&s.d_query, &s.d_key}) v->assign(tokens * KEY_SIZE, 0.f);
    for (auto* v : {&s.d_mixed, &s.d_conv}) v->resize(tokens * CONV_SIZE);
    for (int head = 0; head < VALUE_HEADS; head++) {
      head_backward(d, head, first, w, d_out + start * VALUE_SIZE, d_first, g, s);
    }
    mixed_backward(d, s);
    convolve_backward(first, conv, s.d_conv.data(), tokens, d_first, d_conv);
  }
}

}  // extern "C"
