// The Python type tileformer._C.KvCache, the core of tileformer.PagedKVCache, and the exception CacheFull.
#pragma once

#include <Python.h>

namespace tileformer::torch_binding {

// Adds both to the module. False, with the Python exception set, if that fails.
bool add_kv_cache(PyObject* module);

}  // namespace tileformer::torch_binding
