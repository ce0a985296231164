// The law of each operation, for the C++ that stoker writes for a graph. Sizes are template or constant arguments, so
// that the compiler unrolls and vectorises; names and laws are those of stoker/deploy/ir/operations.py.
//
// Sums of products run in float where their proven width is at most 25 bits, else in double up to 54: whole numbers of
// that size are exact in any order, and fused multiply-adds do twice the work of integer instructions.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

namespace stoker {

using i32 = std::int32_t;
using i64 = std::int64_t;

struct Requantiser {
  int shift;
  i32 zero, low, high;
};

static constexpr Requantiser by(int shift, i32 zero, i32 low, i32 high) { return {shift, zero, low, high}; }

static inline i32 clamped(i64 x, i32 low, i32 high) { return i32(x < low ? low : x > high ? high : x); }

static inline i32 requantised(i64 acc, i64 multiplier, const Requantiser& q) {
  return clamped(((acc * multiplier + ((i64(1) << q.shift) >> 1)) >> q.shift) + q.zero, q.low, q.high);
}

// Outputs are computed a few of the machine's registers at once: with wider vectors than it has, compilers keep the
// sums in memory.
#if defined(__AVX512F__)
constexpr int VECTOR_BYTES = 64, REGISTERS = 32;
#elif defined(__AVX__)
constexpr int VECTOR_BYTES = 32, REGISTERS = 16;
#elif defined(__aarch64__)
constexpr int VECTOR_BYTES = 16, REGISTERS = 32;
#else
constexpr int VECTOR_BYTES = 16, REGISTERS = 16;
#endif
template <class A> struct Vector;
template <> struct Vector<float> {
  typedef float type __attribute__((vector_size(VECTOR_BYTES), aligned(4), may_alias));
};
template <> struct Vector<double> {
  typedef double type __attribute__((vector_size(VECTOR_BYTES), aligned(8), may_alias));
};
constexpr int LANES = 16;  // outputs are padded to a multiple, which is whole vectors of either type
constexpr int padded_lanes(int n) { return (n + LANES - 1) / LANES * LANES; }

// acc[p][o] = bias[o] + sum of x[p][...] * w[...][o] for P rows and M vectors of outputs. What a row sums over is
// `outer` times `inner` runs of `length` numbers that lie together.
template <class A, int P, int M>
static inline void block(const A* const* rows, int outer, i64 outer_step, int inner, i64 inner_step, int length,
                         const A* w, const A* bias, int stride, A* acc) {
  using V = typename Vector<A>::type;
  constexpr int EACH = VECTOR_BYTES / sizeof(A);
  V sum[P][M];
#pragma GCC unroll 8
  for (int p = 0; p < P; p++)
#pragma GCC unroll 4
    for (int m = 0; m < M; m++) sum[p][m] = *reinterpret_cast<const V*>(bias + m * EACH);
  for (int i = 0; i < outer; i++)
    for (int j = 0; j < inner; j++) {
      const i64 at = i * outer_step + j * inner_step;
      for (int k = 0; k < length; k++, w += stride) {
#pragma GCC unroll 4
        for (int m = 0; m < M; m++) {
          const V weight = *reinterpret_cast<const V*>(w + m * EACH);
#pragma GCC unroll 8
          for (int p = 0; p < P; p++) sum[p][m] += weight * rows[p][at + k];
        }
      }
    }
#pragma GCC unroll 8
  for (int p = 0; p < P; p++)
#pragma GCC unroll 4
    for (int m = 0; m < M; m++) *reinterpret_cast<V*>(acc + p * stride + m * EACH) = sum[p][m];
}

// All outputs of P rows; half of the registers hold sums.
template <class A, int P>
static inline void blocks(const A* const* rows, int outer, i64 outer_step, int inner, i64 inner_step, int length,
                          const A* w, const A* bias, int stride, A* acc) {
  constexpr int EACH = VECTOR_BYTES / sizeof(A), M = REGISTERS / 8;
  int o = 0;
  for (; o + M * EACH <= stride; o += M * EACH)
    block<A, P, M>(rows, outer, outer_step, inner, inner_step, length, w + o, bias + o, stride, acc + o);
  for (; o < stride; o += EACH)
    block<A, P, 1>(rows, outer, outer_step, inner, inner_step, length, w + o, bias + o, stride, acc + o);
}

template <class A>
static inline void brought(const A* acc, const i32* m, int outputs, const Requantiser& q, i32* out) {
  for (int o = 0; o < outputs; o++) out[o] = requantised(i64(acc[o]), i64(m[o]), q);
}

// `rows` rows of `in` numbers to `outputs` numbers; `x` holds the input as A, `w` is [in][padded outputs].
template <class A, int IN, int OUT>
static void linear(const i32* in, i32* out, i64 count, const A* w, const A* bias, const i32* m, Requantiser q,
                   A* x) {
  constexpr int S = padded_lanes(OUT);
  constexpr int P = 4;
  alignas(64) A acc[P * S];
  for (i64 row = 0; row < count; row += P) {
    const int left = int(count - row < P ? count - row : P);
    for (i64 k = 0; k < i64(left) * IN; k++) x[k] = A(in[row * IN + k]);
    const A* rows[P];
    for (int p = 0; p < P; p++) rows[p] = x + (p < left ? p : 0) * i64(IN);
    if (left == P)
      blocks<A, P>(rows, 1, 0, 1, 0, IN, w, bias, S, acc);
    else
      for (int p = 0; p < left; p++) blocks<A, 1>(rows + p, 1, 0, 1, 0, IN, w, bias, S, acc + p * S);
    for (int p = 0; p < left; p++) brought(acc + p * S, m, OUT, q, out + (row + p) * OUT);
  }
}

// The input of a convolution as A within its padding: [height][width][channels].
template <class A>
static inline void framed(const i32* in, A* x, int h, int w, int c, const int* pad, i32 zero) {
  const int wide = w + pad[2] + pad[3];
  const i64 all = i64(h + pad[0] + pad[1]) * wide * c;
  if (pad[0] || pad[1] || pad[2] || pad[3])
    for (i64 k = 0; k < all; k++) x[k] = A(zero);
  for (int y = 0; y < h; y++) {
    A* to = x + (i64(y + pad[0]) * wide + pad[2]) * c;
    const i32* from = in + i64(y) * w * c;
    for (i64 k = 0; k < i64(w) * c; k++) to[k] = A(from[k]);
  }
}

// Dense and grouped convolutions of the sizes of G; weights are [group][kh][kw][channels of a group][padded outputs].
template <class A, class G>
static void convolution(const i32* in, i32* out, i64 count, const A* w, const A* bias, const i32* m, i32 zero,
                        Requantiser q, A* x) {
  constexpr int P = 4, depth = G::C / G::GROUPS, outputs = G::O / G::GROUPS, S = padded_lanes(outputs);
  constexpr int wide = G::W + G::PAD[2] + G::PAD[3];
  constexpr bool together = G::GROUPS == 1 && G::DX == 1;  // the columns of a kernel lie together
  constexpr int inner = together ? 1 : G::KW, length = together ? G::KW * G::C : depth;
  alignas(64) A acc[P * S];
  for (i64 n = 0; n < count; n++) {
    framed(in + n * i64(G::H) * G::W * G::C, x, G::H, G::W, G::C, G::PAD, zero);
    for (int group = 0; group < G::GROUPS; group++) {
      const A* taps = w + i64(group) * G::KH * G::KW * depth * S;
      for (int y = 0; y < G::OH; y++)
        for (int first = 0; first < G::OW; first += P) {
          const int left = G::OW - first < P ? G::OW - first : P;
          const A* rows[P];
          for (int p = 0; p < P; p++)
            rows[p] = x + (i64(y) * G::SY * wide + (first + (p < left ? p : 0)) * G::SX) * G::C + group * depth;
          if (left == P)
            blocks<A, P>(rows, G::KH, i64(G::DY) * wide * G::C, inner, G::DX * G::C, length, taps, bias + group * S,
                         S, acc);
          else
            for (int p = 0; p < left; p++)
              blocks<A, 1>(rows + p, G::KH, i64(G::DY) * wide * G::C, inner, G::DX * G::C, length, taps,
                           bias + group * S, S, acc + p * S);
          i32* to = out + ((n * G::OH + y) * G::OW + first) * G::O + group * outputs;
          for (int p = 0; p < left; p++) brought(acc + p * S, m + group * outputs, outputs, q, to + p * G::O);
        }
    }
  }
}

// One weight for each place and channel; weights are [kh][kw][channels].
template <class A, class G>
static void depthwise(const i32* in, i32* out, i64 count, const A* w, const A* bias, const i32* m, i32 zero,
                      Requantiser q, A* x) {
  constexpr int wide = G::W + G::PAD[2] + G::PAD[3];
  alignas(64) A acc[G::C];
  for (i64 n = 0; n < count; n++) {
    framed(in + n * i64(G::H) * G::W * G::C, x, G::H, G::W, G::C, G::PAD, zero);
    for (int y = 0; y < G::OH; y++)
      for (int column = 0; column < G::OW; column++) {
        for (int c = 0; c < G::C; c++) acc[c] = bias[c];
        for (int i = 0; i < G::KH; i++)
          for (int j = 0; j < G::KW; j++) {
            const A* from = x + (i64(y * G::SY + i * G::DY) * wide + column * G::SX + j * G::DX) * G::C;
            const A* taps = w + (i * G::KW + j) * G::C;
            for (int c = 0; c < G::C; c++) acc[c] += from[c] * taps[c];
          }
        brought(acc, m, G::C, q, out + ((n * G::OH + y) * G::OW + column) * G::C);
      }
  }
}

// Windows of the input that lie outside it are left out: for a maximum that is the least number, for sums 0.
template <class G, class Visit>
static inline void visit_window(int y, int x, Visit visit) {
  for (int i = 0; i < G::KH; i++)
    for (int j = 0; j < G::KW; j++) {
      const int row = y * G::SY + i * G::DY - G::PAD[0], column = x * G::SX + j * G::DX - G::PAD[2];
      asm volatile("");  // one place at a time: GCC 12.2 loses windows where it takes several at once by AVX2
      if (row >= 0 && row < G::H && column >= 0 && column < G::W) visit((i64(row) * G::W + column) * G::C);
    }
}

template <class G>
static void max_pool(const i32* in, i32* out, i64 count, i32 low) {
  for (i64 n = 0; n < count; n++, in += i64(G::H) * G::W * G::C)
    for (int y = 0; y < G::OH; y++)
      for (int x = 0; x < G::OW; x++, out += G::C) {
        for (int c = 0; c < G::C; c++) out[c] = low;
        visit_window<G>(y, x, [&](i64 at) {
          for (int c = 0; c < G::C; c++) out[c] = in[at + c] > out[c] ? in[at + c] : out[c];
        });
      }
}

// Multipliers lie `row_step` and `channel_step` apart by window and by channel; a step of 0 repeats them.
template <class G>
static void sum_pool(const i32* in, i32* out, i64 count, i32 zero, const i32* m, int row_step, int channel_step,
                     Requantiser q) {
  i64 acc[G::C];
  for (i64 n = 0; n < count; n++, in += i64(G::H) * G::W * G::C)
    for (int y = 0; y < G::OH; y++)
      for (int x = 0; x < G::OW; x++, out += G::C) {
        for (int c = 0; c < G::C; c++) acc[c] = 0;
        visit_window<G>(y, x, [&](i64 at) {
          for (int c = 0; c < G::C; c++) acc[c] += in[at + c] - zero;
        });
        const i32* own = m + i64(y * G::OW + x) * row_step;
        for (int c = 0; c < G::C; c++) out[c] = requantised(acc[c], own[c * channel_step], q);
      }
}

// out[r][j] of `rows` by `columns`; the second factor is [inner][columns], or [columns][inner] if transposed.
template <class A, int ROWS, int INNER, int COLUMNS, bool TRANSPOSED>
static void matmul(const i32* a, const i32* b, i32* out, i32 zero_a, i32 zero_b, i64 m, Requantiser q, A* x) {
  for (int k = 0; k < INNER; k++)
    for (int j = 0; j < COLUMNS; j++) x[k * COLUMNS + j] = A(b[TRANSPOSED ? j * INNER + k : k * COLUMNS + j] - zero_b);
  for (int r = 0; r < ROWS; r++) {
    A acc[COLUMNS];
    for (int j = 0; j < COLUMNS; j++) acc[j] = 0;
    for (int k = 0; k < INNER; k++) {
      const A factor = A(a[r * INNER + k] - zero_a);
      for (int j = 0; j < COLUMNS; j++) acc[j] += factor * x[k * COLUMNS + j];
    }
    for (int j = 0; j < COLUMNS; j++) out[r * COLUMNS + j] = requantised(i64(acc[j]), m, q);
  }
}

static inline i64 integer_root(i64 n) {
  i64 found = i64(std::sqrt(double(n)));
  found -= found * found > n;
  found += (found + 1) * (found + 1) <= n;
  return found;
}

template <int D>
static void layer_norm(const i32* in, i32* out, i64 rows, const i32* gain, const i64* offset, i64 epsilon, int root_bits,
                       int reciprocal_bits, int normal_bits, Requantiser q) {
  const int shift = reciprocal_bits - root_bits - normal_bits;
  const i64 half = (i64(1) << shift) >> 1;
  for (i64 row = 0; row < rows; row++, in += D, out += D) {
    i64 sum = 0, squares = epsilon;
    for (int k = 0; k < D; k++) sum += in[k];
    for (int k = 0; k < D; k++) squares += (i64(in[k]) * D - sum) * (i64(in[k]) * D - sum);
    const i64 found = integer_root((squares << (2 * root_bits)) / D), root = found < 1 ? 1 : found;
    const i64 reciprocal = (i64(1) << reciprocal_bits) / root;
    for (int k = 0; k < D; k++)
      out[k] = requantised((((i64(in[k]) * D - sum) * reciprocal + half) >> shift) * gain[k] + offset[k], 1, q);
  }
}

// A row, of which what is not 0 in `mask` and in `counts` counts; either may be null, and `counts` has a number for
// each element (`step` 1) or one for the row (0). If nothing counts, all is 0.
template <int L>
static inline void softmax_row(const i32* in, i32* out, const i32* table, const i32* mask, const i32* counts, int step,
                               int bits, i32 high) {
  i32 largest = INT32_MIN;
  for (int k = 0; k < L; k++)
    if ((!mask || mask[k]) && (!counts || counts[k * step]) && in[k] > largest) largest = in[k];
  i64 total = 0;
  for (int k = 0; k < L; k++) {
    out[k] = (!mask || mask[k]) && (!counts || counts[k * step]) ? table[largest - in[k]] : 0;
    total += out[k];
  }
  const i64 divisor = total ? total : 1;
  for (int k = 0; k < L; k++) out[k] = clamped(((i64(out[k]) << bits) + total / 2) / divisor, 0, high);
}

// `mask` is null, or [masked rows][L], used over and over.
template <int L>
static void softmax(const i32* in, i32* out, i64 rows, const i32* table, const i32* mask, i64 masked_rows, int bits,
                    i32 high) {
  for (i64 row = 0; row < rows; row++, in += L, out += L)
    softmax_row<L>(in, out, table, mask ? mask + (row % masked_rows) * L : nullptr, nullptr, 0, bits, high);
}

// A caller's number on a value's scale, halves to the even step; NaN is the zero point.
static inline i32 quantised(double x, double inverse, i32 zero, i32 low, i32 high) {
  const double steps = std::nearbyint(x * inverse);
  return steps != steps ? zero : i32(steps < low - zero ? low : steps > high - zero ? high : steps + zero);
}

}  // namespace stoker
