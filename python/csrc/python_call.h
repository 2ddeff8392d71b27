// What functions of the CPython module share: exceptions and Statuses become Python's, and the GIL is let go.
#pragma once

#include <Python.h>

#include <exception>
#include <new>

#include "tileformer/status.h"

namespace tileformer::torch_binding {

// Sets the Python exception: ValueError for an invalid argument, `other` for everything else. Returns null.
inline PyObject* raise(const Status& status, PyObject* other) {
  PyErr_SetString(status.code() == StatusCode::invalid_argument ? PyExc_ValueError : other,
                  status.message().c_str());
  return nullptr;
}

// Calls body, whose exceptions become Python's.
template <class Body>
PyObject* guarded(Body body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
    return nullptr;
  }
}

// Other Python threads run while this lives.
class WithoutGil {
 public:
  WithoutGil() : state_(PyEval_SaveThread()) {}
  ~WithoutGil() { PyEval_RestoreThread(state_); }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* state_;
};

}  // namespace tileformer::torch_binding
