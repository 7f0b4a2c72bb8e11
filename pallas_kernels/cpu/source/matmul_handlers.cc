// Packing, the matmul, and the norm alone as functions that XLA calls.
#include "ffi.h"
#include "matmul.h"

namespace jengine {
namespace {

// The rows to compute; the others, padding, get zeros.
std::vector<int32_t> live_rows(int64_t rows, const AnyBuffer& positions, char* out,
                               int64_t row_bytes) {
  std::vector<int32_t> live;
  live.reserve(rows);
  const int32_t* given = is_given(positions) ? integers_of(positions) : nullptr;
  for (int64_t row = 0; row < rows; row++) {
    if (!given || given[row] >= 0) {
      live.push_back((int32_t)row);
    } else {
      std::memset(out + row * row_bytes, 0, row_bytes);
    }
  }
  return live;
}

// The rows that share a weight. Rows beyond all groups are padding.
std::vector<RowGroup> groups_of(const AnyBuffer& sizes, int64_t rows, const Weight& weight,
                                const float* bias) {
  if (!is_given(sizes)) return {{0, rows, weight.data, bias}};
  std::vector<RowGroup> groups;
  int64_t begin = 0;
  const int64_t count = sizes.element_count();
  for (int64_t g = 0; g < count; g++) {
    const int64_t end = begin + integers_of(sizes)[g];
    require(end >= begin && end <= rows, "groups have more rows than x");
    groups.push_back({begin, end, weight.data + g * weight.bytes(),
                      bias ? bias + g * weight.outputs : nullptr});
    begin = end;
  }
  return groups;
}

Storage storage_of(int32_t number) {
  return one_of(number, Storage::OUTPUTS_FIRST, "storage must be 0, 1 or 2");
}

void check(const Weight& weight, const AnyBuffer& data, const AnyBuffer& bias, int64_t groups) {
  require(weight.inputs > 0 && weight.outputs > 0, "a weight cannot be empty");
  require(!weight.gated() || weight.outputs % 2 == 0,
          "a gated weight has an even number of outputs");
  require(bytes_in(data) == weight.bytes() * groups, "the weight has another size");
  require(!is_given(bias) || (int64_t)bias.element_count() == groups * weight.outputs,
          "the bias has another size");
}

// About how long one thread takes, in nanoseconds: it reads the weights from its caches, and
// multiplies.
int64_t duration(const Weight& weight, const std::vector<RowGroup>& groups) {
  constexpr int64_t BYTES_PER_NS = 60, MULTIPLY_ADDS_PER_NS = 250;
  int64_t read = 0;
  for (const RowGroup& group : groups) read += group.end > group.begin ? weight.packed_bytes() : 0;
  return read / BYTES_PER_NS +
         groups.back().end * weight.inputs * weight.outputs / MULTIPLY_ADDS_PER_NS;
}

void handle(XlaPool pool, AnyBuffer x, AnyBuffer data, AnyBuffer norm_weight, AnyBuffer norm_bias,
            AnyBuffer bias, AnyBuffer residual, AnyBuffer positions, AnyBuffer sizes, Result out,
            int32_t storage, int64_t outputs, int32_t gate, int32_t activation, int32_t norm,
            float eps, float norm_offset) {
  require(x.dimensions().size() == 2, "x must be [rows, inputs]");
  const int64_t rows = dimension(x, 0), inputs = dimension(x, 1);
  const Weight weight{bytes_of(data), number_of(data), storage_of(storage), inputs, outputs,
                      one_of(gate, Gate::PAIRS, "gate must be 0, 1 or 2")};
  const NormKind kind = one_of(norm, NormKind::LAYER, "norm must be 0, 1 or 2");
  const Activation function =
      one_of(activation, Activation::GELU_TANH, "activation must be 0, 1 or 2");
  check(weight, data, bias, is_given(sizes) ? (int64_t)sizes.element_count() : 1);
  const int64_t results = weight.results();
  require(dimension(*out, 0) == rows && dimension(*out, 1) == results, "wrong result shape");
  require(!is_given(residual) || (residual.element_type() == DataType::F32 &&
                                  (int64_t)residual.element_count() == rows * results),
          "the residual must be float32 and of the result's shape");
  require(!is_given(positions) || (int64_t)positions.element_count() == rows, "positions");
  require(kind == NormKind::NONE || (int64_t)norm_weight.element_count() == inputs, "norm weight");
  require(!is_given(norm_bias) || (int64_t)norm_bias.element_count() == inputs, "norm bias");
  const AsFloats norm_floats(norm_weight, norm_offset), norm_bias_floats(norm_bias);
  const AsFloats bias_floats(bias);
  char* to = static_cast<char*>(out->untyped_data());
  const bool rounds = is_bfloat16(*out);
  const int64_t row_bytes = results * (rounds ? 2 : 4);
  require(!is_given(sizes) || !is_given(positions), "rows of groups have no positions");
  const std::vector<int32_t> live = live_rows(rows, positions, to, row_bytes);
  const std::vector<RowGroup> groups =
      groups_of(sizes, (int64_t)live.size(), weight, bias_floats.data());
  const int64_t last = groups.back().end;
  if (is_given(sizes)) std::memset(to + last * row_bytes, 0, (rows - last) * row_bytes);
  Helpers helpers(pool, duration(weight, groups));
  matmul(helpers, {{bytes_of(x), is_bfloat16(x), inputs,
                    {kind, norm_floats.data(), norm_bias_floats.data(), eps}},
                   weight,
                   {to, rounds, function,
                    is_given(residual) ? (const float*)residual.untyped_data() : nullptr},
                   live.data(), groups.data(), (int64_t)groups.size()});
}

void handle_pack(XlaPool pool, AnyBuffer data, Result out, bool gated, int32_t storage) {
  require(data.dimensions().size() == 3, "the weight must be a matrix per group");
  const int64_t groups = dimension(data, 0);
  const Storage stored = storage_of(storage);
  const bool inputs_first = stored == Storage::INPUTS_FIRST;
  Weight weight{bytes_of(data), number_of(data), stored,
                dimension(data, inputs_first ? 1 : 2), dimension(data, inputs_first ? 2 : 1),
                gated ? Gate::HALVES : Gate::NONE};
  require(stored != Storage::PACKED, "the weight is packed already");
  require(weight.inputs > 0 && weight.outputs > 0, "a weight cannot be empty");
  require(!gated || weight.outputs % 2 == 0, "a gated weight has an even number of outputs");
  require(bytes_in(*out) == groups * weight.packed_bytes(), "wrong result size");
  char* to = static_cast<char*>(out->untyped_data());
  for (int64_t g = 0; g < groups; g++) {
    pack(pool, weight, to + g * weight.packed_bytes());
    weight.data += weight.inputs * weight.outputs * weight.number_bytes();
  }
}

void handle_norm(XlaPool pool, AnyBuffer x, AnyBuffer weight, AnyBuffer bias, AnyBuffer positions,
                 Result out, float eps, float offset) {
  require(x.dimensions().size() == 2, "x must be [rows, width]");
  const int64_t rows = dimension(x, 0), width = dimension(x, 1);
  require((int64_t)weight.element_count() == width, "the weight has another size");
  require(!is_given(bias) || (int64_t)bias.element_count() == width, "the bias has another size");
  require(!is_given(positions) || (int64_t)positions.element_count() == rows, "positions");
  require(out->element_type() == DataType::F32 && out->element_count() == x.element_count(),
          "the result must be float32");
  const AsFloats weight_floats(weight, offset), bias_floats(bias);
  const NormKind kind = is_given(bias) ? NormKind::LAYER : NormKind::RMS;
  char* to = static_cast<char*>(out->untyped_data());
  const std::vector<int32_t> live = live_rows(rows, positions, to, width * 4);
  normalize_rows(pool, {bytes_of(x), is_bfloat16(x), width,
                        {kind, weight_floats.data(), bias_floats.data(), eps}},
                 live.data(), (int64_t)live.size(), reinterpret_cast<float*>(to));
}

}  // namespace
}  // namespace jengine

JENGINE_HANDLER(pack, jengine::handle_pack, "gated", "storage")
JENGINE_HANDLER(normalize, jengine::handle_norm, "eps", "offset")
JENGINE_HANDLER(matmul, jengine::handle, "storage", "outputs", "gate", "activation", "norm", "eps",
                "norm_offset")
