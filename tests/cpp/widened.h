// fp64 copies of tensors, for results without rounding.
#pragma once

#include <deque>
#include <vector>

#include "guarded_tensors.h"

namespace tileformer::test {

// The shape of `like` on dense fp64 storage.
inline TensorView dense_f64(double* data, const TensorView& like) {
  TensorView view = like;
  view.data = data;
  view.dtype = DType::f64;
  view.stride = dense_strides(view.rank, view.shape);
  return view;
}

class Widened {
 public:
  // Makes the view one of a dense fp64 copy.
  void widen(TensorView& view) {
    if (!view) return;
    storage_.push_back(elements_of(view));
    storage_.back().reserve(1);  // a pointer even when there is nothing to point to
    view = dense_f64(storage_.back().data(), view);
  }

 private:
  std::deque<std::vector<double>> storage_;
};

}  // namespace tileformer::test
