// grouped_matmul and its gradients for one unit. All products are slices of one operand, in panels on the
// chip, times the packed lanes of the other: weights and rows in the forward, the transposed weights and
// grad_out for grad_rows, the rows of both for grad_weight.

#include "tile/unit.h"
//
#include "tile/pack.h"
//
#include "ops/moe/grouped_matmul/bias_gradient.h"
#include "ops/moe/grouped_matmul/product.h"
#include "ops/moe/grouped_matmul/weight_gradient.h"

namespace tileformer::TILEFORMER_UNIT {

extern const moe::grouped::Unit grouped_matmul_unit;
const moe::grouped::Unit grouped_matmul_unit = {TF_STRINGIZE(TILEFORMER_UNIT),
                                                kUnitName,
                                                kLanes,
                                                kKeyRows,
                                                kDepth,
                                                kMaxRowPairs,
                                                kElementsPerWord > 1,
                                                sizeof(Word),
                                                run_words,
                                                product_scratch,
                                                pack,
                                                multiply,
                                                column_words,
                                                weight_gradient_scratch,
                                                pack_columns,
                                                weight_gradient,
                                                bias_gradient};

}  // namespace tileformer::TILEFORMER_UNIT
