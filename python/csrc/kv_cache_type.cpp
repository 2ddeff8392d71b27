// A C++ PagedKVCache as a Python object. It exports its pools through the buffer protocol: torch.frombuffer
// makes tensors of them that keep the object alive, so that no tensor can outlive its memory.
//
// Only bookkeeping goes through here, once per step; per layer the operators work on the tensors.
#include "kv_cache_type.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "python_call.h"
#include "tileformer/kv_cache.h"
#include "torch_executor.h"

namespace tileformer::torch_binding {
namespace {

using Ids = std::vector<std::int64_t>;

PyObject* cache_full = nullptr;  // the exception; lives as long as the process

struct KvCacheObject {
  PyObject ob_base;
  std::unique_ptr<PagedKVCache> cache;
  char* memory;  // from the lowest byte of a pool to past the highest
  std::int64_t bytes;
};

KvCacheObject& object_of(PyObject* self) { return *reinterpret_cast<KvCacheObject*>(self); }
PagedKVCache& cache_of(PyObject* self) { return *object_of(self).cache; }

std::int64_t bytes_of(const TensorView& view) {
  std::int64_t last = 0;
  for (int i = 0; i < view.rank; ++i) last += (view.shape[i] - 1) * view.stride[i];
  return view.elements() == 0 ? 0 : (last + 1) * static_cast<std::int64_t>(size_of(view.dtype));
}

const TensorView* pool_of(const KvLayer& layer, int which) {
  const TensorView* pools[] = {&layer.key, &layer.value, &layer.key_scale, &layer.value_scale};
  return which >= 0 && which < 4 ? pools[which] : nullptr;
}

void find_memory(KvCacheObject& object) {
  char *first = nullptr, *end = nullptr;
  for (std::int64_t l = 0; l < object.cache->options().layers; ++l) {
    const KvLayer layer = object.cache->layer(l);
    for (int which = 0; which < 4; ++which) {
      const TensorView& pool = *pool_of(layer, which);
      if (!pool || bytes_of(pool) == 0) continue;
      char* data = static_cast<char*>(pool.data);
      first = first == nullptr ? data : std::min(first, data);
      end = std::max(end, data + bytes_of(pool));
    }
  }
  object.memory = first;
  object.bytes = end - first;
}

PyObject* make(PyTypeObject* type, PyObject* args, PyObject*) {
  return guarded([&]() -> PyObject* {
    KvCacheOptions o;
    long long layers, kv_heads, dim, dim_v, page_size, pages;
    int key_dtype, value_dtype;
    if (!PyArg_ParseTuple(args, "LLLLLLii", &layers, &kv_heads, &dim, &dim_v, &page_size, &pages, &key_dtype,
                          &value_dtype))
      return nullptr;
    o.layers = layers;
    o.kv_heads = kv_heads;
    o.dim = dim;
    o.dim_v = dim_v;
    o.page_size = page_size;
    o.pages = pages;
    o.key_dtype = static_cast<DType>(key_dtype);
    o.value_dtype = static_cast<DType>(value_dtype);
    std::unique_ptr<PagedKVCache> cache;
    if (Status s = PagedKVCache::create(o, &cache); !s) return raise(s, PyExc_RuntimeError);
    const auto allocate = reinterpret_cast<allocfunc>(PyType_GetSlot(type, Py_tp_alloc));
    PyObject* self = allocate(type, 0);
    if (self == nullptr) return nullptr;
    new (&object_of(self).cache) std::unique_ptr<PagedKVCache>(std::move(cache));
    find_memory(object_of(self));
    return self;
  });
}

void destroy(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  object_of(self).cache.~unique_ptr();
  reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(self);
  Py_DECREF(type);  // an object of a heap type holds one
}

int export_buffer(PyObject* self, Py_buffer* view, int flags) {
  const KvCacheObject& object = object_of(self);
  return PyBuffer_FillInfo(view, self, object.memory, static_cast<Py_ssize_t>(object.bytes), 0, flags);
}

// A sequence of integers.
bool read_ids(PyObject* from, const char* name, Ids* ids) {
  PyObject* list = PySequence_List(from);
  if (list == nullptr) {
    PyErr_Clear();
    PyErr_Format(PyExc_TypeError, "%s has to be a sequence of integers", name);
    return false;
  }
  const Py_ssize_t size = PyList_Size(list);
  ids->resize(static_cast<std::size_t>(size));
  for (Py_ssize_t i = 0; i < size; ++i)
    (*ids)[static_cast<std::size_t>(i)] = PyLong_AsLongLong(PyList_GetItem(list, i));
  Py_DECREF(list);
  return PyErr_Occurred() == nullptr;
}

PyObject* add(PyObject* self, PyObject*) {
  return guarded([&]() -> PyObject* {
    std::int64_t id = 0;
    if (Status s = cache_of(self).add(&id); !s) return raise(s, PyExc_RuntimeError);
    return PyLong_FromLongLong(id);
  });
}

PyObject* fork(PyObject* self, PyObject* args) {
  return guarded([&]() -> PyObject* {
    long long id = 0;
    PyObject* length = Py_None;
    if (!PyArg_ParseTuple(args, "L|O", &id, &length)) return nullptr;
    std::int64_t copy = 0;
    Status s;
    if (length == Py_None) {
      s = cache_of(self).fork(id, &copy);
    } else {
      const long long prefix = PyLong_AsLongLong(length);
      if (prefix == -1 && PyErr_Occurred()) return nullptr;
      s = cache_of(self).fork_prefix(id, prefix, &copy);
    }
    if (!s) return raise(s, PyExc_RuntimeError);
    return PyLong_FromLongLong(copy);
  });
}

// Fills the tensors of a Step, see kv_step.py: slots i64 [tokens], positions i64 [tokens], block_table
// i32 [sequences, columns], key_lengths i32 [sequences], cu_seqlens i32 [sequences + 1].
PyObject* step_buffer(const PageTable& table, const Ids& ids, const Ids& tokens, const Ids& slots) {
  std::int64_t columns = 0;
  if (Status s = table.block_columns(ids, &columns); !s) return raise(s, PyExc_RuntimeError);
  const std::size_t n = ids.size(), total = slots.size(), blocks = n * static_cast<std::size_t>(columns);
  PyObject* buffer =
      PyByteArray_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(16 * total + 4 * (blocks + 2 * n + 1)));
  if (buffer == nullptr) return nullptr;
  auto* slot = reinterpret_cast<std::int64_t*>(PyByteArray_AsString(buffer));
  auto* position = std::copy(slots.begin(), slots.end(), slot);
  auto* block = reinterpret_cast<std::int32_t*>(position + total);
  std::int32_t *length = block + blocks, *begin = length + n;
  if (Status s = table.block_table(ids, columns, block, length); !s) {
    Py_DECREF(buffer);
    return raise(s, PyExc_RuntimeError);
  }
  begin[0] = 0;
  for (std::size_t i = 0; i < n; ++i) {
    begin[i + 1] = begin[i] + static_cast<std::int32_t>(tokens[i]);
    for (std::int64_t t = length[i] - tokens[i]; t < length[i]; ++t) *position++ = t;
  }
  return Py_BuildValue("(NnnL)", buffer, static_cast<Py_ssize_t>(total), static_cast<Py_ssize_t>(n),
                       static_cast<long long>(columns));
}

PyObject* extend(PyObject* self, PyObject* args) {
  return guarded([&]() -> PyObject* {
    PyObject *ids_given = nullptr, *tokens_given = nullptr;
    Ids ids, tokens;
    if (!PyArg_ParseTuple(args, "OO", &ids_given, &tokens_given) || !read_ids(ids_given, "ids", &ids) ||
        !read_ids(tokens_given, "tokens", &tokens))
      return nullptr;
    std::int64_t total = 0;
    for (const std::int64_t t : tokens) total += std::max<std::int64_t>(t, 0);
    if (total > INT32_MAX) {
      PyErr_Format(PyExc_ValueError, "tokens: %lld in all, allowed are %d in a step",
                   static_cast<long long>(total), INT32_MAX);
      return nullptr;
    }
    Ids slots(static_cast<std::size_t>(total));
    Status status;
    {
      const WithoutGil released;
      TorchExecutor executor;
      status = cache_of(self).extend(ids, tokens, slots, executor);
    }
    if (!status) return raise(status, cache_full);
    return step_buffer(cache_of(self).table(), ids, tokens, slots);
  });
}

PyObject* trim(PyObject* self, PyObject* args) {
  return guarded([&]() -> PyObject* {
    long long id = 0, length = 0;
    if (!PyArg_ParseTuple(args, "LL", &id, &length)) return nullptr;
    if (Status s = cache_of(self).trim(id, length); !s) return raise(s, PyExc_RuntimeError);
    Py_RETURN_NONE;
  });
}

PyObject* release(PyObject* self, PyObject* id_given) {
  return guarded([&]() -> PyObject* {
    const long long id = PyLong_AsLongLong(id_given);
    if (id == -1 && PyErr_Occurred()) return nullptr;
    if (Status s = cache_of(self).free(id); !s) return raise(s, PyExc_RuntimeError);
    Py_RETURN_NONE;
  });
}

PyObject* length_of(PyObject* self, PyObject* id_given) {
  return guarded([&]() -> PyObject* {
    const long long id = PyLong_AsLongLong(id_given);
    if (id == -1 && PyErr_Occurred()) return nullptr;
    std::int64_t length = 0;
    if (Status s = cache_of(self).table().length(id, &length); !s) return raise(s, PyExc_RuntimeError);
    return PyLong_FromLongLong(length);
  });
}

PyObject* used_pages(PyObject* self, PyObject*) {
  return PyLong_FromLongLong(cache_of(self).table().used_pages());
}

PyObject* nbytes(PyObject* self, PyObject*) { return PyLong_FromSize_t(cache_of(self).bytes()); }

// (offset in bytes, elements, shape, strides) of a pool in the exported buffer; None if the layer has none.
PyObject* pool(PyObject* self, PyObject* args) {
  return guarded([&]() -> PyObject* {
    long long layer = 0;
    int which = 0;
    if (!PyArg_ParseTuple(args, "Li", &layer, &which)) return nullptr;
    if (layer < 0 || layer >= cache_of(self).options().layers) {
      PyErr_Format(PyExc_ValueError, "layer is %lld", layer);
      return nullptr;
    }
    const KvLayer pools = cache_of(self).layer(layer);
    const TensorView* view = pool_of(pools, which);
    if (view == nullptr || !*view) Py_RETURN_NONE;
    PyObject *shape = PyTuple_New(view->rank), *stride = PyTuple_New(view->rank);
    for (int i = 0; i < view->rank && shape != nullptr && stride != nullptr; ++i) {
      PyTuple_SetItem(shape, i, PyLong_FromLongLong(view->shape[static_cast<std::size_t>(i)]));
      PyTuple_SetItem(stride, i, PyLong_FromLongLong(view->stride[static_cast<std::size_t>(i)]));
    }
    const std::int64_t bytes = bytes_of(*view);
    const std::int64_t offset = bytes == 0 ? 0 : static_cast<char*>(view->data) - object_of(self).memory;
    return Py_BuildValue("(LLNN)", static_cast<long long>(offset),
                         static_cast<long long>(bytes / static_cast<std::int64_t>(size_of(view->dtype))),
                         shape, stride);
  });
}

PyObject* swap_bytes(PyObject* self, PyObject* id_given) {
  return guarded([&]() -> PyObject* {
    const long long id = PyLong_AsLongLong(id_given);
    if (id == -1 && PyErr_Occurred()) return nullptr;
    std::size_t bytes = 0;
    if (Status s = cache_of(self).swap_bytes(id, &bytes); !s) return raise(s, PyExc_RuntimeError);
    return PyLong_FromSize_t(bytes);
  });
}

PyObject* swap_out(PyObject* self, PyObject* args) {
  return guarded([&]() -> PyObject* {
    long long id = 0;
    PyObject* to = nullptr;
    Py_buffer view;
    if (!PyArg_ParseTuple(args, "LO", &id, &to) ||
        PyObject_GetBuffer(to, &view, PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS) != 0)
      return nullptr;
    Status status;
    {
      const WithoutGil released;
      status = cache_of(self).swap_out(id, view.buf, static_cast<std::size_t>(view.len));
    }
    PyBuffer_Release(&view);
    if (!status) return raise(status, PyExc_RuntimeError);
    Py_RETURN_NONE;
  });
}

PyObject* swap_in(PyObject* self, PyObject* from) {
  return guarded([&]() -> PyObject* {
    Py_buffer view;
    if (PyObject_GetBuffer(from, &view, PyBUF_C_CONTIGUOUS) != 0) return nullptr;
    Status status;
    std::int64_t id = 0;
    {
      const WithoutGil released;
      status = cache_of(self).swap_in(view.buf, static_cast<std::size_t>(view.len), &id);
    }
    PyBuffer_Release(&view);
    if (!status) return raise(status, cache_full);
    return PyLong_FromLongLong(id);
  });
}

PyObject* swap_out_file(PyObject* self, PyObject* args) {
  return guarded([&]() -> PyObject* {
    long long id = 0;
    PyObject* path = nullptr;  // bytes, in the file system's encoding
    if (!PyArg_ParseTuple(args, "LO&", &id, PyUnicode_FSConverter, &path)) return nullptr;
    const std::string name = PyBytes_AsString(path);
    Py_DECREF(path);
    Status status;
    {
      const WithoutGil released;
      status = cache_of(self).swap_out(id, name);
    }
    if (!status) return raise(status, PyExc_RuntimeError);
    Py_RETURN_NONE;
  });
}

PyObject* swap_in_file(PyObject* self, PyObject* args) {
  return guarded([&]() -> PyObject* {
    PyObject* path = nullptr;
    if (!PyArg_ParseTuple(args, "O&", PyUnicode_FSConverter, &path)) return nullptr;
    const std::string name = PyBytes_AsString(path);
    Py_DECREF(path);
    Status status;
    std::int64_t id = 0;
    {
      const WithoutGil released;
      status = cache_of(self).swap_in(name, &id);
    }
    if (!status) return raise(status, cache_full);
    return PyLong_FromLongLong(id);
  });
}

PyMethodDef methods[] = {
    {"add", add, METH_NOARGS, "A new, empty sequence."},
    {"fork", fork, METH_VARARGS, "fork(id, length=None): a sequence with the same pages."},
    {"extend", extend, METH_VARARGS,
     "extend(ids, tokens): room for tokens, as (bytearray, tokens, sequences, columns)."},
    {"trim", trim, METH_VARARGS, "trim(id, length): forgets tokens."},
    {"free", release, METH_O, "Forgets a sequence."},
    {"length", length_of, METH_O, "Tokens of a sequence."},
    {"used_pages", used_pages, METH_NOARGS, "Pages that sequences hold."},
    {"nbytes", nbytes, METH_NOARGS, "Bytes of all pools."},
    {"pool", pool, METH_VARARGS, "pool(layer, which): offset, elements, shape, strides in the buffer."},
    {"swap_bytes", swap_bytes, METH_O, "Bytes that swap_out needs."},
    {"swap_out", swap_out, METH_VARARGS, "swap_out(id, buffer)"},
    {"swap_in", swap_in, METH_O, "swap_in(buffer)"},
    {"swap_out_file", swap_out_file, METH_VARARGS, "swap_out_file(id, path)"},
    {"swap_in_file", swap_in_file, METH_VARARGS, "swap_in_file(path)"},
    {nullptr, nullptr, 0, nullptr}};

PyType_Slot slots[] = {{Py_tp_new, reinterpret_cast<void*>(make)},
                       {Py_tp_dealloc, reinterpret_cast<void*>(destroy)},
                       {Py_tp_methods, methods},
                       {Py_bf_getbuffer, reinterpret_cast<void*>(export_buffer)},
                       {0, nullptr}};

PyType_Spec spec = {"tileformer._C.KvCache", sizeof(KvCacheObject), 0, Py_TPFLAGS_DEFAULT, slots};

}  // namespace

bool add_kv_cache(PyObject* module) {
  PyObject* type = PyType_FromSpec(&spec);
  if (type == nullptr) return false;
  const int failed = PyModule_AddObjectRef(module, "KvCache", type);
  Py_DECREF(type);
  if (failed) return false;
  cache_full = PyErr_NewExceptionWithDoc(
      "tileformer.CacheFull",
      "A PagedKVCache has too few free pages for what was asked; nothing was changed.", PyExc_RuntimeError,
      nullptr);
  return cache_full != nullptr && PyModule_AddObjectRef(module, "CacheFull", cache_full) == 0;
}

}  // namespace tileformer::torch_binding
