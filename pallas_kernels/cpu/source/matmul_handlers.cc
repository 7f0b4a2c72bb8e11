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

// The scales of one of several weights of integers.
Scales scales_of(const Weight& weight, int64_t group) {
  if (weight.codes == Codes::NONE) return {};
  Scales found = weight.later(weight.scales, group * weight.panels());
  if (found.x_scale) found.x_scale += group;
  return found;
}

// The rows that share a weight. Rows beyond all groups are padding.
std::vector<RowGroup> groups_of(const AnyBuffer& sizes, int64_t rows, const Weight& weight,
                                const float* bias) {
  if (!is_given(sizes)) return {{0, rows, weight.data, bias, weight.scales}};
  std::vector<RowGroup> groups;
  int64_t begin = 0;
  const int64_t count = sizes.element_count();
  for (int64_t g = 0; g < count; g++) {
    const int64_t end = begin + integers_of(sizes)[g];
    require(end >= begin && end <= rows, "groups have more rows than x");
    groups.push_back({begin, end, weight.data + g * weight.bytes(),
                      bias ? bias + g * weight.outputs : nullptr, scales_of(weight, g)});
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
  const int64_t bytes = weight.codes == Codes::NONE ? bytes_in(data) : (int64_t)data.element_count();
  require(bytes == weight.bytes() * groups, "the weight has another size");
  require(!is_given(bias) || (int64_t)bias.element_count() == groups * weight.outputs,
          "the bias has another size");
}

// About how long one thread takes, in nanoseconds: it reads the weights from its caches, converting
// them if they are integers, and multiplies.
int64_t duration(const Weight& weight, const std::vector<RowGroup>& groups) {
  constexpr int64_t READ_PER_NS = 60, CONVERTED_PER_NS = 15, MULTIPLY_ADDS_PER_NS = 250;
  const bool converts = weight.codes != Codes::NONE && !weight.rounds_rows();
  const int64_t bytes_per_ns = converts ? CONVERTED_PER_NS : READ_PER_NS;
  int64_t read = 0;
  for (const RowGroup& group : groups) read += group.end > group.begin ? weight.packed_bytes() : 0;
  return read / bytes_per_ns +
         groups.back().end * weight.inputs * weight.outputs / MULTIPLY_ADDS_PER_NS;
}

Codes codes_of(int32_t number) { return one_of(number, Codes::IQ4, "no such codes"); }

// A weight of integers, for x rounded to `number`.
Weight codes_weight(const AnyBuffer& data, Codes codes, int32_t number, int64_t inputs,
                    int64_t outputs, Gate gate) {
  const Number as = one_of(number, Number::INT8, "x is rounded to bfloat16, float32 or int8");
  require(as != Number::FLOAT16, "x is rounded to bfloat16, float32 or int8");
  require(as != Number::INT8 || codes == Codes::INT8 || codes == Codes::INT4,
          "int8 rows meet integers of 8 or 4 bits");
  require(data.element_type() == (codes == Codes::INT8 ? DataType::S8 : DataType::U8),
          "integers of 8 bits are int8, others uint8");
  return {bytes_of(data), as, Storage::PACKED, inputs, outputs, gate, codes};
}

// What groups share, of `weights` weights: numbers, or integers that count units.
Shared shared_of(const Weight& weight, const AnyBuffer& data, const AnyBuffer& units,
                 int32_t codes, int64_t weights) {
  Shared found{bytes_of(data), Number::FLOAT32, codes_of(codes), nullptr};
  const int64_t panels = weights * weight.panels(), groups = panels * weight.scale_groups();
  if (found.codes != Codes::NONE) {
    const Codes around = form_of(found.codes).around;
    require(around == Codes::INT4 || around == Codes::INT6 || around == Codes::INT8,
            "scales are integers of 4, 6 or 8 bits");
    require(weight.unit > 0 && units.element_type() == DataType::F16 &&
                (int64_t)units.element_count() == panels * weight.unit_groups() * PANEL,
            "units must be float16, one for each output and group of groups");
    found.units = bytes_of(units);
  } else {
    found.number = number_of(data);
    require(found.number != Number::BFLOAT16, "scales are float32 or float16");
  }
  const int64_t bytes = codes ? (int64_t)data.element_count() : bytes_in(data);
  require(bytes == groups * found.group_bytes(), "an operand has another size");
  return found;
}

// The scales of a weight of integers, which all have `group` inputs.
struct GivenScales {
  const AnyBuffer &scales, &units, &zeros, &leasts, &least_units, &x_scale;
  int64_t group, unit;
  int32_t codes, least_codes;
};
void add_scales(Weight& weight, const GivenScales& given, int64_t weights) {
  const auto& [scales, units, zeros, leasts, least_units, x_scale, group, unit, codes, least_codes] =
      given;
  require(group > 0 && (group >= weight.inputs || group % weight.depth() == 0),
          "a step must not have two scales");
  require(unit >= 0 && unit % group == 0, "a unit is that of whole groups");
  const bool is_single = group >= weight.inputs && scales.element_type() == DataType::F32 &&
                         !is_given(zeros) && !is_given(leasts);
  require(!weight.rounds_rows() || is_single,
          "where x is rounded to int8, an output has one float32 scale and no zero");
  require(weight.rounds_rows() || !is_given(x_scale), "only int8 rows have a scale");
  require(!is_given(zeros) || !is_given(leasts), "either zeros or least values");
  weight.group = group, weight.unit = unit;
  Scales& found = weight.scales;
  found.scale = shared_of(weight, scales, units, codes, weights);
  if (is_given(zeros)) found.zero = shared_of(weight, zeros, units, 0, weights);
  if (is_given(leasts)) found.least = shared_of(weight, leasts, least_units, least_codes, weights);
  if (is_given(x_scale)) found.x_scale = floats_of(x_scale, weights);
}

void handle(XlaPool pool, AnyBuffer x, AnyBuffer data, AnyBuffer norm_weight, AnyBuffer norm_bias,
            AnyBuffer bias, AnyBuffer addend, AnyBuffer residual, AnyBuffer positions,
            AnyBuffer sizes, AnyBuffer scales, AnyBuffer units, AnyBuffer zeros, AnyBuffer leasts,
            AnyBuffer least_units, AnyBuffer x_scale, Result out, int32_t storage, int64_t outputs,
            int32_t gate, int32_t activation, int32_t norm, float eps, float norm_offset,
            int64_t group, int64_t unit, int32_t number, int32_t codes, int32_t scale_codes,
            int32_t least_codes) {
  require(x.dimensions().size() == 2, "x must be [rows, inputs]");
  const int64_t rows = dimension(x, 0), inputs = dimension(x, 1);
  const Gate gates = one_of(gate, Gate::PAIRS, "gate must be 0, 1 or 2");
  const int64_t weights = is_given(sizes) ? (int64_t)sizes.element_count() : 1;
  Weight weight = codes_of(codes) == Codes::NONE
                      ? Weight{bytes_of(data), number_of(data), storage_of(storage), inputs,
                               outputs, gates}
                      : codes_weight(data, codes_of(codes), number, inputs, outputs, gates);
  const NormKind kind = one_of(norm, NormKind::LAYER, "norm must be 0, 1 or 2");
  const Activation function =
      one_of(activation, Activation::GELU, "activation must be 0, 1, 2 or 3");
  check(weight, data, bias, weights);
  if (weight.codes != Codes::NONE)
    add_scales(weight, {scales, units, zeros, leasts, least_units, x_scale, group, unit,
                        scale_codes, least_codes}, weights);
  const int64_t results = weight.results();
  require(dimension(*out, 0) == rows && dimension(*out, 1) == results, "wrong result shape");
  require(!is_given(residual) || (residual.element_type() == DataType::F32 &&
                                  (int64_t)residual.element_count() == rows * results),
          "the residual must be float32 and of the result's shape");
  require(!is_given(addend) || (addend.element_type() == DataType::F32 &&
                                (int64_t)addend.element_count() == rows * outputs),
          "the addend must be float32, [rows, outputs]");
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
                    is_given(residual) ? (const float*)residual.untyped_data() : nullptr,
                    is_given(addend) ? (const float*)addend.untyped_data() : nullptr},
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

void handle_pack_codes(XlaPool pool, AnyBuffer data, Result out, int64_t inputs, bool gated,
                       int32_t number, int32_t codes, bool in_pairs) {
  require(data.dimensions().size() == 3, "the weight must be a matrix per group");
  require(codes_of(codes) != Codes::NONE, "no such codes");
  const int64_t groups = dimension(data, 0);
  Weight weight = codes_weight(data, codes_of(codes), number, inputs, dimension(data, 2),
                               gated ? Gate::HALVES : Gate::NONE);
  require(!in_pairs || weight.form().bits == 4, "pairs in a byte have 4 bits");
  const int64_t rows = in_pairs ? inputs / 2 : inputs;
  require(weight.inputs > 0 && weight.outputs > 0, "a weight cannot be empty");
  require(dimension(data, 1) == rows && inputs % (in_pairs ? 2 : 1) == 0,
          "the weight has another number of inputs");
  require(!gated || weight.outputs % 2 == 0, "a gated weight has an even number of outputs");
  require((int64_t)out->element_count() == groups * weight.packed_bytes(), "wrong result size");
  char* to = static_cast<char*>(out->untyped_data());
  for (int64_t g = 0; g < groups; g++) {
    pack_codes(pool, weight, in_pairs, to + g * weight.packed_bytes());
    weight.data += rows * weight.outputs;
  }
}

void handle_norm(XlaPool pool, AnyBuffer x, AnyBuffer weight, AnyBuffer bias, AnyBuffer positions,
                 Result out, int32_t norm, float eps, float offset) {
  require(x.dimensions().size() == 2, "x must be [rows, width]");
  const int64_t rows = dimension(x, 0), width = dimension(x, 1);
  require((int64_t)weight.element_count() == width, "the weight has another size");
  require(!is_given(bias) || (int64_t)bias.element_count() == width, "the bias has another size");
  require(!is_given(positions) || (int64_t)positions.element_count() == rows, "positions");
  require(out->element_type() == DataType::F32 && out->element_count() == x.element_count(),
          "the result must be float32");
  const AsFloats weight_floats(weight, offset), bias_floats(bias);
  const NormKind kind = one_of(norm, NormKind::LAYER, "norm must be 1 or 2");
  require(kind != NormKind::NONE, "norm must be 1 or 2");
  char* to = static_cast<char*>(out->untyped_data());
  const std::vector<int32_t> live = live_rows(rows, positions, to, width * 4);
  normalize_rows(pool, {bytes_of(x), is_bfloat16(x), width,
                        {kind, weight_floats.data(), bias_floats.data(), eps}},
                 live.data(), (int64_t)live.size(), reinterpret_cast<float*>(to));
}

}  // namespace
}  // namespace jengine

JENGINE_HANDLER(pack, jengine::handle_pack, "gated", "storage")
JENGINE_HANDLER(pack_codes, jengine::handle_pack_codes, "inputs", "gated", "number", "codes",
                "in_pairs")
JENGINE_HANDLER(normalize, jengine::handle_norm, "norm", "eps", "offset")
JENGINE_HANDLER(matmul, jengine::handle, "storage", "outputs", "gate", "activation", "norm", "eps",
                "norm_offset", "group", "unit", "number", "codes", "scale_codes", "least_codes")
